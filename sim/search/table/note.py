"""What a saved search was about, in JSON beside its table, so that another one is not mixed with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import SpecError
from sim.search.plans.layouts import LAYOUT, gpus_of_layouts
from sim.search.plans.space import Space

NOTE = "_search.json"
"""Readers of Parquet folders pass over names that begin so."""
FORMAT = 2
"""Of the note and the table beside it; 1 had no column ep."""


def describe(space: Space, plans_per_unit: int, num_units: int) -> dict[str, Any]:
    """What was searched, in words of JSON; two searches with the same have the same table."""
    sizes, plan = gpus_of_layouts(space.layouts), space.scenario.plan
    # Of its own plan a search keeps how layers are dealt; what it is called changes no price.
    scenario = space.scenario.model_dump_json(exclude={"name", "description", "plan", "assumed"})
    return {
        "format": FORMAT,
        "scenario": json.loads(scenario),
        "as_layers": {"embedding": plan.embedding_as_layer, "head": plan.head_as_layer},
        "gpus": [int(sizes.min()), int(sizes.max())],
        "context": np.unique(space.layouts[:, LAYOUT.index("cp")]).tolist(),
        "experts": np.unique(space.layouts[:, LAYOUT.index("ep")]).tolist(),
        "overlaps": len({category.overlaps for category in space.categories}) > 1,
        "plans_per_unit": plans_per_unit,
        "plans": space.num_plans,
        "units": num_units,
        "layouts": hashlib.sha256(space.layouts.tobytes()).hexdigest(),
        "categories": len(space.categories),
    }


def check_note(folder: Path, note: dict[str, Any]) -> None:
    """Refuse a folder that is not of this search."""
    path = folder / NOTE
    if not path.exists():
        raise SpecError(
            f"--save {folder} holds files but no search (there is no {NOTE} in it); it is left as it is: name a folder "
            "that is new or empty"
        )
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        theirs = None
    if not isinstance(theirs, dict):
        raise SpecError(f"{path} cannot be read as the note of a search; name another folder, or delete this one")
    if theirs.get("format") != FORMAT:
        raise SpecError(
            f"--save {folder} was saved by another version of flopcast (format {theirs.get('format')}, this one writes "
            f"{FORMAT}); it is left as it is: name another folder, and all plans are priced anew"
        )
    differ = _differences(note, theirs)
    if differ:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise SpecError(
            f"--save {folder} holds another search: it differs in {', '.join(differ[:3])}{more}; it is left as it is: "
            "name another folder, or ask the same to go on with it"
        )


def _differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two notes differ, as `scenario.plan.tp (8, there 4)`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = list(dict.fromkeys((*ours, *theirs)))
        return [
            found
            for name in names
            for found in _differences(ours.get(name), theirs.get(name), f"{path}.{name}".strip("."))
        ]
    return [] if ours == theirs else [f"{path} ({_short(ours)}, there {_short(theirs)})"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else f"{text[:37]}…"
