"""DeepSpeed's JSON: batch, precision, ZeRO stage. The model stands elsewhere, as in a `config.json` in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.specs.hardware import ClusterSpec
from sim.specs.importers.defaults import (
    Foreign,
    Given,
    assume_batch,
    assume_sequence,
    cluster_of,
    cluster_section,
    deal_experts,
    fewest_gpus,
    take_optimizer,
)
from sim.specs.importers.huggingface.config import given_model
from sim.specs.importers.keys import Keys
from sim.specs.importers.ledger import Ledger, Section
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
    gpus = _batch(plan, training, keys, shape, cluster, given)
    plan.took("dp", gpus, "every GPU is a replica; --set plan.tp=N and others cut it otherwise")
    deal_experts(plan, shape, cluster, gpus)
    plan.assume("recompute", "full", "the file does not say whether activations are kept")
    _precision(training, keys)
    stack = _stack(zero)
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
    optimizer.leave()


def _without_auto(data: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            kept[str(key)] = {inner: item for inner, item in value.items() if item != "auto"}
        elif value == "auto":
            ledger.ignore(str(key), value, "left to the trainer, which is not in the file", matters=True)
        else:
            kept[str(key)] = value
    return kept


def _batch(
    plan: Section, training: Section, keys: Keys, shape: dict[str, Any], cluster: ClusterSpec, given: Given
) -> int:
    """Micro-batch, batch and number of GPUs: train_batch_size = micro-batch × accumulation × GPUs."""
    ledger = keys.ledger
    whole, micro = keys.whole("train_batch_size"), keys.whole("train_micro_batch_size_per_gpu")
    steps = keys.whole("gradient_accumulation_steps")
    if given.gpus is not None:
        gpus = int(ledger.took("GPUs", given.gpus, "--gpus"))
    elif whole is not None and micro is not None and steps is not None:
        gpus = max(1, whole // (micro * steps))
        ledger.took("GPUs", gpus, "train_batch_size over micro-batch and accumulation")
    else:
        gpus = fewest_gpus(shape, cluster, ledger)
    left = max(1, whole // (gpus * steps)) if whole is not None and steps is not None else 1
    named = "train_micro_batch_size_per_gpu"
    micro = int(plan.settle("microbatch_size", micro, named, left, f"no {named}"))
    if whole is None and steps is not None:
        training.took("global_batch_size", micro * steps * gpus, "micro-batch × accumulation × GPUs")
    elif whole is None:
        assume_batch(training, micro * gpus)
    elif whole != micro * (steps or max(1, whole // (micro * gpus))) * gpus:
        raise SpecError(
            f"{ledger.where}: train_batch_size {whole:,} is not micro-batch × accumulation × GPUs = "
            f"{micro:,} × {steps or 'any':} × {gpus:,}; give the --gpus it was written for"
        )
    else:
        training.took("global_batch_size", whole, "train_batch_size")
    return gpus


def _precision(training: Section, keys: Keys) -> None:
    fp16, bf16 = keys.section("fp16"), keys.section("bf16")
    choice = "bf16" if bf16.flag("enabled") else "fp16" if fp16.flag("enabled") else None
    training.settle("precision", choice, f"{choice}.enabled", "bf16", "neither fp16 nor bf16 is enabled in the file")
    fp16.leave()
    bf16.leave()
    optimizer = keys.section("optimizer")
    take_optimizer(training, optimizer.text("type"), "optimizer.type")
    optimizer.leave()


def _stack(zero: Keys) -> Section:
    stack = Section("stack", zero.ledger)
    stack.took("framework", "deepspeed", "the file's kind")
    stack.assume("version", "latest", "DeepSpeed of 2025 with fused kernels; another by --set stack.version=DATE")
    overlap = zero.flag("overlap_comm")
    if overlap is not None:
        stack.took("overlap_grad_reduce", overlap, "overlap_comm")
    return stack
