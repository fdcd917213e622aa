"""Predict the step time of a configuration from its building blocks, before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.cores import Processes
from flopcast_validation.job.model import expert_width
from sim.arrays import Floats, Ints
from sim.costs.block import BACKWARD, FORWARD, INPUT_GRAD
from sim.engines import Program, Timeline, run
from sim.pricing.layouts import cost_model
from sim.pricing.stages import StageSeconds, stage_costs
from sim.schedules import build_order
from sim.specs import Profile, Scenario, build_scenario
from sim.work.operations import Cause
from sim.work.sums import part_params

#: PyTorch in eager mode: nothing fused but attention and Adam; sends are asynchronous, all else waits. Keys and values
#: are gathered before attention, logits before the loss.
STACK: dict[str, Any] = {
    "name": "torch eager",
    "attention": "flash",
    "fused_bias_activation": False,
    "fused_cross_entropy": True,
    "vocab_parallel_loss": False,
    "fused_gradient_accumulation": False,
    "fused_optimizer": True,
    "gradient_precision": "fp32",
    "p2p_scatter_gather": False,
    "overlap_p2p": True,
    "overlap_context": False,
    "kernel_launch_s": 0.0,
}
#: With 16-bit weights gradients are kept as they are, and logits are cast to fp32 for the loss.
_STACK_BF16 = {"gradient_precision": "bf16", "fused_cross_entropy": False}
#: FSDP gathers the next layer's weights and reduces the last one's gradients on streams of their own.
_STACK_GPU = {"overlap_param_gather": True, "overlap_grad_reduce": True}
#: What gloo's efficiencies are shares of; only their product counts.
_LOOPBACK = "2 GB/s"


@dataclass(frozen=True, slots=True)
class CalibratedMachine:
    """What was calibrated: kernels and links, the host's times by kind of layer, cores that are shared.

    cores : as `NodeSpec.cores`, for up to so many processes: [(processes, cores), …], the last for any more. More
        processes than processors also take turns in the caches. Empty where every rank has a device of its own.
    host : by the smallest cut with such layers (`Configuration.passes_block`), and whether there are more processes
        than processors.
    nodes : machines there are, and ranks on each, where these are fewer than its GPUs; None: one machine.
    """

    profile: Profile
    node: str
    cores: tuple[tuple[int, float], ...]
    host: dict[tuple[Configuration, bool], dict[str, float]]
    nodes: tuple[int, int] | None = None

    def host_for(self, block: Configuration, processes: int) -> dict[str, float]:
        """Host times of a process, one of so many; those of uncut layers where one rank was all there was."""
        crowded = bool(self.cores) and processes > self.cores[0][0]
        tried = ((block, crowded), (block, False), (Configuration(), False))
        return next(self.host[each] for each in tried if each in self.host)

    def cores_for(self, processes: int) -> float | None:
        """Cores that a job of so many processes shares."""
        fitting = [cores for most, cores in self.cores if processes <= most] or [cores for _, cores in self.cores[-1:]]
        return fitting[0] if fitting else None


def scenario_of(
    shape: GptShape,
    cut: Configuration,
    node: str,
    profile: Profile | str,
    cores: float | None = None,
    nodes: tuple[int, int] | None = None,
) -> Scenario:
    """The question the simulator is asked.

    `cores` are those that processes share on a CPU (None where every rank has a device), `nodes` the machines and the
    ranks on each (default: one machine).
    """
    num_nodes, per_node = nodes or (1, None)
    machine = {"preset": node} | ({"gpus_per_node": per_node} if per_node else {})
    if cores is not None:
        machine |= {"cores": cores, "nvlink_bandwidth": _LOOPBACK}
    stack = STACK | (_STACK_GPU if cores is None else {}) | (_STACK_BF16 if shape.precision == "bf16" else {})
    sizes = {name: getattr(shape, name) for name in ("num_layers", "hidden_size", "num_heads", "vocab_size")}
    if cut.num_experts:
        sizes |= {"num_experts": cut.num_experts, "experts_per_token": cut.experts_per_token}
        sizes |= {"expert_intermediate_size": expert_width(shape, cut)}
    names = ("tp", "cp", "pp", "dp", "ep", "microbatch_size", "schedule", "num_chunks", "recompute")
    plan = {name: getattr(cut, name) for name in names}
    batch = {"global_batch_size": cut.global_batch_size, "sequence_length": shape.sequence_length}
    description: dict[str, Any] = {
        "name": cut.name,
        "model": {**sizes, "max_sequence_length": shape.sequence_length, "tied_embeddings": False},
        "cluster": {"name": "this machine", "node": machine, "num_nodes": num_nodes},
        "plan": {**plan, "zero_stage": cut.zero_stage if cut.num_replicas > 1 else 0},
        "training": {**batch, "precision": shape.precision},
        "stack": stack,
        "profile": profile if isinstance(profile, str) else profile.model_dump(),
    }
    return build_scenario(description, where="job")


def predict(shape: GptShape, cut: Configuration, machine: CalibratedMachine) -> Timeline:
    """Simulate one step of a configuration."""
    cores = machine.cores_for(cut.num_ranks)
    scenario = scenario_of(shape, cut, machine.node, machine.profile, cores, machine.nodes)
    order = build_order(cut.schedule, cut.pp, cut.num_chunks, cut.microbatches)
    home = order.rank_of_stage
    priced = with_update(stage_costs(scenario, home), scenario, home)
    costs = (with_host_behind if cores is None else with_host)(priced, cut, machine, home)
    idle = None
    if cores is not None:
        waiting = machine.host_for(cut.passes_block(), cut.num_ranks)["waiting"]
        idle = (waiting * costs.passes[FORWARD, Cause.HOST], waiting * costs.passes[BACKWARD, Cause.HOST])
    costs = with_flat_buffers(costs, scenario, home)
    if cores is None:
        return run(Program(order, costs))
    return Processes(Program(order, costs), cores, cut.num_replicas * cut.tp, idle).run()


def with_update(costs: StageSeconds, scenario: Scenario, home: Ints) -> StageSeconds:
    """The update as the job runs it: no gradient norm; Adam in fp32, casts around it, and what pipelines divide.

    Adam reads a gradient, and reads and writes a weight and two moments: 28 bytes a parameter. Gradients are zeroed
    beforehand, and divided by the number of micro-batches. Beside 16-bit weights they are cast, and the masters back.
    """
    plan, compute = scenario.plan, cost_model(scenario).compute
    held, alone = held_params(costs, scenario, home)
    updated = (held - alone) / plan.num_replicas + alone
    width = scenario.training.activation_bytes
    casts = 2 * (width + 4) if width == 2 else 0
    passes = casts + width + 2 * width * (scenario.num_microbatches > 1)
    seconds = updated * (28 / compute.memory_bandwidth("adam") + passes / compute.memory_bandwidth("copy"))
    return replace(costs, optimizer_s=seconds)


def held_params(costs: StageSeconds, scenario: Scenario, home: Ints) -> tuple[Floats, Floats]:
    """Parameters of every pipeline rank before replicas share them out: all, and of experts that one device has alone.

    home : which rank holds each stage.
    """
    plan, model = scenario.plan, scenario.model
    held, alone = np.zeros((2, plan.pp))
    for rank, stage in zip(home, costs.stages, strict=True):
        held[rank] += part_params(stage.part, model, plan.tp, plan.ep)
        alone[rank] += part_params(stage.part, model, 1, plan.ep, experts=True) * (plan.ep > 1)
    return held, alone


def _host_work(
    costs: StageSeconds, cut: Configuration, machine: CalibratedMachine, home: Ints
) -> tuple[Floats, Floats, Floats]:
    """The host's time for a forward and a backward of every stage, and for every rank's update.  [s]"""
    host = machine.host_for(cut.passes_block(), cut.num_ranks)
    layers = np.array([stage.num_layers for stage in costs.stages], dtype=float)
    forward = layers * host["layer_forward_s"] + host["visit_forward_s"] + host["runner_s"] / 2
    backward = layers * host["layer_backward_s"] + host["visit_backward_s"] + host["runner_s"] / 2
    if cut.recompute == "full":
        backward = backward + layers * host["layer_forward_s"]
    updating = machine.host_for(cut.update_block(), cut.num_ranks)
    per_rank = np.bincount(home, layers)
    return forward, backward, per_rank * updating["layer_update_s"] + updating["update_s"]


def with_host(costs: StageSeconds, cut: Configuration, machine: CalibratedMachine, home: Ints) -> StageSeconds:
    """Add the host's time, which kernels on a CPU do not hide."""
    forward, backward, update = _host_work(costs, cut, machine, home)
    return replace(_lengthened(costs, Cause.HOST, forward, backward), optimizer_s=costs.optimizer_s + update)


