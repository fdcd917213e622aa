"""What is DeepSpeed's in a Megatron-style script: its JSON, and its mixtures of experts.

Defaults are those of deepspeedai/Megatron-DeepSpeed (megatron/arguments.py, megatron/model/transformer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.huggingface.layer_kinds import dealt_experts
from sim.foreign.importers.keys import UNKNOWN, Arguments, Keys, flat, table
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


def is_deepspeed_mixture(arguments: Arguments) -> bool:
    """Whether the experts are DeepSpeed's and not Megatron-LM's."""
    if arguments.raw("moe-model-type") == ["megatron_moe"]:
        return False
    return any(name in arguments for name in table("megatron")["deepspeed_experts"]) or (
        "deepspeed" in arguments and "moe-router-topk" not in arguments and "num-experts" in arguments
    )


def read_mixture(recipe: Recipe) -> None:
    """Experts in every so many layers, top-k, and experts beside the layer's own MLP. Raises SpecError: layers with
    different numbers of experts (a pyramid), which flopcast does not model."""
    arguments, model = recipe.keys, recipe.model
    numbers = _numbers(arguments)
    default = 2 if "deepspeed" in arguments or "ds-num-experts" not in arguments else 1
    interval, layers = arguments.whole("expert-interval"), model["num_layers"]
    ep, k = (
        arguments.whole("moe-expert-parallel-size", "expert-model-parallel-size"),
        arguments.whole("topk", "moe-topk"),  # the second is Pai-Megatron-Patch's copy
    )
    kind = arguments.text("mlp-type") or "standard"
    if set(numbers) <= {1}:
        return
    if len(set(numbers)) > 1:
        shown = " ".join(map(str, numbers))
        raise model.ledger.error(
            f"--num-experts {short(shown)} gives layers {min(numbers)} to {max(numbers)} experts (a pyramid, "
            "PR-MoE); flopcast prices layers of one size. Give one number, and see how the two ends differ"
        )
    model.took("num_experts", numbers[0], "--num-experts")
    why = "Megatron-DeepSpeed's default of --expert-interval"
    interval = int(interval if interval is not None else model.ledger.assume("--expert-interval", default, why))
    sparse = [(layer + 1) % interval == 0 for layer in range(layers)]
    if len(numbers) > 1 and len(numbers) != sum(sparse):
        raise model.ledger.error(
            f"--num-experts lists {len(numbers)} layers, but every {interval}. of {layers} is {sum(sparse)}"
        )
    for field, value in dealt_experts(sparse).items():
        model.took(field, value, f"experts in every {interval}. layer, --expert-interval")
    recipe.known |= {"chosen": k, "degree": ep, "sort": kind}
    recipe.read("mixture")


def _numbers(arguments: Arguments) -> list[int]:
    """Experts of each layer that has any, or one number for all."""
    words = arguments.words("num-experts", "ds-num-experts")
    bad = next((word for word in words if not word.isdigit() or UNKNOWN in word or not 1 <= len(word) <= 6), None)
    if bad is not None:
        raise arguments.ledger.error(f"--num-experts {short(bad)!r} must be whole numbers from 1")
    return [int(word) for word in words]
