"""NeMo 2's recipes in Python: run.Partial of a model, a trainer with MegatronStrategy, data and an optimizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.nemo.settings import hoisted, scenario_of_megatron
from sim.foreign.importers.python.recipes import leave_makers, read_recipe
from sim.foreign.importers.python.values import CALLED, MadeBy

KIND = "nemo"
_MARK = re.compile(r"^\s*(?:from|import)\s+(?:nemo\b|nemo_run\b)", re.MULTILINE)


def is_nemo(text: str) -> bool:
    """Whether a Python text uses NeMo 2's recipes."""
    return bool(_MARK.search(text)) and any(word in text for word in ("MegatronStrategy", "_recipe", "llm."))


def read_nemo(file: Foreign) -> dict[str, Any]:
    """A scenario's sections; raises SpecError where there is no recipe, or one that cannot be read."""
    _, settings = read_recipe(file.text, file.given.recipe, file.ledger, KIND, _fits)
    settings = {**settings, "trainer": hoisted(settings.get("trainer", {}), "plugins")}
    settings["model"] = _versioned(settings["model"])
    strategy = settings["trainer"].get("strategy")
    if isinstance(strategy, Mapping) and strategy.get("fsdp") in ("megatron", "pytorch"):
        settings["trainer"]["strategy"] = {**strategy, f"{strategy['fsdp']}_fsdp": True}
    settings["callbacks"] = {**settings.get("callbacks", {}), **_callbacks(settings["trainer"].pop("callbacks", None))}
    return scenario_of_megatron(leave_makers(settings, file.ledger, KIND), file, KIND)


def _fits(settings: Mapping[str, Any]) -> bool:
    """Whether it is a recipe: of a model, a trainer and data; or one that NeMo makes for fine-tuning."""
    whole = all(isinstance(settings.get(part), Mapping) for part in ("model", "trainer"))
    return whole and ("data" in settings or "seq_length" in settings)


def _versioned(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model with the version that the name of the module has of which it is: `llama3_70b.model()`."""
    maker = model.get(CALLED)
    if isinstance(maker, MadeBy) and maker in ("model", "model_config") and "version" not in model:
        return {"version": maker.module.rpartition(".")[2], **model}
    return dict(model)


def _callbacks(said: Any) -> dict[str, Any]:
    """What callbacks set: their arguments, and that tokens go to experts by DeepEP."""
    made: dict[str, Any] = {}
    for each in said if isinstance(said, list) else []:
        if isinstance(each, Mapping):
            name = str(each.get(CALLED, ""))
            made |= {key: value for key, value in each.items() if key != CALLED and not key.startswith("gc_")}
            made |= {"deepep": True} if name == "DeepEPCallback" else {}
            if name == "MegatronTokenDropCallback":
                made = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True} | made
    return made
