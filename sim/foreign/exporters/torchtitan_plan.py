"""The plan in torchtitan's keys: degrees, pipeline, activation checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table
from sim.specs.dealing import layers_of_stages
from sim.specs.plan import ParallelPlan

Sections = dict[str, dict[str, Any]]
_KIND = "torchtitan"


def say_plan(account: Account, data: Sections) -> None:
    """Keys of the plan; what torchtitan cannot run is refused."""
    plan = account.scenario.plan

    def put(key: str, value: Any, *fields: str) -> None:
        data["parallelism"][key] = value
        account.say(f"parallelism.{key}", value, *fields)

    for field, name in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        put(f"{name}_parallel_degree", getattr(plan, field), f"plan.{field}")
    replicated, sharded = _replicas(account, plan)
    put("data_parallel_replicate_degree", replicated, "plan.dp", "plan.sharding_group")
    put("data_parallel_shard_degree", sharded, "plan.dp", "plan.zero_stage")
    if plan.zero_stage == 3:
        stated = plan.reshard_after_forward
        keep = stated if isinstance(stated, str) else "always" if stated else "never"
        put("fsdp_reshard_after_forward", keep, "plan.reshard_after_forward")
    account.cover("plan.sequence_parallel")
    _experts(account, plan, put)
    _pipeline(account, plan, put)
    _recompute(account, plan, data["activation_checkpoint"])
    account.cover("plan.offloaded_layers", "plan.optimizer_offload", "plan.sequence_slices")


def _replicas(account: Account, plan: ParallelPlan) -> tuple[int, int]:
    """(degree of replicated, of sharded data parallelism); context-parallel ranks shard together with the latter."""
    copies, stage = plan.num_replicas, plan.zero_stage
    account.cover("plan.zero_stage", "plan.sharding_group", "plan.outer_zero_stage", "plan.reshard_after_forward")
    if copies == 1:
        account.decide("plan.zero_stage", "there is one replica: nothing to shard")
        account.decide("plan.reshard_after_forward", "there is one replica: nothing is gathered")
        return 1, 1
    if stage == 0:
        return plan.dp, 1
    group = plan.sharding_group or copies
    if plan.sharding_group == copies:
        account.decide("plan.sharding_group", "all that hold the same part, as without it")
    return copies // group, group // plan.cp


def _experts(account: Account, plan: ParallelPlan, put: Any) -> None:
    account.cover("plan.ep", "plan.etp")
    if not account.scenario.model.num_experts:
        return
    put("expert_parallel_degree", plan.ep, "plan.ep")
    put("expert_tensor_parallel_degree", plan.etp, "plan.etp")


def _pipeline(account: Account, plan: ParallelPlan, put: Any) -> None:
    known = exporter_table(_KIND)["schedules"]
    account.cover("plan.schedule", "plan.num_chunks", "plan.microbatch_group", "plan.pipeline_layout")
    account.cover("plan.uneven_layers", "plan.embedding_as_layer", "plan.head_as_layer")
    if plan.pp == 1:
        return
    if plan.schedule == "interleaved" and plan.num_chunks == 1:
        account.decide("plan.schedule", "1f1b: with one chunk a rank they are the same")
        plan = plan.replace(schedule="1f1b")
    name, several = known.get(plan.schedule, (plan.schedule, False))
    put("pipeline_parallel_schedule", name, "plan.schedule")
    if plan.microbatch_group is not None:
        account.decide("plan.microbatch_group", "pp, as without it")
    model = account.scenario.model
    layers = layers_of_stages(model.num_layers, plan)
    dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
    if plan.pipeline_layout or dealt % plan.num_stages:
        put("module_fqns_per_model_part", stage_modules(layers), "plan.pipeline_layout", "plan.uneven_layers")
        return
    put("pipeline_parallel_first_stage_less_layers", int(plan.embedding_as_layer), "plan.embedding_as_layer")
    put("pipeline_parallel_last_stage_less_layers", int(plan.head_as_layer), "plan.head_as_layer")
    if several:
        put("pipeline_parallel_layers_per_stage", dealt // plan.num_stages, "plan.num_chunks")
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


def _recompute(account: Account, plan: ParallelPlan, keys: dict[str, Any]) -> None:
    account.cover("plan.recompute", "plan.recompute_modules", "plan.recompute_method", "plan.recompute_num_layers")

    def put(key: str, value: str, *fields: str) -> None:
        keys[key] = value
        account.say(f"activation_checkpoint.{key}", value, *fields)

    if plan.recompute == "none":
        put("mode", "none", "plan.recompute")
    elif plan.recompute == "per_op":
        put("mode", "selective", "plan.recompute")
        put("selective_ac_option", "op", "plan.recompute")
    elif plan.recompute_method == "uniform" and plan.recompute_num_layers == 1:
        put("mode", "full", "plan.recompute")
    else:
        every = account.scenario.model.num_layers // plan.num_stages // plan.recompute_num_layers
        put("mode", "selective", "plan.recompute_method")
        put("selective_ac_option", str(every), "plan.recompute_num_layers")
