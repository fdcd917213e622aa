"""DeepSpeed's JSON: batch, ZeRO, precision. The model stands elsewhere, as in a `config.json` in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import (
    Foreign,
    Given,
    assume_batch,
    assume_sequence,
    cluster_of,
    cluster_section,
    deal_experts,
    fewest_gpus,
    replicas,
    take_optimizer,
)
from sim.foreign.importers.huggingface.config import given_model
from sim.foreign.importers.keys import Keys, flat, reason_to_ignore
from sim.foreign.importers.ledger import Section
from sim.specs.hardware import ClusterSpec
from sim.specs.presets import load_preset

_TELLTALES = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")


def is_deepspeed(data: Any) -> bool:
    """Whether data in JSON are such a configuration."""
    return isinstance(data, Mapping) and any(name in data for name in _TELLTALES)


def read_deepspeed(file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: no model, batch sizes that contradict each other, or a value that breaks
    a rule."""
    given, ledger, model = file.given, file.ledger, file.model
    neighbour = None if file.folder is None else file.folder / "config.json"
    if model is None and neighbour is not None and neighbour.is_file():
        model = given_model(str(neighbour), ledger)
    if model is None:
        raise SpecError(
            f"{ledger.where}: a DeepSpeed file does not describe the model; give --model PRESET or --model "
            "config.json, or put the model's config.json beside it"
        )
    keys = _keys(file)
    shape = load_preset("models", model) if isinstance(model, str) else dict(model)
    name, cluster = cluster_of(given, ledger)
    zero = keys.below("zero_optimization")
    plan, training = Section("plan", ledger), Section("training", ledger)
    take_stage(plan, zero, "zero_optimization")
    assume_sequence(training, shape)
    cut = _cut(plan, keys)
    gpus = _batch(plan, training, keys, shape, cluster, given, cut)
    why = "GPUs over those that share a sequence" if cut > 1 else "every GPU is a replica"
    plan.took("dp", replicas(gpus, cut, ledger, "autotp_size"), f"{why}; --set plan.tp=N and the like change that")
    _groups(plan, zero)
    if cut == 1:
        deal_experts(plan, shape, cluster, gpus)
    plan.assume("recompute", "full", "the file does not say whether activations are kept")
    stack = _stack(plan, zero)
    take_precision(training, stack, keys)
    take_optimizer(training, keys.text("optimizer.type"), "optimizer.type")
    zero.leave()
    keys.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


_SECTIONS = ("zero_optimization", "optimizer", "tensor_parallel", "fp16", "bf16", "torch_autocast", "data_types")


def _keys(file: Foreign) -> Keys:
    """The file's keys, with dots; "auto" leaves a value to the trainer, as if it were not there."""
    said: dict[str, Any] = {}
    for name, value in flat(file.data):
        if value == "auto":
            matters = "." not in name or reason_to_ignore("deepspeed", name)[1]
            file.ledger.ignore(name, value, "left to the trainer, which is not in the file", matters)
        elif value != {}:
            said[name] = value
    keys = Keys(said, file.ledger, "deepspeed")
    wrong = next((name for name in _SECTIONS if name in keys), None)
    if wrong is not None:
        raise keys.wrong(wrong, keys.raw(wrong), "must hold keys of its own")
    return keys


def take_stage(plan: Section, zero: Keys, source: str) -> None:
    """The ZeRO stage, and the optimizer's state in host memory, or a part of it (ZeRO-Offload++)."""
    stage = zero.whole("stage", "zero_stage", least=0)
    if stage is not None and stage > 3:
        raise zero.wrong("stage", stage, "must be 0, 1, 2 or 3")
    plan.settle("zero_stage", stage, f"{source}.stage", 0, f"DeepSpeed's without {source}.stage")
    device, ratio = zero.text("offload_optimizer.device"), zero.number("offload_optimizer.ratio")
    if device == "cpu" or zero.flag("cpu_offload"):
        where = f"{source}.{'offload_optimizer' if device else 'cpu_offload'}"
        plan.took("optimizer_offload", 1.0 if ratio is None else ratio, where)
    elif device not in (None, "none"):
        zero.ledger.ignore(f"{source}.offload_optimizer.device", device, "only host memory is modelled", matters=True)
    elif ratio is not None:
        why = "without effect without offload_optimizer.device cpu"
        zero.ledger.ignore(f"{source}.offload_optimizer.ratio", ratio, why)


