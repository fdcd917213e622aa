"""torchtitan: a job config in TOML, of the version that the importer reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table, launcher_lines, toml_text
from sim.foreign.importers.keys import table
from sim.specs.model import ModelSpec
from sim.specs.plan import ParallelPlan, layers_of_stages
from sim.specs.presets import load_preset

KIND = "torchtitan"
_SECTIONS = ("model", "training", "optimizer", "parallelism", "activation_checkpoint", "compile")


class Sections(dict[str, dict[str, Any]]):
    """The file's sections while they are filled: each key is set, and the fields noted that it says."""

    def __init__(self, account: Account) -> None:
        super().__init__((name, {}) for name in _SECTIONS)
        self.account = account

    def put(self, path: str, value: Any, *fields: str) -> None:
        """Set `section.key`."""
        section, _, key = path.rpartition(".")
        self.setdefault(section, {})[key] = value
        self.account.say(path, value, *fields)


def export_torchtitan(account: Account) -> tuple[str, dict[str, Any]]:
    """The TOML, and what stands in it. Raises SpecError: torchtitan cannot run the plan."""
    data = Sections(account)
    _model(account, data)
    _plan(account, data)
    _training(account, data)
    _precision(account, data)
    _stack(account, data)
    account.settle()
    command = launcher_lines(account.scenario, "-m torchtitan.train", ['--job.config_file "$CONFIG_FILE"'])
    comment = [f"# {line}" for line in command]
    return "\n".join([*comment, "", toml_text(data)]), {name: part for name, part in data.items() if part}


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """(model.name, model.flavor) of the model of this shape, or None where torchtitan knows none."""
    for (name, flavor), known in _flavors().items():
        same = known.replace(name=model.name, max_sequence_length=model.max_sequence_length, num_mtp_layers=0)
        if same == model.replace(num_mtp_layers=0):
            return name, flavor
    return None


@cache
def _flavors() -> dict[tuple[str, str], ModelSpec]:
    """Models by model.name and model.flavor, as the importer knows them; of several names of one the first counts."""
    found = {}
    for name, flavors in table(KIND)["flavors"].items():
        for flavor, what in flavors.items():
            if flavor != "all":
                shape = load_preset("models", what) if isinstance(what, str) else {**flavors.get("all", {}), **what}
                found[name, flavor] = ModelSpec.read({"name": flavor, **shape}, "model")
    return found


def _model(account: Account, data: Sections) -> None:
    found = flavor_of(account.scenario.model)
    if found is not None:
        data.put("model.name", found[0], "model.name")
        data.put("model.flavor", found[1], "model.name")
    else:
        account.leave("model.name", "none of the flavours that are known here has this shape; register one")
        account.ask("model.name, model.flavor", "the flavour that you register; without them a tiny llama3 is trained")


def _plan(account: Account, data: Sections) -> None:
    """Degrees, pipeline and activation checkpoints."""
    plan = account.scenario.plan
    for field, name in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        data.put(f"parallelism.{name}_parallel_degree", getattr(plan, field), f"plan.{field}")
    replicated, sharded = _replicas(account, plan)
    data.put("parallelism.data_parallel_replicate_degree", replicated, "plan.dp", "plan.sharding_group")
    data.put("parallelism.data_parallel_shard_degree", sharded, "plan.dp", "plan.zero_stage")
    if plan.zero_stage == 3:
        stated = plan.reshard_after_forward
        keep = stated if isinstance(stated, str) else "always" if stated else "never"
        data.put("parallelism.fsdp_reshard_after_forward", keep, "plan.reshard_after_forward")
    if account.scenario.model.num_experts:
        data.put("parallelism.expert_parallel_degree", plan.ep, "plan.ep")
        data.put("parallelism.expert_tensor_parallel_degree", plan.etp, "plan.etp")
    if plan.pp > 1:
        _pipeline(account, plan, data)
    _recompute(account, plan, data)


def _replicas(account: Account, plan: ParallelPlan) -> tuple[int, int]:
    """(degree of replicated, of sharded data parallelism); context-parallel ranks shard together with the latter."""
    copies = plan.num_replicas
    if copies == 1:
        account.decide("plan.zero_stage", "there is one replica: nothing to shard")
        account.decide("plan.reshard_after_forward", "there is one replica: nothing is gathered")
        return 1, 1
    if plan.zero_stage == 0:
        return plan.dp, 1
    group = plan.sharding_group or copies
    if plan.sharding_group == copies:
        account.decide("plan.sharding_group", "all that hold the same part, as without it")
    return copies // group, group // plan.cp


