"""torchtitan's configuration: TOML, or the JSON that it dumps. Names are those of pytorch/torchtitan's job config, with
the older places of the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from sim.errors import SpecError
from sim.specs.hardware import ClusterSpec
from sim.specs.importers.defaults import (
    Foreign,
    Given,
    cluster_of,
    cluster_section,
    fewest_gpus,
    replicas,
    take_optimizer,
)
from sim.specs.importers.keys import MOST, Keys, table
from sim.specs.importers.ledger import Section, short
from sim.specs.importers.pipeline_layouts import layout_of
from sim.specs.presets import load_preset, preset_names

KIND = "torchtitan"
_SECTIONS = ("parallelism", "training", "activation_checkpoint", "job")
_DEFAULT = "torchtitan's default"


def is_torchtitan(data: Any) -> bool:
    """Whether data from TOML or JSON are such a configuration."""
    return isinstance(data, Mapping) and sum(isinstance(data.get(name), Mapping) for name in _SECTIONS) >= 2


def read_torchtitan(file: Foreign) -> dict[str, Any]:
    """A scenario's sections.

    Raises
    ------
    SpecError
        A model or a schedule that flopcast does not know, or a value that breaks a rule.
    """
    given, ledger = file.given, file.ledger
    keys = Keys(file.data, ledger, KIND)
    model_keys, training_keys = keys.section("model"), keys.section("training")
    cut, recompute = keys.section("parallelism"), keys.section("activation_checkpoint")
    experimental = keys.section("experimental")
    model: Any = file.model if file.model is not None else _model(model_keys)
    shape = load_preset("models", model) if isinstance(model, str) else model
    if shape.get("num_mtp_layers") and isinstance(model, str):
        none = ledger.assume("model.num_mtp_layers", 0, "torchtitan trains no multi-token prediction")
        model = {"preset": model, "num_mtp_layers": none}
    name, cluster = cluster_of(given, ledger)
    plan, training = Section("plan", ledger), Section("training", ledger, sequence_length=None)
    replicated, sharded = _degrees(plan, (cut, training_keys, experimental))
    _experts(plan, cut, shape)
    gpus = _gpus(plan, replicated, sharded, shape, cluster, given)
    _replicas(plan, gpus, replicated, sharded, cut)
    local = training_keys.whole("local_batch_size", "batch_size")
    local = local if local is not None else ledger.assume("training.local_batch_size", 8, _DEFAULT)
    _pipeline(plan, local, cut, experimental, shape)
    _training(training, plan, local, training_keys)
    _recompute(plan, recompute, int(shape["num_layers"]))
    optimizer = keys.section("optimizer")
    take_optimizer(training, optimizer.text("name"), "optimizer.name")
    optimizer.leave()
    _precision(training, model_keys, training_keys, keys.section("float8"))
    stack = _stack(keys.section("compile"), training_keys)
    for part in (model_keys, training_keys, cut, recompute, experimental, keys):
        part.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def _stack(compiler: Keys, training: Keys) -> Section:
    """The framework, and whether layers are compiled: [compile] enable, or training.compile of older files."""
    stack = Section("stack", compiler.ledger)
    stack.took("framework", "torchtitan", "the file's kind")
    enabled = compiler.flag("enable")
    enabled = training.flag("compile") if enabled is None else enabled
    stack.settle("compiled", enabled, "compile.enable", True, "the file does not say; its own default is false")
    compiler.leave()
    return stack


def _model(keys: Keys) -> str:
    """The preset that the file's model is."""
    name, flavor, where = keys.text("name"), keys.text("flavor"), keys.ledger.where
    if name is None or flavor is None:
        raise SpecError(f"{where}: model.name and model.flavor say which model it is; give --model instead")
    preset = f"{name}-{flavor}".lower().replace("_", "-")
    preset = table(KIND)["models"].get(preset, preset)
    if preset not in preset_names("models"):
        raise SpecError(
            f"{where}: the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
            "name; give --model PRESET or --model config.json"
        )
    return str(keys.ledger.took("model", preset, "model.name and model.flavor"))


