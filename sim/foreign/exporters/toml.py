"""TOML of sections with plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The sections that have keys; long lists of lists have a line an entry."""
    parts = [
        "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())])
        for name, keys in sections.items()
        if keys
    ]
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    """JSON's spelling, which for text, numbers, booleans and lists of them is TOML's."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