def _lengthened(costs: StageSeconds, cause: Cause, forward: Floats, backward: Floats) -> StageSeconds:
    """Stages whose forwards and backwards take more for a cause, backwards before their weights' gradient.  [s]"""
    passes = costs.passes.copy()
    passes[[FORWARD, BACKWARD, INPUT_GRAD], cause] += (forward, backward, backward)
    return replace(costs, passes=passes)


def with_host_behind(
    costs: StageSeconds, cut: Configuration, machine: CalibratedMachine, home: np.ndarray
) -> StageSeconds:
    """Let no visit be over before the host has launched it: on a GPU kernels run behind the host.

    A visit takes what its kernels and collectives take, or the host, whichever is longer; what the GPU waits is put
    down as the host's.
    """
    forward, backward, update = _host_work(costs, cut, machine, home)
    waits = (np.maximum(0.0, forward - costs.forward_s), np.maximum(0.0, backward - costs.backward_s))
    return replace(_lengthened(costs, Cause.HOST, *waits), optimizer_s=np.maximum(costs.optimizer_s, update))


def with_flat_buffers(costs: StageSeconds, scenario: Scenario, home: Ints) -> StageSeconds:
    """Add what FSDP2 copies around its two collectives: parameters move through flat buffers.

    Before the gather a shard is copied in, after it the whole is copied out; before the scatter the gradients are
    copied in, after it the shard is divided and added to the one that is kept. With ZeRO stage 3 a forward gathers,
    and a backward gathers again and scatters; otherwise each is done once a step.
    """
    plan = scenario.plan
    if plan.num_replicas == 1:
        return costs
    held, alone = held_params(costs, scenario, home)
    moved = scenario.training.activation_bytes * (held - alone)
    rate = cost_model(scenario).compute.memory_bandwidth("copy")
    gather = (2 * moved / plan.num_replicas + 2 * moved) / rate
    reduce = (2 * moved + 5 * moved / plan.num_replicas) / rate
    if plan.zero_stage < 3:
        return replace(costs, gather_s=costs.gather_s + gather, reduce_s=costs.reduce_s + reduce)
    return _lengthened(costs, Cause.DATA_PARALLEL, gather, gather + reduce)
