"""The training job of Megatron-LM's arguments, and its stack: which generation they belong to, and what they switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.megatron.deepspeed_file import half_precision
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.specs.plan import GRAPH_MODULES


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
    of_file = half_precision(arguments, config) if config else None
    rows = RecipeRows.on(arguments, {"training": training}, of_file=of_file)
    rows.read("precision")
    rows.read("high_precision")
    take_optimizer(training, arguments.text("optimizer"), "--optimizer")
    rows.read("precision_of_states")
    rows.read("buffers" if deepspeed_experts and model.get("num_experts") else "capacity")
    return training


def take_replicas(plan: Section, training: Section, arguments: Arguments, gpus: int) -> None:
    """Take what follows from the number of GPUs: replicas, groups that shard, and where they are not said the batch
    (megatron/training/arguments.py, validate_args) and the tokens of the run."""
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, arguments.ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    rows = RecipeRows.on(arguments, {"plan": plan, "training": training})
    rows.read("replicas")
    if training["global_batch_size"] is None:
        why = "Megatron-LM's default, one micro-batch a replica"
        training.assume("global_batch_size", plan["dp"] * plan["microbatch_size"], why)
    rows.read("budget")


def read_stack(
    arguments: Arguments,
    old: bool,
    framework: tuple[str, str] | None = None,
    run: Mapping[str, Section] | None = None,
) -> Section:
    """Which generation of the framework the arguments belong to, and what they switch in it.

    framework : (name, version) of one whose files have been read as these arguments.
    run : the sections of a whole command, in which what is not switched on is off; None of a recipe, which may leave
        it to its framework.
    """
    stack = Section("stack", arguments.ledger)
    name, version = framework or (None, None)
    names: dict[str, Any] = {"old": old, "named": name, "version": version, "modules": GRAPH_MODULES}
    rows = RecipeRows.on(arguments, {**(run or {}), "stack": stack}, **names)
    rows.read("stack")
    if run is not None:
        rows.read("whole_run")
    for group in ("exchanges", "dispatch", "graphs"):
        rows.read(group)
    return stack
