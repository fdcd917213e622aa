"""DeepSpeed's JSON: batch, precision, ZeRO stage. The model stands elsewhere, as in a `config.json` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.specs.hardware import ClusterSpec
from sim.specs.importers.fill import (
    Given,
    batch_of,
    cluster_of,
    cluster_section,
    experts_plan,
    fewest_gpus,
    sequence_of,
)
from sim.specs.importers.ledger import NO_EFFECT, Keys, Ledger
from sim.specs.presets import load_preset

_TELLTALES = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
_BUCKETS = "sizes of buckets and prefetches are not priced"
_REASONS = {
    "zero_optimization.offload_*": "not modelled: a real step is slower, and needs less of the GPU's memory",
    "zero_optimization.zero_hpz_partition_size": "secondary shards are not modelled",
    "zero_optimization.mics_*": "sharding over groups is not modelled",
    "zero_optimization.*": _BUCKETS,
    "activation_checkpointing.*": "says how checkpoints are kept, not whether; set plan.recompute",
    "tensor_parallel*": "set plan.tp",
    "pipeline*": "set plan.pp",
    "flops_profiler*": NO_EFFECT,
    "optimizer.*": NO_EFFECT,
    "scheduler*": NO_EFFECT,
    "fp16*": NO_EFFECT,
    "bf16*": NO_EFFECT,
    "gradient_clipping": NO_EFFECT,
    "steps_per_print": NO_EFFECT,
    "wall_clock_breakdown": NO_EFFECT,
    "tensorboard*": NO_EFFECT,
    "wandb*": NO_EFFECT,
    "communication_data_type": "gradients are priced in the stack's precision",
    "prescale_gradients": NO_EFFECT,
    "zero_allow_untested_optimizer": NO_EFFECT,
}


def is_deepspeed(data: Any) -> bool:
    """Whether data in JSON are such a configuration."""
    return isinstance(data, Mapping) and any(name in data for name in _TELLTALES)


def read_deepspeed(data: Mapping[str, Any], ledger: Ledger, given: Given, model: Any) -> dict[str, Any]:
    """A scenario's sections.

    Parameters
    ----------
    model : mapping or str
        The section `model`: DeepSpeed's file has none.

    Raises
    ------
    SpecError
        Batch sizes that contradict each other, or a value that breaks a rule.
    """
    # "auto" leaves a value to the trainer: as if it were not there.
    keys = Keys(_without_auto(data, ledger), ledger)
    shape = load_preset("models", model) if isinstance(model, str) else dict(model)
    name, cluster = cluster_of(given, ledger)
    zero = keys.section("zero_optimization")
    stage = zero.whole("stage", least=0)
    if stage is not None and stage > 3:
        raise zero.wrong("stage", stage, "must be 0, 1, 2 or 3")
    plan: dict[str, Any] = {"zero_stage": stage if stage is not None else 0}
    if stage is None:
        ledger.assume("plan.zero_stage", 0, "DeepSpeed's without zero_optimization.stage")
    else:
        ledger.took("plan.zero_stage", stage, "zero_optimization.stage")
    training = {"sequence_length": sequence_of(shape, ledger)}
    gpus = _batch(plan, training, keys, shape, cluster, given, ledger)
    plan["dp"] = ledger.took("plan.dp", gpus, "every GPU is a replica; --set plan.tp=N and others cut it otherwise")
    plan |= experts_plan(shape, cluster, gpus, ledger)
    plan["recompute"] = ledger.assume("plan.recompute", "full", "the file does not say whether activations are kept")
    _precision(training, keys, ledger)
    stack = _stack(zero, ledger)
    zero.leave(_REASONS)
    keys.leave(_REASONS)
    return {
        "model": model,
        "cluster": cluster_section(name, cluster, gpus, given, ledger),
        "plan": plan,
        "training": training,
        "stack": stack,
    }


def _without_auto(data: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            kept[str(key)] = {inner: item for inner, item in value.items() if item != "auto"}
        elif value == "auto":
            ledger.ignore(str(key), value, "left to the trainer, which is not in the file")
        else:
            kept[str(key)] = value
    return kept


def _batch(
    plan: dict[str, Any],
    training: dict[str, Any],
    keys: Keys,
    shape: dict[str, Any],
    cluster: ClusterSpec,
    given: Given,
    ledger: Ledger,
) -> int:
    """Micro-batch, batch and number of GPUs: train_batch_size = micro-batch × accumulation × GPUs."""
    whole, micro = keys.whole("train_batch_size"), keys.whole("train_micro_batch_size_per_gpu")
    steps = keys.whole("gradient_accumulation_steps")
    gpus = given.gpus
    if gpus is not None:
        ledger.took("GPUs", gpus, "--gpus")
    elif None not in (whole, micro, steps):
        assert whole is not None and micro is not None and steps is not None  # noqa: PT018
        gpus = max(1, whole // (micro * steps))
        ledger.took("GPUs", gpus, "train_batch_size over micro-batch and accumulation")
    else:
        gpus = fewest_gpus(shape, cluster)
        ledger.assume("GPUs", gpus, "so many hold the model's states; --gpus N")
    if micro is None:
        micro = max(1, whole // (gpus * steps)) if whole is not None and steps is not None else 1
        plan["microbatch_size"] = ledger.assume("plan.microbatch_size", micro, "no train_micro_batch_size_per_gpu")
    else:
        plan["microbatch_size"] = ledger.took("plan.microbatch_size", micro, "train_micro_batch_size_per_gpu")
    if whole is None and steps is not None:
        whole, source = micro * steps * gpus, "micro-batch × accumulation × GPUs"
        training["global_batch_size"] = ledger.took("training.global_batch_size", whole, source)
    elif whole is None:
        training["global_batch_size"] = batch_of(micro * gpus, training["sequence_length"], ledger)
    else:
        if whole != micro * (steps or max(1, whole // (micro * gpus))) * gpus:
            raise SpecError(
                f"{ledger.where}: train_batch_size {whole:,} is not micro-batch × accumulation × GPUs = "
                f"{micro:,} × {steps or 'any':} × {gpus:,}; give the --gpus it was written for"
            )
        training["global_batch_size"] = ledger.took("training.global_batch_size", whole, "train_batch_size")
    return gpus


def _precision(training: dict[str, Any], keys: Keys, ledger: Ledger) -> None:
    fp16, bf16 = (keys.section(name) for name in ("fp16", "bf16"))
    choice = "bf16" if bf16.flag("enabled") else "fp16" if fp16.flag("enabled") else None
    if choice is None:
        training["precision"] = ledger.assume(
            "training.precision", "bf16", "neither fp16 nor bf16 is enabled in the file"
        )
    else:
        training["precision"] = ledger.took("training.precision", choice, f"{choice}.enabled")
    for part in (fp16, bf16):
        part.leave(_REASONS)
    optimizer = keys.section("optimizer")
    kind = optimizer.text("type")
    if kind is not None and kind.lower() == "sgd":
        training["optimizer"] = ledger.took("training.optimizer", "sgd", "optimizer.type")
    elif kind is not None and "adam" not in kind.lower():
        ledger.ignore("optimizer.type", kind, "priced as Adam")
    optimizer.leave(_REASONS)


def _stack(zero: Keys, ledger: Ledger) -> Any:
    name = ledger.assume(
        "stack", "deepspeed-liger", "DeepSpeed of 2025 with fused kernels; another by --set stack=NAME"
    )
    overlap = zero.flag("overlap_comm")
    if overlap is None:
        return name
    return {"preset": name, "overlap_grad_reduce": ledger.took("stack.overlap_grad_reduce", overlap, "overlap_comm")}
