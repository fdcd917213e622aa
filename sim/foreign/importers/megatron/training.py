"""The training job of Megatron-LM's arguments: batch, precision, optimizer, routing, budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.megatron.deepspeed_file import half_precision
from sim.foreign.importers.megatron.rows import KIND, ArgumentRows


def read_training(
    arguments: Arguments, model: Section, config: Mapping[str, Any] | None = None, deepspeed_experts: bool = False
) -> Section:
    """Batch, precision and optimizer.

    config : of DeepSpeed, where its JSON could be read.
    deepspeed_experts : whether the experts are DeepSpeed's, which take no more than their buffers hold.
    """
    training = Section("training", arguments.ledger)
    length = arguments.needed("seq-length", "encoder-seq-length")
    if "max_sequence_length" not in model:
        model.assume("max_sequence_length", length, "as long as --seq-length")
    training.took("sequence_length", length, "--seq-length")
    training["global_batch_size"] = None
    batch = arguments.whole("global-batch-size")
    if batch is not None:
        training.took("global_batch_size", batch, "--global-batch-size")
    halves = [switch for switch in ("fp16", "bf16") if arguments.has(switch)]
    if len(halves) > 1:
        raise SpecError(f"{arguments.ledger.where}: --fp16 and --bf16 exclude each other; keep one")
    precision, source = (halves[0], f"--{halves[0]}") if halves else (None, "")
    precision, source = _fewer_bits(arguments) or (precision, source)
    if precision is None and config:
        precision, source = half_precision(arguments, config), "the DeepSpeed file"
    training.settle("precision", precision, source, "fp32", "Megatron-LM's without --bf16 or --fp16")
    rows = ArgumentRows.on(arguments, {"training": training})
    rows.read("high_precision")
    take_optimizer(training, arguments.text("optimizer"), "--optimizer")
    rows.read("precision_of_states")
    rows.read("buffers" if deepspeed_experts and model.get("num_experts") else "capacity")
    return training


def _fewer_bits(arguments: Arguments) -> tuple[str, str] | None:
    """(precision, what says so) of multiplies in 8 or 4 bits; None where there are none.

    A recipe counts only beside its format. fp4 goes before fp8, as in Megatron-LM, which takes not both.
    """
    found = None
    for bits, others in (("fp8", ("fp8-hybrid", "fp8", "fp8-e4m3")), ("fp4", ())):
        known, given = table(KIND)[f"{bits}_recipes"], arguments.text(f"{bits}-format", *others)
        recipe = arguments.text(f"{bits}-recipe")
        if given is None and recipe is not None:
            arguments.ledger.ignore(f"--{bits}-recipe", recipe, f"without effect without --{bits}-format")
        if given in (None, "None", "false"):
            continue
        if recipe is not None and recipe not in known:
            why = f"a recipe of one's own; priced as {next(iter(known.values()))}"
            arguments.ledger.ignore(f"--{bits}-recipe", recipe, why, matters=True)
        source = f"--{bits}-format" + f", --{bits}-recipe {recipe}" * (recipe in known)
        found = known.get(recipe, next(iter(known.values()))), source
    return found


def take_replicas(plan: Section, training: Section, arguments: Arguments, gpus: int) -> None:
    """Take what follows from the number of GPUs: replicas, groups that shard, and where they are not said the batch
    (megatron/training/arguments.py, validate_args) and the tokens of the run."""
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, arguments.ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    rows = ArgumentRows.on(arguments, {"plan": plan, "training": training})
    rows.read("replicas")
    if training["global_batch_size"] is None:
        why = "Megatron-LM's default, one micro-batch a replica"
        training.assume("global_batch_size", plan["dp"] * plan["microbatch_size"], why)
    rows.read("budget")
