"""DeepSpeed's JSON beside a Megatron-style script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, Keys, flat, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.shell.script import Files
from sim.foreign.importers.shell.tree import MARK
from sim.foreign.importers.sources import parse_json


def take_config(arguments: Arguments, files: Files) -> Mapping[str, Any] | None:
    """The JSON that --deepspeed_config names, if the script writes it or it lies beside; None otherwise, with a note
    where it is named."""
    ledger, options = arguments.ledger, table("megatron")["deepspeed_file"]["options"]
    name = next((values[0] for values in map(arguments.raw, options) if values), None)
    if not arguments.has(*options) or name is None:
        return None
    text, shown = files.text(name), MARK.sub("?", name)
    why = "not written by the script, nor beside it; what it sets is not read"
    if text is not None:
        try:
            return _told(parse_json(MARK.sub("null", text), shown), arguments, shown)
        except SpecError:
            why = "is no JSON that can be read; what it sets is not read"
    ledger.ignore("--deepspeed_config", shown, why, matters=True)
    return None


def _told(data: Any, arguments: Arguments, shown: str) -> Mapping[str, Any] | None:
    """What the JSON, if it is a mapping, has for the keys that are read, by their dotted names; others are noted."""
    if not isinstance(data, Mapping):
        return None
    keys = Keys(dict(flat(data)), arguments.ledger, "deepspeed", f"{short(shown)}: ")
    told = {name: keys.take(name)[1] for name in table("megatron")["deepspeed_file"]["read"]}
    keys.leave()
    return told


def known_of_zero(arguments: Arguments, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the JSON says of ZeRO, by the names that the table's rows have for it."""
    told = config or {}
    stage, device = (told.get(f"zero_optimization.{name}") for name in ("stage", "offload_optimizer.device"))
    return {
        "read": config is not None,
        "half": half_precision(arguments, config),
        "stage_of_file": stage if type(stage) is int and 0 <= stage <= 3 else None,
        "on_host": device == "cpu" or told.get("zero_optimization.cpu_offload") is True,
    }


def take_overlap(recipe: Recipe, config: Mapping[str, Any] | None) -> None:
    """Whether ZeRO 2 and 3, which take no pipeline, sum gradients beside the backward."""
    said = (config or {}).get("zero_optimization.overlap_comm")
    if isinstance(said, bool) and recipe.plan["zero_stage"] > 1:
        recipe.stack.took("overlap_grad_reduce", said, "overlap_comm of the DeepSpeed file")


def half_precision(arguments: Arguments, config: Mapping[str, Any] | None) -> str | None:
    """The 16-bit precision that the arguments or the JSON ask for."""
    told = config or {}
    asked = (name for name in ("bf16", "fp16") if name in arguments or told.get(f"{name}.enabled") is True)
    return next(asked, None)
