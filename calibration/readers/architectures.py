"""What a table of runs does not say of a mixture of experts: the published shape of models known by their name.

The shapes and their sources are in facts/published-runs.yaml.
"""

from __future__ import annotations

import re
from typing import Any

from flopcast_calibration.readers.csv_values import Row, Unmodelled, name_patterns, whole
from sim.errors import SpecError
from sim.specs import load_preset
from sim.specs.presets import model_preset

_CELLS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "vocab_size": "vocab",
    "num_experts": "experts",
    "experts_per_token": "topk",
}
"""Fields of a model's preset that a row has cells for."""


def with_known_model(row: Row) -> tuple[Row, dict[str, Any]]:
    """The row with its model's sizes where it leaves them out and its name is a preset's or Hugging Face's.

    Returns
    -------
    tuple
        The row, and those of the preset's fields that no cell has.
    """
    name = row.get("model_name", "")
    entry = _entry(name) or {}
    if not name or (row.get("layers") and "preset" not in entry):
        return row, {}
    try:
        known = {**load_preset("models", entry.get("preset") or model_preset(name)), **entry.get("fields", {})}
    except SpecError:
        raise Unmodelled(f"layers is empty, and {name} is no model that ships (flopcast presets list models)") from None
    sizes = {cell: str(known[field]) for field, cell in _CELLS.items() if known.get(field) and not row.get(cell)}
    width = known.get("expert_intermediate_size") or known.get("intermediate_size")
    if width and not row.get("ffn_hidden"):
        sizes["ffn_hidden"] = str(width)
    if not row.get("gated_mlp"):
        sizes["gated_mlp"] = "y" if known.get("gated_mlp") else "n"
    return {**row, **sizes}, {field: value for field, value in known.items() if field not in _CELLS}


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


def with_heads(model: dict[str, Any], inferred: list[str]) -> dict[str, Any]:
    """A model without experts with what its name tells of its heads."""
    known = _published(model["name"]) or {}
    found = {key: known[key] for key in ("head_dim", "query_key_norm") if key in known}
    if found:
        listed = ", ".join(f"{key} {value}".replace("_", " ") for key, value in found.items())
        inferred.append(f"{listed}: by the model's name")
    return {**model, **found}


def head_dim_of(name: str) -> int | None:
    """Columns of a head, for models in which they are not the hidden size over the heads."""
    return (_published(name) or {}).get("head_dim")


def _published(name: str) -> dict[str, Any] | None:
    """What is published of a model's shape, by its name."""
    entry = _entry(name)
    return None if entry is None else entry.get("fields", {})


def _entry(name: str) -> dict[str, Any] | None:
    """What the facts hold of a model of this name."""
    return next((entry for entry in name_patterns("models") if re.search(entry["name"], name.lower())), None)
