"""torchtitan's configuration: TOML, the JSON that it dumps, or Python. Names are those of pytorch/torchtitan's job
config, with the older places of the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import (
    Foreign,
    Given,
    cluster_of,
    cluster_section,
    fewest_gpus,
    replicas,
    take_optimizer,
)
from sim.foreign.importers.keys import MOST, Keys
from sim.foreign.importers.ledger import Ledger, Section
from sim.foreign.importers.pipeline_layouts import note_flushes, take_repeated
from sim.foreign.importers.recipes.finetuning import adapted
from sim.foreign.importers.recipes.recipe import whole_shape
from sim.foreign.importers.torchtitan.model import KIND, read_flavor
from sim.foreign.importers.torchtitan.pipeline import DEFAULT, take_pipeline
from sim.foreign.importers.torchtitan.python_config import settings_in_python
from sim.foreign.importers.torchtitan.stack import read_stack, take_precision, take_update
from sim.specs.hardware import ClusterSpec

_SECTIONS = ("parallelism", "training", "activation_checkpoint", "job")


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
    keys = Keys(file.data if file.data is not None else settings_in_python(file), ledger, KIND)
    model_keys, training_keys = keys.section("model"), keys.section("training")
    cut, recompute = keys.section("parallelism"), keys.section("activation_checkpoint")
    experimental = keys.section("experimental")
    model: Any = file.model if file.model is not None else read_flavor(model_keys)
    model = _further_tokens(model, model_keys, ledger)
    shape = whole_shape(model)
    name, cluster = cluster_of(given, ledger)
    plan, training = Section("plan", ledger), Section("training", ledger, sequence_length=None)
    replicated, sharded = _degrees(plan, (cut, training_keys, experimental))
    _experts(plan, cut, shape)
    gpus = _gpus(plan, replicated, sharded, shape, cluster, given)
    _replicas(plan, gpus, replicated, sharded, cut)
    local = training_keys.whole("local_batch_size", "batch_size")
    local = local if local is not None else ledger.assume("training.local_batch_size", 8, DEFAULT)
    take_pipeline(plan, local, cut, experimental, shape)
    _training(training, plan, local, training_keys, cut)
    _recompute(plan, recompute, int(shape["num_layers"]))
    optimizer = keys.section("optimizer")
    take_optimizer(training, optimizer.text("name"), "optimizer.name")
    stack = read_stack(keys, training_keys, model_keys, cut, plan)
    take_precision(training, stack, model_keys, training_keys, keys)
    take_update(stack, optimizer)
    _adapters(training, model_keys.section("adapters"))
    for part in (model_keys, training_keys, cut, recompute, experimental, keys):
        part.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def _further_tokens(model: Any, keys: Keys, ledger: Ledger) -> Any:
    """Modules of multi-token prediction, which torchtitan trains where its registry is asked for them."""
    asked = keys.whole("num_mtp_layers", least=0) or 0
    if not asked and not whole_shape(model).get("num_mtp_layers"):
        return model
    section = Section("model", ledger, **({"preset": model} if isinstance(model, str) else model))
    if asked:
        section.took("num_mtp_layers", asked, "num_mtp_layers")
    elif section.get("num_mtp_layers") != 0:
        section.assume("num_mtp_layers", 0, "torchtitan trains no multi-token prediction unless asked")
    return section


def _adapters(training: Section, adapters: Keys) -> None:
    """Low-rank adapters, of LoRAConverter."""
    rank = adapters.whole("rank")
    if rank is not None:
        training.took("adapter_rank", rank, "rank of LoRAConverter")
    _, targets = adapters.take("target_modules")
    if isinstance(targets, list) and rank is not None:
        source = "target_modules of LoRAConverter"
        training.took("adapter_targets", adapted(map(str, targets), source, training), source)
    adapters.leave()


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
        for name, value in (("expert_parallel_degree", degree), ("expert_tensor_parallel_degree", of_tensor)):
            if value is not None and value > 1:
                cut.ledger.ignore(f"parallelism.{name}", value, "the model has no experts")
        return
    plan.settle("ep", degree, "expert_parallel_degree", 1, DEFAULT)
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
    policy = cut.text("fsdp_reshard_after_forward")
    if plan["dp"] * plan["cp"] == replicated and sharded in (1, -1) and replicated > 1:
        plan.took("zero_stage", 0, "data_parallel_replicate_degree alone: nothing is sharded")
        if policy is not None:
            cut.ledger.ignore("parallelism.fsdp_reshard_after_forward", policy, "nothing is sharded")
        return
    policy = policy or "default"
    if policy not in ("default", "always", "never"):
        raise cut.wrong("fsdp_reshard_after_forward", policy, "must be default, always or never")
    plan.took("zero_stage", 3, "FSDP is torchtitan's data parallelism")
    said: dict[str, Any] = {"always": True, "never": False}
    plan.took("reshard_after_forward", said.get(policy, policy), f"fsdp_reshard_after_forward {policy}")
    if replicated > 1:
        group = plan["dp"] * plan["cp"] // replicated
        plan.took("sharding_group", group, f"data_parallel_replicate_degree {replicated}")


def _training(training: Section, plan: Section, local: int, keys: Keys, cut: Keys) -> None:
    length = keys.whole("seq_len")
    length = length if length is not None else int(training.assume("sequence_length", 2048, DEFAULT))
    whole = keys.whole("global_batch_size", least=-1)
    if whole is None or whole < 1:
        whole = int(training.took("global_batch_size", local * plan["dp"], "local_batch_size × data-parallel degree"))
    else:
        training.took("global_batch_size", whole, "global_batch_size")
    training.took("sequence_length", length, "seq_len")
    if plan["pp"] > 1:  # torchtitan/train.py, train_step: pp_schedule.step() once a local batch
        note_flushes(training.ledger, "training.local_batch_size", local, plan["dp"], whole)
    steps = keys.whole("steps")
    if steps is not None:
        training.took("tokens", float(steps * whole * length), "steps × batch × seq_len")
    cut_too = cut.flag("enable_sequence_parallel") is not False
    if plan["tp"] > 1:
        source = "torchtitan's tensor parallelism, unless told otherwise" if cut_too else "enable_sequence_parallel"
        plan.took("sequence_parallel", cut_too, source)
    elif not cut_too:
        why = "without effect at a tensor-parallel degree of 1"
        plan.ledger.ignore("parallelism.enable_sequence_parallel", False, why)


def _recompute(plan: Section, keys: Keys, layers: int) -> None:
    mode = keys.text("mode")
    _, option = keys.take("selective_ac_option")
    if mode is None:
        mode = plan.assume("recompute", "selective", DEFAULT)
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise keys.wrong("mode", mode, "must be none, selective or full")
    every = int(str(option)) if str(option).isdecimal() and mode == "selective" else 0
    if every:
        _every(plan, every, layers)
        return
    per_op = mode in ("selective", "memory_budget")
    if option is not None and not per_op:
        why = f"without effect with activation_checkpoint.mode {mode}"
        keys.ledger.ignore("activation_checkpoint.selective_ac_option", option, why)
    if per_op and (option not in (None, "op") or mode == "memory_budget"):
        why = "priced as the option op: every other multiply again"
        keys.ledger.ignore("activation_checkpoint.selective_ac_option", option, why, matters=True)
    plan.took("recompute", "per_op" if per_op else mode, f"activation_checkpoint.mode {mode}")


def _every(plan: Section, every: int, layers: int) -> None:
    """Whole layers again, one in so many of each stage (selective_ac_option = "2")."""
    source = f"activation_checkpoint.selective_ac_option {every}"
    here = layers // (plan["pp"] * plan.get("num_chunks", 1))
    take_repeated(plan, here // every, here, source)
