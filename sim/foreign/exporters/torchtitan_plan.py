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
        keep = "always" if plan.reshard_after_forward else "never"
        put("fsdp_reshard_after_forward", keep, "plan.reshard_after_forward")
    account.cover("plan.sequence_parallel")
    if plan.tp > 1 and not plan.sequence_parallel:
        why = "its tensor parallelism cuts the sequence too, always"
        account.refuse("plan.sequence_parallel", why, "--set plan.sequence_parallel=true")
    _experts(account, plan, sharded, put)
    _pipeline(account, plan, put)
    _recompute(account, plan, data["activation_checkpoint"])
    for field, nearest in (("offloaded_layers", 0), ("optimizer_offload", 0)):
        if getattr(plan, field):
            why = "it offloads all of FSDP's parameters, gradients and states, or nothing (training.enable_cpu_offload)"
            account.refuse(f"plan.{field}", why, f"--set plan.{field}={nearest}")
    if plan.sequence_slices > 1:
        account.refuse("plan.sequence_slices", "its pipelines take whole sequences", "--set plan.sequence_slices=1")


def _replicas(account: Account, plan: ParallelPlan) -> tuple[int, int]:
    """(degree of replicated, of sharded data parallelism); context-parallel ranks shard together with the latter."""
    copies, stage = plan.num_replicas, plan.zero_stage
    account.cover("plan.zero_stage", "plan.sharding_group", "plan.outer_zero_stage", "plan.reshard_after_forward")
    if copies == 1:
        account.decide("plan.zero_stage", "there is one replica: nothing to shard")
        account.decide("plan.reshard_after_forward", "there is one replica: nothing is gathered")
        return 1, 1
    if stage in (1, 2):
        nearest = "--set plan.zero_stage=3, with plan.reshard_after_forward=false to gather weights once"
        account.refuse("plan.zero_stage", "FSDP shards weights too, and DDP nothing", nearest)
        return 1, -1
    if stage == 0:
        if plan.tp * plan.cp * plan.pp > 1:
            why = "DDP does not go with tensor, context or pipeline parallelism"
            account.refuse("plan.zero_stage", why, "--set plan.zero_stage=3")
        return plan.dp, 1
    if plan.outer_zero_stage:
        why = "sharding groups hold copies of all states"
        account.refuse("plan.outer_zero_stage", why, "--set plan.outer_zero_stage=0")
    group = plan.sharding_group or copies
    if group % plan.cp or group == 1:
        why = f"a group is data_parallel_shard_degree times context_parallel_degree {plan.cp}, and more than one GPU"
        account.refuse("plan.sharding_group", why, f"--set plan.sharding_group={copies}")
        return 1, -1
    if plan.sharding_group == copies:
        account.decide("plan.sharding_group", "all that hold the same part, as without it")
    return copies // group, group // plan.cp


def _experts(account: Account, plan: ParallelPlan, sharded: int, put: Any) -> None:
    account.cover("plan.ep", "plan.etp")
    if not account.scenario.model.num_experts:
        return
    put("expert_parallel_degree", plan.ep, "plan.ep")
    put("expert_tensor_parallel_degree", plan.etp, "plan.etp")
    if plan.ep == 1:
        if plan.tp > 1 and plan.etp == 1:
            why = "without expert parallelism experts are cut like all other matrices"
            account.refuse("plan.etp", why, f"--set plan.etp={plan.tp}")
        return
    least = plan.cp * (plan.tp if plan.etp == 1 else 1)
    most = sharded * least
    if plan.ep % least or most % plan.ep:
        words = "cp · tp" if plan.etp == 1 else "cp"
        why = f"expert_parallel_degree is a multiple of {words} = {least} and divides {words} · shard degree = {most}"
        account.refuse("plan.ep", why, f"--set plan.ep={most if plan.ep > least else least}, or 1")


def _pipeline(account: Account, plan: ParallelPlan, put: Any) -> None:
    known = exporter_table(_KIND)["schedules"]
    account.cover("plan.schedule", "plan.num_chunks", "plan.microbatch_group", "plan.pipeline_layout")
    account.cover("plan.uneven_layers", "plan.embedding_as_layer", "plan.head_as_layer")
    if plan.pp == 1:
        if plan.num_chunks > 1 or plan.schedule not in ("1f1b", "interleaved"):
            why = "without a pipeline each micro-batch goes forward and backward before the next"
            account.refuse("plan.schedule", why, "--set plan.schedule=1f1b --set plan.num_chunks=1")
        return
    name, several = known.get(plan.schedule, (None, False))
    if plan.schedule == "interleaved" and plan.num_chunks == 1:
        account.decide("plan.schedule", "1f1b: with one chunk a rank they are the same")
        name, several = known["1f1b"]
    if name is None:
        nearest = "interleaved" if plan.num_chunks > 1 else "1f1b"
        account.refuse("plan.schedule", f"it has {', '.join(known)}", f"--set plan.schedule={nearest}")
        return
    if several and plan.num_chunks == 1:
        account.refuse("plan.num_chunks", f"{name} holds two or more stages a rank", "--set plan.num_chunks=2")
    if not several and plan.num_chunks > 1:
        account.refuse("plan.num_chunks", f"{name} holds one stage a rank", "--set plan.num_chunks=1")
    put("pipeline_parallel_schedule", name, "plan.schedule")
    if plan.microbatch_group not in (None, plan.pp):
        why = "micro-batches visit a chunk in groups of pp"
        account.refuse("plan.microbatch_group", why, f"--set plan.microbatch_group={plan.pp}")
    elif plan.microbatch_group is not None:
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

    if plan.recompute == "selective":
        why = "what it calls selective recomputes every other multiply"
        account.refuse("plan.recompute", why, "--set plan.recompute=per_op, or full")
    elif plan.recompute == "none":
        put("mode", "none", "plan.recompute")
    elif plan.recompute == "per_op":
        put("mode", "selective", "plan.recompute")
        put("selective_ac_option", "op", "plan.recompute")
    elif plan.recompute_method == "uniform" and plan.recompute_num_layers == 1:
        put("mode", "full", "plan.recompute")
    else:
        every = _one_in(account, plan)
        if every is None:
            why = "it recomputes every layer, or one in so many (selective_ac_option)"
            nearest = "--set plan.recompute_method=uniform --set plan.recompute_num_layers=1"
            account.refuse("plan.recompute_num_layers", why, nearest)
        else:
            put("mode", "selective", "plan.recompute_method")
            put("selective_ac_option", str(every), "plan.recompute_num_layers")


def _one_in(account: Account, plan: ParallelPlan) -> int | None:
    """One layer in how many makes as many again of every stage as the plan says; None where no number does."""
    layers = {*layers_of_stages(account.scenario.model.num_layers, plan)}
    here = layers.pop()
    if plan.recompute_method == "uniform" or layers or not here:
        return None
    every = here // plan.recompute_num_layers
    return every if every and here // every == plan.recompute_num_layers else None
