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
from sim.foreign.importers.keys import Keys, reason_to_ignore
from sim.foreign.importers.ledger import Ledger, Section
from sim.specs.hardware import ClusterSpec
from sim.specs.presets import load_preset

_TELLTALES = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")


def is_deepspeed(data: Any) -> bool:
    """Whether data in JSON are such a configuration."""
    return isinstance(data, Mapping) and any(name in data for name in _TELLTALES)


def read_deepspeed(file: Foreign) -> dict[str, Any]:
    """A scenario's sections.

    Raises
    ------
    SpecError
        No model, batch sizes that contradict each other, or a value that breaks a rule.
    """
    given, ledger, model = file.given, file.ledger, file.model
    neighbour = None if file.folder is None else file.folder / "config.json"
    if model is None and neighbour is not None and neighbour.is_file():
        model = given_model(str(neighbour), ledger)
    if model is None:
        raise SpecError(
            f"{ledger.where}: a DeepSpeed file does not describe the model; give --model PRESET or --model "
            "config.json, or put the model's config.json beside it"
        )
    # "auto" leaves a value to the trainer: as if it were not there.
    keys = Keys(_without_auto(file.data, ledger), ledger, "deepspeed")
    shape = load_preset("models", model) if isinstance(model, str) else dict(model)
    name, cluster = cluster_of(given, ledger)
    zero = keys.section("zero_optimization")
    plan, training = Section("plan", ledger), Section("training", ledger)
    stage = zero.whole("stage", least=0)
    if stage is not None and stage > 3:
        raise zero.wrong("stage", stage, "must be 0, 1, 2 or 3")
    why = "DeepSpeed's without zero_optimization.stage"
    plan.settle("zero_stage", stage, "zero_optimization.stage", 0, why)
    take_offload(plan, zero)
    assume_sequence(training, shape)
    cut = _cut(plan, keys)
    gpus = _batch(plan, training, keys, shape, cluster, given, cut)
    why = "GPUs over those that share a sequence" if cut > 1 else "every GPU is a replica"
    plan.took("dp", replicas(gpus, cut, ledger, "autotp_size"), f"{why}; --set plan.tp=N and others cut it otherwise")
    _groups(plan, zero)
    if cut == 1:
        deal_experts(plan, shape, cluster, gpus)
    plan.assume("recompute", "full", "the file does not say whether activations are kept")
    stack = _stack(plan, zero)
    take_precision(training, stack, keys)
    optimizer = keys.section("optimizer")
    take_optimizer(training, optimizer.text("type"), "optimizer.type")
    optimizer.leave()
    zero.leave()
    keys.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def take_offload(plan: Section, zero: Keys) -> None:
    """The optimizer's state in host memory, or a part of it (ZeRO-Offload++)."""
    optimizer = zero.section("offload_optimizer")
    device, ratio, old = optimizer.text("device"), optimizer.number("ratio"), zero.flag("cpu_offload")
    if device == "cpu" or old:
        where = "zero_optimization.offload_optimizer" if device else "zero_optimization.cpu_offload"
        plan.took("optimizer_offload", 1.0 if ratio is None else ratio, where)
    elif device not in (None, "none"):
        zero.ledger.ignore(
            "zero_optimization.offload_optimizer.device", device, "only host memory is modelled", matters=True
        )
    elif ratio is not None:
        why = "without effect without offload_optimizer.device cpu"
        zero.ledger.ignore("zero_optimization.offload_optimizer.ratio", ratio, why)
    optimizer.leave()


def _without_auto(data: Mapping[str, Any], ledger: Ledger, prefix: str = "") -> dict[str, Any]:
    """What the file says itself; what it leaves to the trainer is noted."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            kept[str(key)] = _without_auto(value, ledger, f"{name}.")
        elif value == "auto":
            matters = not prefix or reason_to_ignore("deepspeed", name)[1]
            ledger.ignore(name, value, "left to the trainer, which is not in the file", matters)
        else:
            kept[str(key)] = value
    return kept


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
    inner, cut = keys.section("tensor_parallel"), 1
    tensor, sequence = inner.whole("autotp_size", least=0), keys.whole("sequence_parallel_size")
    if tensor is not None and tensor > 1:
        plan.took("tp", tensor, "tensor_parallel.autotp_size")
        cut *= tensor
    if sequence is not None and sequence > 1:
        plan.took("cp", sequence, "sequence_parallel_size: context parallelism by heads")
        cut *= sequence
    inner.leave()
    return cut


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
    sections = {name: keys.section(name) for name in ("bf16", "fp16")}
    enabled = {name: section.flag("enabled") for name, section in sections.items()}
    cast = keys.section("torch_autocast")
    casts, width = cast.flag("enabled"), _width(cast, "dtype")
    choice = next((name for name in sections if enabled[name]), None)
    source = f"{choice}.enabled"
    if choice is None and casts:
        choice, source = width or "bf16", "torch_autocast"
        why = f"weights in fp32 beside multiplies in {choice} are priced as {choice} weights with fp32 masters"
        cast.ledger.ignore("torch_autocast", choice, why, matters=True)
    elif casts or width is not None:
        cast.ledger.ignore("torch_autocast", width or "", "without effect beside the precision that is enabled")
    if choice is None and False in enabled.values():
        off = " and ".join(f"{name}.enabled false" for name in sections if enabled[name] is False)
        choice, source = "fp32", f"{off}: DeepSpeed's own is then fp32"
    why = "neither fp16 nor bf16 is told in the file; the trainer's usual"
    training.settle("precision", choice, source, "bf16", why)
    _states(training, sections)
    cast.leave()
    for section in sections.values():
        section.leave()
    _gradients(training, stack, keys)


def _states(training: Section, sections: dict[str, Keys]) -> None:
    """Masters and moments in 16 bits (deepspeed/runtime/precision_config.py)."""
    for name, section in sections.items():
        masters, states = f"{name}_master_weights_and_grads", "bf16_optimizer_states"
        here = training["precision"] == name
        if section.flag(masters) and here:
            training.took("master_precision", "none" if name == "bf16" else "fp16", f"{name}.{masters}")
        if name == "bf16" and section.flag(states) and here:
            training.took("moment_precision", "bf16", f"{name}.{states}")


def _gradients(training: Section, stack: Section, keys: Keys) -> None:
    """In which gradients are summed over GPUs, and over micro-batches: one field of ours."""
    types = keys.section("data_types")
    summed, kept = _width(keys, "communication_data_type"), _width(types, "grad_accum_dtype")
    types.leave()
    if keys.flag("fp32_allreduce") and summed is None:
        summed = "fp32"
    if training["precision"] == "fp32":
        stack.assume("gradient_precision", "fp32", "beside weights in fp32")
        for name, said in (("communication_data_type", summed), ("data_types.grad_accum_dtype", kept)):
            if said not in (None, "fp32"):
                keys.ledger.ignore(name, said, "gradients of fp32 weights are priced in fp32", matters=True)
        return
    source = "communication_data_type" if summed else "data_types.grad_accum_dtype"
    if summed and kept and summed != kept:
        why = f"gradients are priced in one precision, that of communication_data_type, {summed}"
        keys.ledger.ignore("data_types.grad_accum_dtype", kept, why, matters=True)
    if summed or kept:
        stack.took("gradient_precision", summed or kept, source)
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
