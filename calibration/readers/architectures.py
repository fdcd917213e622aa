"""What a table of runs does not say of a mixture of experts: the published shape of models known by their name.

The shapes and their sources are in facts/published-runs.yaml.
"""

from __future__ import annotations

import re
from typing import Any

from calibration.readers.csv_values import Row, Unmodelled, name_patterns, whole


def with_experts(row: Row, model: dict[str, Any], inferred: list[str]) -> dict[str, Any]:
    """A model's description with its experts; what the row says of widths is an expert's.

    Raises
    ------
    Unmodelled
        The row does not say how many experts a token goes to.
    """
    name = model["name"]
    known = _published(name)
    found: dict[str, Any] = {
        "num_experts": whole(row, "experts"),
        "experts_per_token": whole(row, "topk"),
        "expert_intermediate_size": whole(row, "ffn_hidden"),
        "gated_mlp": row.get("gated_mlp") != "n",
        "position": "rotary",
        "norm": "rmsnorm",
        "bias": False,
        "tied_embeddings": False,
        "dropout": 0.0,
        **(known or {}),
    }
    if found.get("shared_expert_intermediate_size", 0) % whole(row, "tp", 1):
        raise Unmodelled("tp does not divide the width of the shared experts")
    listed = ", ".join(f"{key} {value}".replace("_", " ") for key, value in (known or {}).items())
    inferred.append(f"{listed or 'no shared experts, every layer with experts'}: by the model's name")
    if "key_value_rank" in found:
        model = {key: value for key, value in model.items() if key != "num_kv_heads"}
    return {**model, **found}


def head_dim_of(name: str) -> int | None:
    """Columns of a head, for models in which they are not the hidden size over the heads."""
    return (_published(name) or {}).get("head_dim")


def _published(name: str) -> dict[str, Any] | None:
    """What is published of a model's shape, by its name."""
    return next((entry["fields"] for entry in name_patterns("models") if re.search(entry["name"], name.lower())), None)
