"""Which runs belong together: those that share a recipe, and those of one sweep of layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flopcast_calibration.readers.csv_values import name_patterns


def family_of(row: Mapping[str, str]) -> str:
    """Lineage of the source and the model: runs that share a recipe, which cross-validation leaves out together."""
    source = row.get("source", "").lower()
    named = (entry["lineage"] for entry in name_patterns("lineages") if entry["word"] in source)
    lineage = next(named, re.sub(r"\W*\(.*", "", source))
    name = re.sub(r"[^a-z0-9.]", "", row.get("model_name", "").lower()).replace("3.1", "3")
    return f"{lineage} / {name}"


def lineage_of(family: str) -> str:
    """A family's lineage: framework and organisation, what a run of someone else's differs by."""
    return family.partition(" / ")[0]


def sweep_of(row: Mapping[str, str]) -> str:
    """What a sweep of layouts keeps fixed."""
    fixed = ("source", "gpu", "num_gpus", "model_name", "seq_len", "global_batch_seqs", "precision", "framework")
    return " | ".join(row.get(key, "") for key in fixed)
