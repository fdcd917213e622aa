"""DeepSpeed's JSON beside a Megatron-style script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, Keys, flat, table
from sim.foreign.importers.ledger import short
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
    try:
        data = None if text is None else parse_json(MARK.sub("null", text), shown)
    except SpecError:
        data = None
    if not isinstance(data, Mapping):
        why = "not written by the script, nor beside it" if text is None else "is no JSON that can be read"
        ledger.ignore("--deepspeed_config", shown, f"{why}; what it sets is not read", matters=True)
        return None
    keys = Keys(dict(flat(data)), ledger, "deepspeed", f"{short(shown)}: ")
    told = {name: keys.take(name)[1] for name in table("megatron")["deepspeed_file"]["read"]}
    keys.leave()
    return told


def known_of_zero(arguments: Arguments, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the JSON and the arguments say of ZeRO and of precision, by the names that the table's rows have for it."""
    told = config or {}
    stage, device = (told.get(f"zero_optimization.{name}") for name in ("stage", "offload_optimizer.device"))
    beside = told.get("zero_optimization.overlap_comm")
    half = next((name for name in ("bf16", "fp16") if name in arguments or told.get(f"{name}.enabled") is True), None)
    return {
        "read": config is not None,
        "half": half,
        "of_file": half if config else None,
        "stage_of_file": stage if type(stage) is int and 0 <= stage <= 3 else None,
        "on_host": device == "cpu" or told.get("zero_optimization.cpu_offload") is True,
        "beside": beside if isinstance(beside, bool) else None,
    }
