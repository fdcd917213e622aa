"""torchtitan's configuration: TOML, or the JSON that it dumps. Names are those of pytorch/torchtitan's job config, with
the older places of the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.specs.hardware import ClusterSpec
from sim.specs.importers.fill import Given, cluster_of, cluster_section, fewest_gpus, replicas
from sim.specs.importers.ledger import MOST, NO_EFFECT, Keys, Ledger, short
from sim.specs.presets import load_preset, preset_names

_SECTIONS = ("parallelism", "training", "activation_checkpoint", "job")
_SCHEDULES = {
    "1f1b": ("1f1b", 1),
    "gpipe": ("gpipe", 1),
    "interleaved1f1b": ("interleaved", 2),
    "interleavedzerobubble": ("zb_interleaved", 2),
    "loopedbfs": ("breadth_first", 2),
    "zbvzerobubble": ("zb_v", 2),
    "dualpipev": ("dualpipe_v", 2),
}
"""Names of torch.distributed.pipelining, without case -> (ours, chunks a rank unless layers a stage are given)."""
_PRESETS = {"deepseek-v3-671b": "deepseek-v3"}
"""Models whose name and flavour are not those of our preset."""
_KERNELS = "the stack describes what is fused and overlapped; see stack.*"
_REASONS = {
    "job.*": NO_EFFECT,
    "profiling.*": NO_EFFECT,
    "metrics.*": NO_EFFECT,
    "checkpoint.*": "checkpoints are priced by flopcast scaling goodput, not in a step",
    "validation.*": NO_EFFECT,
    "comm.*": NO_EFFECT,
    "lr_scheduler.*": NO_EFFECT,
    "optimizer.*": NO_EFFECT,
    "experimental.*": "experimental; not priced",
    "fault_tolerance.*": "not priced",
    "activation_offload.*": "not priced",
    "memory_estimation.*": NO_EFFECT,
    "compile.*": _KERNELS,
    "float8.*": _KERNELS,
    "quantize.*": _KERNELS,
    "mx.*": "not modelled",
    "parallelism.enable_async_tensor_parallel": _KERNELS,
    "parallelism.disable_loss_parallel": _KERNELS,
    "parallelism.enable_compiled_autograd": _KERNELS,
    "parallelism.context_parallel_rotate_method": _KERNELS,
    "parallelism.module_fqns_per_model_part": "layers are dealt evenly",
    "parallelism.pipeline_parallel_split_points": "layers are dealt evenly",
    "parallelism.pipeline_parallel_*": "layers are dealt evenly",
    "parallelism.expert_*": "how tokens travel to experts is the stack's; see stack.deduplicated_dispatch",
    "model.*": NO_EFFECT,
    "training.*": NO_EFFECT,
    "activation_checkpoint.*": "not priced",
}


def is_torchtitan(data: Any) -> bool:
    """Whether data from TOML or JSON are such a configuration."""
    return isinstance(data, Mapping) and sum(isinstance(data.get(name), Mapping) for name in _SECTIONS) >= 2


def read_torchtitan(data: Mapping[str, Any], ledger: Ledger, given: Given, named: Any) -> dict[str, Any]:
    """A scenario's sections.

    Parameters
    ----------
    named : mapping or str, optional
        The section `model` that the caller gave instead of the file's.

    Raises
    ------
    SpecError
        A model or a schedule that flopcast does not know, or a value that breaks a rule.
    """
    keys = Keys({str(key): value for key, value in data.items()}, ledger)
    model_keys, training_keys = keys.section("model"), keys.section("training")
    cut, recompute = keys.section("parallelism"), keys.section("activation_checkpoint")
    experimental = keys.section("experimental")
    model = named if named is not None else _model(model_keys, ledger)
    shape = load_preset("models", model) if isinstance(model, str) else model
    name, cluster = cluster_of(given, ledger)
    plan, replicated, sharded = _degrees(cut, training_keys, experimental, ledger)
    _experts(plan, cut, shape, ledger)
    gpus = _gpus(plan, replicated, sharded, shape, cluster, given, ledger)
    _replicas(plan, gpus, replicated, sharded, cut, ledger)
    local = training_keys.whole("local_batch_size", "batch_size")
    local = local if local is not None else ledger.assume("training.local_batch_size", 8, "torchtitan's default")
    _pipeline(plan, local, cut, experimental, shape, ledger)
    training = _training(plan, local, training_keys, ledger)
    _recompute(plan, recompute, ledger)
    _precision(training, model_keys, training_keys, keys.section("float8"), ledger)
    for part in (model_keys, training_keys, cut, recompute, experimental):
        part.leave(_REASONS)
    keys.leave(_REASONS)
    return {
        "model": model,
        "cluster": cluster_section(name, cluster, gpus, given, ledger),
        "plan": plan,
        "training": training,
        "stack": ledger.took("stack", "torchtitan", "the file's kind"),
    }


def _model(keys: Keys, ledger: Ledger) -> str:
    name, flavor = keys.text("name"), keys.text("flavor")
    if name is None or flavor is None:
        raise SpecError(f"{ledger.where}: model.name and model.flavor say which model it is; give --model instead")
    preset = f"{name}-{flavor}".lower().replace("_", "-")
    preset = _PRESETS.get(preset, preset)
    if preset not in preset_names("models"):
        raise SpecError(
            f"{ledger.where}: the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
            "name; give --model PRESET or --model config.json"
        )
    return str(ledger.took("model", preset, "model.name and model.flavor"))


def _degree(name: str, keys: tuple[Keys, ...], default: int) -> int:
    """A parallel degree from the first section that has it; -1 stands for all GPUs left."""
    for section in keys:
        if name in section:
            value = section.whole(name, least=-1)
            if value is None or value == 0:
                raise section.wrong(name, value, f"must be -1, or a whole number from 1 to {MOST:.0e}")
            return value
    return default


def _degrees(cut: Keys, training: Keys, experimental: Keys, ledger: Ledger) -> tuple[dict[str, Any], int, int]:
    """(tp, cp, pp; degree of plain data parallelism; degree of sharded data parallelism, -1 for all that is left)."""
    everywhere = (cut, training, experimental)
    plan: dict[str, Any] = {}
    for field, name in (
        ("tp", "tensor_parallel_degree"),
        ("cp", "context_parallel_degree"),
        ("pp", "pipeline_parallel_degree"),
    ):
        value = _degree(name, everywhere, 1)
        if value < 1:
            raise cut.wrong(name, value, "must be one or more")
        plan[field] = ledger.took(f"plan.{field}", value, name)
    replicated = _degree("data_parallel_replicate_degree", everywhere, 1)
    sharded = _degree("data_parallel_shard_degree", everywhere, _degree("data_parallel_degree", everywhere, -1))
    if replicated < 1:
        raise cut.wrong("data_parallel_replicate_degree", replicated, "must be one or more")
    return plan, replicated, sharded


def _experts(plan: dict[str, Any], cut: Keys, shape: dict[str, Any], ledger: Ledger) -> None:
    """Expert parallelism: over the GPUs of the sharded, context- and tensor-parallel degrees, as in ours."""
    degree, of_tensor = cut.whole("expert_parallel_degree"), cut.whole("expert_tensor_parallel_degree")
    if not shape.get("num_experts"):
        if degree is not None and degree > 1:
            ledger.ignore("parallelism.expert_parallel_degree", degree, "the model has no experts")
        return
    if degree is None:
        plan["ep"] = ledger.assume("plan.ep", 1, "torchtitan's default")
    else:
        plan["ep"] = ledger.took("plan.ep", degree, "expert_parallel_degree")
    if of_tensor is not None and of_tensor > 1:
        rule = "cuts each expert over GPUs, which flopcast does not model; set it to 1"
        raise cut.wrong("expert_tensor_parallel_degree", of_tensor, rule)


def _gpus(
    plan: dict[str, Any],
    replicated: int,
    sharded: int,
    shape: dict[str, Any],
    cluster: ClusterSpec,
    given: Given,
    ledger: Ledger,
) -> int:
    unit = plan["tp"] * plan["cp"] * plan["pp"] * replicated
    if sharded > 0:
        if given.gpus not in (None, unit * sharded):
            raise SpecError(
                f"{ledger.where}: its degrees make {unit * sharded:,} GPUs, not {given.gpus:,}; leave --gpus out"
            )
        return int(ledger.took("GPUs", unit * sharded, "the product of all degrees"))
    if given.gpus is not None:
        return int(ledger.took("GPUs", given.gpus, "--gpus"))
    gpus = fewest_gpus(shape, cluster, unit)
    why = "so many hold the model's states; --gpus N"
    return int(ledger.assume("GPUs", gpus, why))


def _replicas(plan: dict[str, Any], gpus: int, replicated: int, sharded: int, cut: Keys, ledger: Ledger) -> None:
    unit = plan["tp"] * plan["cp"] * plan["pp"]
    plan["dp"] = ledger.took("plan.dp", replicas(gpus, unit, ledger, "tp · cp · pp"), "GPUs over tp · cp · pp")
    policy = cut.text("fsdp_reshard_after_forward") or "default"
    if plan["dp"] * plan["cp"] == replicated and sharded in (1, -1) and replicated > 1:
        plan["zero_stage"] = ledger.took(
            "plan.zero_stage", 0, "data_parallel_replicate_degree alone: nothing is sharded"
        )
        return
    # With a pipeline torchtitan's default keeps the gathered weights between micro-batches.
    keeps = policy == "never" or (policy == "default" and plan["pp"] > 1)
    plan["zero_stage"] = ledger.took("plan.zero_stage", 2 if keeps else 3, f"fsdp_reshard_after_forward {policy}")
    if replicated > 1:
        ledger.ignore(
            "parallelism.data_parallel_replicate_degree",
            replicated,
            "hybrid sharding is not modelled; all replicas share the shards",
        )


def _pipeline(
    plan: dict[str, Any], local: int, cut: Keys, experimental: Keys, shape: dict[str, Any], ledger: Ledger
) -> None:
    """Schedule, chunks and micro-batch."""
    name = cut.text("pipeline_parallel_schedule") or experimental.text("pipeline_parallel_schedule")
    of_micro = cut.whole("pipeline_parallel_microbatch_size")
    number = experimental.whole("pipeline_parallel_microbatches") or cut.whole("pipeline_parallel_microbatches")
    layers = cut.whole("pipeline_parallel_layers_per_stage")
    if plan["pp"] == 1:
        plan["microbatch_size"] = ledger.took("plan.microbatch_size", local, "local_batch_size")
        return
    known = _SCHEDULES.get((name or "1F1B").lower())
    if known is None:
        raise SpecError(f"{ledger.where}: pipeline_parallel_schedule {short(name)!r} is not modelled")
    schedule, chunks = known
    if name is None:
        ledger.assume("plan.schedule", schedule, "torchtitan's default")
    else:
        ledger.took("plan.schedule", schedule, f"pipeline_parallel_schedule {name}")
    plan["schedule"] = schedule
    if layers is not None and chunks > 1:
        chunks = max(1, -(-int(shape["num_layers"]) // (layers * plan["pp"])))
    if chunks > 1:
        plan["num_chunks"] = ledger.took("plan.num_chunks", chunks, "stages a rank of this schedule")
    # torchtitan evens out embedding and head: stages that do not divide the layers are allowed.
    if int(shape["num_layers"]) % (plan["pp"] * chunks):
        plan["uneven_layers"] = ledger.assume("plan.uneven_layers", True, "the stages do not divide the layers")
    if number is not None:
        of_micro = max(1, local // number)
    if of_micro is None:
        of_micro = ledger.assume("plan.microbatch_size", 1, "torchtitan's default")
    else:
        ledger.took("plan.microbatch_size", of_micro, "micro-batches of the pipeline")
    plan["microbatch_size"] = of_micro
    if local % of_micro:
        raise SpecError(f"{ledger.where}: local_batch_size {local} is no multiple of the micro-batch {of_micro}")


def _training(plan: dict[str, Any], local: int, keys: Keys, ledger: Ledger) -> dict[str, Any]:
    length = keys.whole("seq_len")
    length = length if length is not None else ledger.assume("training.sequence_length", 2048, "torchtitan's default")
    training: dict[str, Any] = {"sequence_length": length}
    whole = keys.whole("global_batch_size", least=-1)
    if whole is None or whole < 1:
        whole = local * plan["dp"]
        ledger.took("training.global_batch_size", whole, "local_batch_size × data-parallel degree")
    else:
        ledger.took("training.global_batch_size", whole, "global_batch_size")
    training["global_batch_size"] = whole
    ledger.took("training.sequence_length", length, "seq_len")
    steps = keys.whole("steps")
    if steps is not None:
        training["tokens"] = ledger.took("training.tokens", float(steps * whole * length), "steps × batch × seq_len")
    if plan["tp"] > 1:
        plan["sequence_parallel"] = ledger.took(
            "plan.sequence_parallel", True, "torchtitan's tensor parallelism always"
        )
    return training


def _recompute(plan: dict[str, Any], keys: Keys, ledger: Ledger) -> None:
    mode = keys.text("mode")
    _, option = keys.take("selective_ac_option")
    if mode is None:
        mode = ledger.assume("plan.recompute", "selective", "torchtitan's default")
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise keys.wrong("mode", mode, "must be none, selective or full")
    if mode in ("selective", "memory_budget"):
        plan["recompute"] = "per_op"
        if option not in (None, "op") or mode == "memory_budget":
            ledger.ignore(
                "activation_checkpoint.selective_ac_option",
                option,
                "priced as the option op: every other multiply again",
            )
    else:
        plan["recompute"] = mode
    ledger.took("plan.recompute", plan["recompute"], f"activation_checkpoint.mode {mode}")


def _precision(training: dict[str, Any], model: Keys, keys: Keys, float8: Keys, ledger: Ledger) -> None:
    _, converters = model.take("converters")
    names = converters if isinstance(converters, list) else []
    eight = any("float8" in str(name) for name in names[:20]) or bool(float8.flag("enable_float8_linear"))
    float8.leave(_REASONS)
    param = keys.text("mixed_precision_param") or "bfloat16"
    if eight:
        training["precision"] = ledger.took("training.precision", "fp8", "float8 linears")
    elif param in ("bfloat16", "float32"):
        training["precision"] = "bf16" if param == "bfloat16" else "fp32"
        ledger.took("training.precision", training["precision"], f"mixed_precision_param {param}")
    else:
        raise keys.wrong("mixed_precision_param", param, "must be bfloat16 or float32")