def _degree(name: str, sections: tuple[Keys, ...], default: int, least: int = 1) -> int:
    """A parallel degree from the first section that has it; -1, where allowed, stands for all GPUs left."""
    for section in sections:
        if name in section:
            value = section.whole(name, least=-1)
            if value is None or value == 0:
                raise section.wrong(name, value, f"must be -1, or a whole number from 1 to {MOST:.0e}")
            if value < least:
                raise sections[0].wrong(name, value, "must be one or more")
            return value
    return default


def _degrees(plan: Section, sections: tuple[Keys, ...]) -> tuple[int, int]:
    """Tensor, context and pipeline parallelism into the plan; the degrees of replicated and of sharded data
    parallelism, -1 for all that is left."""
    for field, name in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        named = f"{name}_parallel_degree"
        plan.took(field, _degree(named, sections, 1), named)
    replicated = _degree("data_parallel_replicate_degree", sections, 1)
    older = _degree("data_parallel_degree", sections, -1, least=-1)
    return replicated, _degree("data_parallel_shard_degree", sections, older, least=-1)


def _experts(plan: Section, cut: Keys, shape: dict[str, Any]) -> None:
    """Expert parallelism: over the GPUs of the sharded, context- and tensor-parallel degrees, as in ours.

    Where it cuts experts torchtitan gathers the sequence before the router and sends every token from each
    tensor-parallel rank (torchtitan/distributed/expert_parallel.py); priced is Megatron-Core's way, as is said.
    """
    degree, of_tensor = cut.whole("expert_parallel_degree"), cut.whole("expert_tensor_parallel_degree")
    if not shape.get("num_experts"):
        if degree is not None and degree > 1:
            cut.ledger.ignore("parallelism.expert_parallel_degree", degree, "the model has no experts")
        return
    plan.settle("ep", degree, "expert_parallel_degree", 1, _DEFAULT)
    if of_tensor is not None and of_tensor > 1:
        why = "expert_tensor_parallel_degree; tokens are gathered where they arrive, as by Megatron-Core"
        plan.took("etp", of_tensor, why)


def _gpus(
    plan: Section, replicated: int, sharded: int, shape: dict[str, Any], cluster: ClusterSpec, given: Given
) -> int:
    ledger = plan.ledger
    unit = plan["tp"] * plan["cp"] * plan["pp"] * replicated
    if sharded > 0:
        if given.gpus not in (None, unit * sharded):
            raise SpecError(
                f"{ledger.where}: its degrees make {unit * sharded:,} GPUs, not {given.gpus:,}; leave --gpus out"
            )
        return int(ledger.took("GPUs", unit * sharded, "the product of all degrees"))
    if given.gpus is not None:
        return int(ledger.took("GPUs", given.gpus, "--gpus"))
    return fewest_gpus(shape, cluster, ledger, unit)


def _replicas(plan: Section, gpus: int, replicated: int, sharded: int, cut: Keys) -> None:
    unit = plan["tp"] * plan["cp"] * plan["pp"]
    plan.took("dp", replicas(gpus, unit, plan.ledger, "tp · cp · pp"), "GPUs over tp · cp · pp")
    policy = cut.text("fsdp_reshard_after_forward") or "default"
    if plan["dp"] * plan["cp"] == replicated and sharded in (1, -1) and replicated > 1:
        plan.took("zero_stage", 0, "data_parallel_replicate_degree alone: nothing is sharded")
        return
    if policy not in ("default", "always", "never"):
        raise cut.wrong("fsdp_reshard_after_forward", policy, "must be default, always or never")
    plan.took("zero_stage", 3, "FSDP is torchtitan's data parallelism")
    # With a pipeline torchtitan's default keeps the gathered weights between micro-batches.
    keeps = policy == "never" or (policy == "default" and plan["pp"] > 1)
    plan.took("reshard_after_forward", not keeps, f"fsdp_reshard_after_forward {policy}")
    if replicated > 1:
        group = plan["dp"] * plan["cp"] // replicated
        plan.took("sharding_group", group, f"data_parallel_replicate_degree {replicated}")


