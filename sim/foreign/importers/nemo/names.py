"""Models by the names of NVIDIA's classes and of the hub: Llama3Config8B, Qwen3ModelProvider8B, Qwen/Qwen3-8B."""

from __future__ import annotations

import re
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.huggingface.hub_models import known_model
from sim.foreign.importers.huggingface.layer_kinds import shortest
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.megatron.layers import MIXERS, MLPS
from sim.specs.presets import model_preset

_CLASS = re.compile(r"(?<=[A-Za-z0-9])(?:Model)?(?:Provider|Config)")
_TUNED = re.compile(r"(?:-(?:base|instruct|it|chat|hf|pt))+$", re.IGNORECASE)
_LONG = re.compile(r"_(?:16|32|64|128)k$")
"""Ending of the names of recipes that train the same model on longer sequences."""


def model_named(name: str, source: str, ledger: Ledger) -> Any:
    """The section `model` of a class's or a repository's name.

    Raises
    ------
    SpecError
        Not a model that is known by name.
    """
    families: dict[str, dict[str, Any]] = table("megatron_models")["families"]
    known = {each: (family, what) for family in families.values() for each, what in family.items() if each != "all"}
    try:
        return ledger.took("model", model_preset(name), f"{source} {short(name)}")
    except SpecError:
        pass
    plain = table("megatron_models")["aliases"].get(_plain(name), _plain(name))
    if plain not in known:
        found = known_model(plain, by_letters=True)
        if found is not None:
            ledger.took("model", short(name), source)
            return found
        raise SpecError(
            f"{ledger.where}: {source} {short(name)!r} is none of the models that flopcast has; give --model "
            "config.json, that model's own, or --model PRESET"
        )
    family, what = known[plain]
    ledger.took("model", short(name), source)
    return what if isinstance(what, str) else _whole(name, {**family["all"], **what})


def _whole(name: str, shape: dict[str, Any]) -> dict[str, Any]:
    """A shape by its fields; a hybrid's layers from Megatron's letters."""
    letters = shape.pop("pattern", None)
    if letters is not None:
        shape["num_layers"] = len(letters)
        shape["layer_types"] = shortest([MIXERS.get(letter, "none") for letter in letters])
        shape["mlp_layer_types"] = shortest([MLPS.get(letter, "none") for letter in letters])
    return {"name": _CLASS.sub("", name.rpartition("/")[2]).lower(), **shape}


def _plain(name: str) -> str:
    last = _LONG.sub("", _TUNED.sub("", name.rpartition("/")[2]))
    return re.sub(r"[^a-z0-9]", "", _CLASS.sub("", last).lower())
