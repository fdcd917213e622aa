"""The training job of Megatron-LM's arguments, and its stack: which generation they belong to, and what they switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.foreign.importers.defaults import replicas, take_optimizer
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.megatron.deepspeed_file import half_precision
from sim.foreign.importers.megatron.rows import KIND, ArgumentRows
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
    rows = ArgumentRows.on(arguments, {"training": training}, of_file=of_file)
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
    rows = ArgumentRows.on(arguments, {"plan": plan, "training": training})
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
    rows = ArgumentRows.on(arguments, {**(run or {}), "stack": stack}, old=old, named=name, version=version)
    rows.read("stack")
    if run is not None:
        rows.read("whole_run")
    _context(arguments, stack)
    rows.read("dispatch")
    _graphs(arguments, stack)
    return stack


def _context(arguments: Arguments, stack: Section) -> None:
    """How context-parallel ranks exchange what attention needs; of a list, layer by layer, where all say the same."""
    said, known = arguments.words("cp-comm-type"), table(KIND)["context_exchanges"]
    kinds = {word.lower() for word in said}
    if len(kinds) > 1 or not kinds <= known.keys():
        stack.ledger.ignore("--cp-comm-type", " ".join(said), "priced as the stack does it in all layers", matters=True)
    elif kinds:
        for field, value in known[kinds.pop()].items():
            stack.took(field, value, f"--cp-comm-type {said[0]}")


def _graphs(arguments: Arguments, stack: Section) -> None:
    """What is launched as CUDA graphs: --cuda-graph-impl, and what of a layer, by the newer and the older name."""
    kind, names = arguments.text("cuda-graph-impl"), arguments.words("cuda-graph-modules", "cuda-graph-scope")
    if arguments.has("enable-cuda-graph", "external-cuda-graph") and kind is None:
        kind = "local"
    if kind in (None, "none"):
        return
    if kind == "full_iteration" or "full_iteration" in names:
        stack.took("cuda_graphs", "full_iteration", f"--cuda-graph-impl {kind}")
        return
    known = [name for name in names if name in GRAPH_MODULES]
    for name in names:
        if name not in known:
            stack.ledger.ignore("--cuda-graph-modules", name, "not modelled", matters=True)
    if names and not known:
        return
    stack.took("cuda_graphs", "scoped", f"--cuda-graph-impl {kind}")
    if known:
        stack.took("cuda_graph_scope", known, "--cuda-graph-modules")
    else:
        stack.assume("cuda_graph_scope", ["attn", "mlp"], "whole layers, as Megatron-LM's default; experts never")
