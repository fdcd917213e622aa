"""Which runs belong together: those that share a recipe, and those of one sweep of layouts."""

from __future__ import annotations

import re

from flopcast_calibration.readers.cells import ALIASES, FACTS, Row


def family_of(row: Row) -> str:
    """Lineage of the source and the model: runs that share a recipe, which cross-validation leaves out together."""
    source = str(row.get("source", "")).lower()
    named = (lineage for words, lineage in FACTS["lineages"].items() if words in source)
    lineage = next(named, re.sub(r"\W*\(.*", "", source))
    name = re.sub(r"[^a-z0-9.]", "", str(row.get("model_name", "")).lower()).replace("3.1", "3")
    return f"{lineage} / {name}"


def lineage_of(family: str) -> str:
    """A family's lineage: framework and organisation, what a run of someone else's differs by."""
    return family.partition(" / ")[0]


def sweep_of(row: Row) -> str:
    """What a sweep of layouts keeps fixed."""
    sizes = ("seq_len", "global_batch_seqs", "precision")
    named = [row.get(name, "") for name in ("source", "gpu", "num_gpus", "model_name")]
    fixed = (row.get(name) or row.get(ALIASES[name], "") for name in sizes)
    return " | ".join(map(str, (*named, *fixed, row.get("framework", ""))))