BATCH = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
"""Keys of which DeepSpeed needs one of the first two, and follows the others from what is there."""


def _batch(
    plan: Section, training: Section, keys: Keys, shape: dict[str, Any], cluster: ClusterSpec, given: Given, cut: int
) -> int:
    """Micro-batch, batch and number of GPUs: train_batch_size = micro-batch × accumulation × GPUs.

    cut : GPUs that share a sequence, which are one replica.
    """
    ledger = keys.ledger
    whole, micro = keys.whole("train_batch_size"), keys.whole("train_micro_batch_size_per_gpu")
    steps = keys.whole("gradient_accumulation_steps")
    if len(BATCH & ledger.settings.keys()) == 1 and steps is None:
        steps = 1  # deepspeed/runtime/config.py, _set_batch_related_parameters
    if given.gpus is not None:
        gpus = int(ledger.took("GPUs", given.gpus, "--gpus"))
    elif whole is not None and micro is not None and steps is not None:
        gpus = max(1, whole // (micro * steps)) * cut
        ledger.took("GPUs", gpus, "train_batch_size over micro-batch and accumulation")
    else:
        gpus = fewest_gpus(shape, cluster, ledger, cut)
    copies = max(1, gpus // cut)
    left = max(1, whole // (copies * steps)) if whole is not None and steps is not None else 1
    named = "train_micro_batch_size_per_gpu"
    micro = int(plan.settle("microbatch_size", micro, named, left, f"no {named}"))
    if whole is None and steps is not None:
        training.took("global_batch_size", micro * steps * copies, "micro-batch × accumulation × GPUs")
    elif whole is None:
        assume_batch(training, micro * copies)
    elif whole != micro * (steps or max(1, whole // (micro * copies))) * copies:
        raise SpecError(
            f"{ledger.where}: train_batch_size {whole:,} is not micro-batch × accumulation × GPUs = "
            f"{micro:,} × {steps or 'any':} × {copies:,}; give the --gpus it was written for"
        )
    else:
        training.took("global_batch_size", whole, "train_batch_size")
    return gpus


def _cut(plan: Section, keys: Keys) -> int:
    """GPUs that share a sequence: tensor parallelism (AutoTP) and sequence parallelism (Ulysses)."""
    tensor, sequence = (
        keys.whole("tensor_parallel.autotp_size", least=0) or 1,
        keys.whole("sequence_parallel_size") or 1,
    )
    if tensor > 1:
        plan.took("tp", tensor, "tensor_parallel.autotp_size")
    if sequence > 1:
        plan.took("cp", sequence, "sequence_parallel_size: context parallelism by heads")
    return tensor * sequence


def _groups(plan: Section, zero: Keys) -> None:
    """Groups that shard apart (MiCS, deepspeed/runtime/zero/mics.py), under stage 3 only; -1 is none."""
    size, copies = zero.whole("mics_shard_size", least=-1), plan["dp"] * plan.get("cp", 1)
    if size is None or size < 1:
        return
    if plan["zero_stage"] < 3 or copies % size:
        why = "without effect below stage 3" if plan["zero_stage"] < 3 else f"does not divide the {copies} replicas"
        zero.ledger.ignore("zero_optimization.mics_shard_size", size, why, matters=plan["zero_stage"] == 3)
    elif size < copies:
        plan.took("sharding_group", size, "zero_optimization.mics_shard_size")


def _stack(plan: Section, zero: Keys) -> Section:
    stack = Section("stack", zero.ledger)
    stack.took("framework", "deepspeed", "the file's kind")
    stack.assume("version", "latest", "DeepSpeed of 2025 with fused kernels; another by --set stack.version=DATE")
    if plan.get("cp", 1) > 1:
        stack.took("context_by_heads", True, "sequence_parallel_size")
    take_overlaps(plan, stack, zero)
    return stack


def take_overlaps(plan: Section, stack: Section, zero: Keys) -> None:
    """Whether gathers and reductions overlap with compute, and how long gathered weights stay."""
    stage = plan["zero_stage"]
    overlap = zero.flag("overlap_comm")
    # deepspeed/runtime/zero/config.py, overlap_comm_valid: true under stage 3, else false.
    usual = f"DeepSpeed's default of overlap_comm under stage {stage}"
    if stage:
        stack.settle("overlap_grad_reduce", overlap, "overlap_comm", stage == 3, usual)
        if not stack["overlap_grad_reduce"]:
            stack.settle("overlap_param_gather", overlap, "overlap_comm", False, usual)
    elif overlap is not None:
        zero.ledger.ignore("zero_optimization.overlap_comm", overlap, "without effect without ZeRO")
    reuse = zero.number("stage3_max_reuse_distance", "max_reuse_distance")
    if reuse and stage == 3:
        stack.took("max_reuse_params", reuse, "stage3_max_reuse_distance")
    elif reuse is not None:
        why = "without effect below stage 3" if stage < 3 else "nothing is kept for a second use; not priced"
        zero.ledger.ignore("zero_optimization.stage3_max_reuse_distance", reuse, why, matters=stage == 3)


_WIDTHS = {"fp32": "fp32", "float32": "fp32", "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16",
           "bfp16": "bf16", "bfloat16": "bf16"}  # fmt: skip
"""DeepSpeed's names of numbers (deepspeed/runtime/config.py, DtypeEnum), torch's, and ours."""


def take_precision(training: Section, stack: Section, keys: Keys) -> None:
    """fp16, bf16, torch_autocast, data_types and communication_data_type."""
    halves = ("bf16", "fp16")
    enabled = {name: keys.flag(f"{name}.enabled") for name in halves}
    casts, width = keys.flag("torch_autocast.enabled"), _width(keys, "torch_autocast.dtype")
    choice = next((name for name in halves if enabled[name]), None)
    source = f"{choice}.enabled"
    if choice is None and casts:
        choice, source = width or "bf16", "torch_autocast"
        why = f"weights in fp32 beside multiplies in {choice} are priced as {choice} weights with fp32 masters"
        keys.ledger.ignore("torch_autocast", choice, why, matters=True)
    elif casts or width is not None:
        keys.ledger.ignore("torch_autocast", width or "", "without effect beside the precision that is enabled")
    if choice is None and False in enabled.values():
        off = " and ".join(f"{name}.enabled false" for name in halves if enabled[name] is False)
        choice, source = "fp32", f"{off}: DeepSpeed's own is then fp32"
    why = "the file names neither fp16 nor bf16; the trainer's usual"
    training.settle("precision", choice, source, "bf16", why)
    for name in halves:  # masters and moments in 16 bits (deepspeed/runtime/precision_config.py)
        masters, here = f"{name}.{name}_master_weights_and_grads", training["precision"] == name
        if keys.flag(masters) and here:
            training.took("master_precision", "none" if name == "bf16" else "fp16", masters)
    if keys.flag("bf16.bf16_optimizer_states") and training["precision"] == "bf16":
        training.took("moment_precision", "bf16", "bf16.bf16_optimizer_states")
    _gradients(training, stack, keys)


def _gradients(training: Section, stack: Section, keys: Keys) -> None:
    """Read the precision in which gradients are summed over GPUs and over micro-batches: here one field."""
    said = {name: _width(keys, name) for name in ("communication_data_type", "data_types.grad_accum_dtype")}
    if keys.flag("fp32_allreduce") and said["communication_data_type"] is None:
        said["communication_data_type"] = "fp32"
    if training["precision"] == "fp32":
        stack.assume("gradient_precision", "fp32", "beside weights in fp32")
        for name, width in said.items():
            if width not in (None, "fp32"):
                keys.ledger.ignore(name, width, "gradients of fp32 weights are priced in fp32", matters=True)
        return
    summed, kept = said.values()
    if summed and kept and summed != kept:
        why = f"gradients are priced in one precision, that of communication_data_type, {summed}"
        keys.ledger.ignore("data_types.grad_accum_dtype", kept, why, matters=True)
    source = next((name for name, width in said.items() if width), None)
    if source is not None:
        stack.took("gradient_precision", said[source], source)
    elif training["precision"] == "fp16":
        stack.assume("gradient_precision", "fp16", "DeepSpeed's own beside weights in fp16")


def _width(keys: Keys, name: str) -> str | None:
    said = keys.text(name)
    if said is None or said.lower() in ("none", "null"):
        return None
    plain = said.lower().removeprefix("torch.")
    if plain not in _WIDTHS:
        raise keys.wrong(name, said, "must be fp32, fp16 or bf16")
    return _WIDTHS[plain]