def _pipeline(plan: Section, local: int, cut: Keys, experimental: Keys, shape: dict[str, Any]) -> None:
    """Schedule, chunks and micro-batch."""
    name = cut.text("pipeline_parallel_schedule") or experimental.text("pipeline_parallel_schedule")
    of_micro = cut.whole("pipeline_parallel_microbatch_size")
    number = experimental.whole("pipeline_parallel_microbatches") or cut.whole("pipeline_parallel_microbatches")
    layers, num_layers = cut.whole("pipeline_parallel_layers_per_stage"), int(shape["num_layers"])
    if plan["pp"] == 1:
        plan.took("microbatch_size", local, "local_batch_size")
        return
    known = table(KIND)["schedules"].get((name or "1F1B").lower())
    if known is None:
        raise SpecError(f"{plan.ledger.where}: pipeline_parallel_schedule {short(name)!r} is not modelled")
    schedule, chunks = known
    if name is None:
        plan.assume("schedule", schedule, _DEFAULT)
    else:
        plan.took("schedule", schedule, f"pipeline_parallel_schedule {name}")
    if layers is not None and chunks > 1:
        chunks = max(1, -(-num_layers // (layers * plan["pp"])))
    chunks = _layout(plan, cut, shape, chunks)
    if chunks > 1:
        plan.took("num_chunks", chunks, "stages a rank of this schedule")
    if number is not None:
        of_micro = max(1, local // number)
    size = plan.settle("microbatch_size", of_micro, "micro-batches of the pipeline", 1, _DEFAULT)
    if local % size:
        raise SpecError(f"{plan.ledger.where}: local_batch_size {local} is no multiple of the micro-batch {size}")


def _layout(plan: Section, cut: Keys, shape: dict[str, Any], chunks: int) -> int:
    """What each stage holds; chunks a rank, which a list of stages says.

    Where the file names no modules, embedding and head take the place of one layer each, or of as many as it says, and
    what does not divide goes to the first stages (torchtitan/distributed/pipeline_parallel.py,
    generate_llm_fqn_per_model_part).
    """
    pp, layers, where = int(plan["pp"]), int(shape["num_layers"]), plan.ledger.where
    first = cut.whole("pipeline_parallel_first_stage_less_layers", least=0)
    last = cut.whole("pipeline_parallel_last_stage_less_layers", least=0)
    key, parts = cut.take("module_fqns_per_model_part")
    counts = _parts(parts, layers, cut.wrong(key, parts, "must list each stage's modules, layers.0 first"))
    if counts is None:
        key, points = cut.take("pipeline_parallel_split_points")
        counts = _points(points, layers, cut.wrong(key, points, "must name layers of growing numbers, as layers.8"))
    if counts is not None:
        if len(counts) % pp:
            raise SpecError(
                f"{where}: {cut.label}{key} has {len(counts)} stages, no multiple of the {pp} pipeline ranks"
            )
        plan.took("pipeline_layout", layout_of(counts), key)
        return len(counts) // pp
    before, behind = (1 if less is None else less for less in (first, last))
    share, rest = divmod(layers + before + behind, pp * chunks)
    stages = [share + (stage < rest) for stage in range(pp * chunks)]
    stages[0], stages[-1] = stages[0] - before, stages[-1] - behind
    if min(stages) < 0:
        raise SpecError(
            f"{where}: {layers} layers on {pp * chunks} stages leave the first or the last less than its "
            "pipeline_parallel_first_stage_less_layers or pipeline_parallel_last_stage_less_layers"
        )
    if len(set(stages)) > 1:
        source = "first_stage_less_layers and last_stage_less_layers"
        said = layout_of(stages)
        if first is None and last is None:
            plan.assume("pipeline_layout", said, f"{_DEFAULT}: embedding and head count as a layer each")
        else:
            plan.took("pipeline_layout", said, source)
    return chunks


def _parts(parts: Any, layers: int, wrong: SpecError) -> list[int] | None:
    """Layers of each stage of `[["tok_embeddings", "layers.0"], ..., ["norm", "output"]]`."""
    if parts is None:
        return None
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or not parts:
        raise wrong
    names = [[name for name in part if isinstance(name, str) and name.startswith("layers.")] for part in parts]
    if [name for part in names for name in part] != [f"layers.{layer}" for layer in range(layers)]:
        raise wrong
    return [len(part) for part in names]


def _points(points: Any, layers: int, wrong: SpecError) -> list[int] | None:
    """Layers of each stage, of the names of what begins one: `["layers.8", "layers.16"]`, or `norm` and `output`."""
    points = points.split(",") if isinstance(points, str) else points
    if not points:
        return None
    if not isinstance(points, list) or not all(isinstance(point, str) for point in points):
        raise wrong
    starts = [
        layers if point.strip() in ("norm", "output") else point.strip().removeprefix("layers.") for point in points
    ]
    numbers = [0, *(int(start) if str(start).isdecimal() else -1 for start in starts), layers]
    if sorted(numbers) != numbers or len(set(numbers[:-1])) < len(numbers) - 1:
        raise wrong
    return [after - before for before, after in pairwise(numbers)]


def _training(training: Section, plan: Section, local: int, keys: Keys) -> None:
    length = keys.whole("seq_len")
    length = length if length is not None else int(training.assume("sequence_length", 2048, _DEFAULT))
    whole = keys.whole("global_batch_size", least=-1)
    if whole is None or whole < 1:
        whole = int(training.took("global_batch_size", local * plan["dp"], "local_batch_size × data-parallel degree"))
    else:
        training.took("global_batch_size", whole, "global_batch_size")
    training.took("sequence_length", length, "seq_len")
    steps = keys.whole("steps")
    if steps is not None:
        training.took("tokens", float(steps * whole * length), "steps × batch × seq_len")
    if plan["tp"] > 1:
        plan.took("sequence_parallel", True, "torchtitan's tensor parallelism always")


def _recompute(plan: Section, keys: Keys, layers: int) -> None:
    mode = keys.text("mode")
    _, option = keys.take("selective_ac_option")
    if mode is None:
        mode = plan.assume("recompute", "selective", _DEFAULT)
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise keys.wrong("mode", mode, "must be none, selective or full")
    every = int(str(option)) if str(option).isdecimal() and mode == "selective" else 0
    if every:
        _every(plan, every, layers)
        return
    per_op = mode in ("selective", "memory_budget")
    if per_op and (option not in (None, "op") or mode == "memory_budget"):
        why = "priced as the option op: every other multiply again"
        keys.ledger.ignore("activation_checkpoint.selective_ac_option", option, why, matters=True)
    plan.took("recompute", "per_op" if per_op else mode, f"activation_checkpoint.mode {mode}")


def _every(plan: Section, every: int, layers: int) -> None:
    """Whole layers again, one in so many of each stage (selective_ac_option = "2")."""
    source = f"activation_checkpoint.selective_ac_option {every}"
    here = layers // (plan["pp"] * plan.get("num_chunks", 1))
    number = here // every
    if number == 0:
        plan.took("recompute", "none", f"{source}, and a stage has fewer layers than that")
        return
    plan.took("recompute", "full", source)
    if every == 1:
        return
    plan.took("recompute_method", "block", source)
    plan.took("recompute_num_layers", number, f"{source}, of {here} layers a stage")


def _precision(training: Section, model: Keys, keys: Keys, float8: Keys) -> None:
    _, converters = model.take("converters")
    names = converters if isinstance(converters, list) else []
    eight = any("float8" in str(name) for name in names[:20]) or bool(float8.flag("enable_float8_linear"))
    float8.leave()
    param = keys.text("mixed_precision_param") or "bfloat16"
    if eight:
        training.took("precision", "fp8", "float8 linears")
    elif param in ("bfloat16", "float32"):
        training.took("precision", "bf16" if param == "bfloat16" else "fp32", f"mixed_precision_param {param}")
    else:
        raise keys.wrong("mixed_precision_param", param, "must be bfloat16 or float32")