def _pipeline(account: Account, plan: ParallelPlan, data: Sections) -> None:
    known, model = exporter_table(KIND)["schedules"], account.scenario.model
    if plan.schedule == "interleaved" and plan.num_chunks == 1:
        account.decide("plan.schedule", "1f1b: with one chunk a rank they are the same")
        plan = plan.replace(schedule="1f1b")
    name, several = known.get(plan.schedule, (plan.schedule, False))
    data.put("parallelism.pipeline_parallel_schedule", name, "plan.schedule")
    if plan.microbatch_group is not None:
        account.decide("plan.microbatch_group", "pp, as without it")
    layers = layers_of_stages(model.num_layers, plan)
    dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
    if plan.pipeline_layout or dealt % plan.num_stages:
        modules = stage_modules(layers)
        data.put("parallelism.module_fqns_per_model_part", modules, "plan.pipeline_layout", "plan.uneven_layers")
        return
    for end, field in (("first", "embedding_as_layer"), ("last", "head_as_layer")):
        less = int(getattr(plan, field))
        data.put(f"parallelism.pipeline_parallel_{end}_stage_less_layers", less, f"plan.{field}")
    if several:
        data.put("parallelism.pipeline_parallel_layers_per_stage", dealt // plan.num_stages, "plan.num_chunks")
    if plan.uneven_layers:
        account.decide("plan.uneven_layers", "the stages divide the layers")


def stage_modules(layers: Sequence[int]) -> list[list[str]]:
    """The modules of each stage by torchtitan's names."""
    parts: list[list[str]] = []
    first = 0
    for held in layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + held)])
        first += held
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _recompute(account: Account, plan: ParallelPlan, data: Sections) -> None:
    mode, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    if plan.recompute == "none":
        data.put(mode, "none", "plan.recompute")
    elif plan.recompute == "per_op":
        data.put(mode, "selective", "plan.recompute")
        data.put(option, "op", "plan.recompute")
    elif plan.recompute_method == "uniform" and plan.recompute_num_layers == 1:
        data.put(mode, "full", "plan.recompute")
    else:
        every = account.scenario.model.num_layers // plan.num_stages // plan.recompute_num_layers
        data.put(mode, "selective", "plan.recompute_method")
        data.put(option, str(every), "plan.recompute_num_layers")


def _training(account: Account, data: Sections) -> None:
    scenario = account.scenario
    training, plan = scenario.training, scenario.plan
    # In a pipeline the local batch is cut into micro-batches; without one it is what goes through at once.
    local = training.global_batch_size // plan.dp // scenario.flushes if plan.pp > 1 else plan.microbatch_size
    flushes = ["plan.microbatches_per_flush"] * (scenario.flushes > 1)
    data.put("training.local_batch_size", local, "plan.microbatch_size", *flushes)
    if plan.pp > 1:
        data.put("parallelism.pipeline_parallel_microbatch_size", plan.microbatch_size, "plan.microbatch_size")
    data.put("training.global_batch_size", training.global_batch_size, "training.global_batch_size")
    data.put("training.seq_len", training.sequence_length, "training.sequence_length")
    if training.sequence_length % (plan.tp * plan.cp * (2 if plan.cp > 1 else 1)):
        why = f"training.seq_len is no multiple of tp · cp{' · 2' if plan.cp > 1 else ''}"
        account.refuse("training.sequence_length", why, "a sequence length that is")
    if training.tokens is None:
        account.ask("training.steps", "the scenario has no training.tokens")
    else:
        steps = max(1, round(training.tokens / training.tokens_per_step))
        data.put("training.steps", steps, "training.tokens")
        if steps * training.tokens_per_step != training.tokens:
            account.decide("training.tokens", f"{steps * training.tokens_per_step:,}: whole steps")
    data.put("optimizer.name", "AdamW", "training.optimizer")


def _precision(account: Account, data: Sections) -> None:
    training, known = account.scenario.training, exporter_table(KIND)["precisions"]
    if training.precision not in known:
        nearest = "bf16" if training.precision == "fp16" else "mxfp8"
        account.refuse("training.precision", f"it has {', '.join(known)}", f"--set training.precision={nearest}")
        return
    param, converters = known[training.precision]
    data.put("training.mixed_precision_param", param, "training.precision")
    if converters:
        data.put("model.converters", converters, "training.precision")
    if training.high_precision_layers:
        account.leave("training.high_precision_layers", "quantize.*.filter_fqns can name the layers' modules")
    if training.precision == "fp8" and account.scenario.stack.fp8_gathers and account.scenario.plan.zero_stage == 3:
        for key in ("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"):
            data.put(f"quantize.linear.float8.{key}", True, "stack.fp8_gathers")


def _stack(account: Account, data: Sections) -> None:
    stack, plan = account.scenario.stack, account.scenario.plan
    data.put("compile.enable", stack.compiled, "stack.compiled")
    if stack.async_tensor_parallel and plan.tp > 1:
        if not stack.compiled:
            why = "its compiler makes the pieces of asynchronous tensor parallelism"
            account.refuse("stack.async_tensor_parallel", why, "--set stack.compiled=true")
        data.put("parallelism.enable_async_tensor_parallel", True, "stack.async_tensor_parallel")
    if plan.cp > 1:
        method = "alltoall" if stack.overlap_context else "allgather"
        data.put("parallelism.context_parallel_rotate_method", method, "stack.overlap_context")
    if plan.tp > 1 and not stack.vocab_parallel_loss:
        data.put("parallelism.disable_loss_parallel", True, "stack.vocab_parallel_loss")
