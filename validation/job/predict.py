"""From building blocks to the step time of a configuration, before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.engines import Timeline, build_program, run
from sim.pricing.cost_model import cost_model
from sim.pricing.scenario import StageCosts, stage_costs
from sim.schedules import build_order
from sim.schedules.passes import visits_per_stage
from sim.specs import Profile, Scenario, build_scenario
from sim.work.operations import Cause
from sim.work.stages import part_params
from validation.job.configs import Configuration, GptShape

#: PyTorch in eager mode: nothing fused but attention and Adam; sends are asynchronous, all else waits.
STACK = {
    "name": "torch eager",
    "attention": "flash",
    "fused_bias_activation": False,
    "fused_cross_entropy": True,
    "fused_gradient_accumulation": False,
    "fused_optimizer": True,
    "gradient_precision": "fp32",
    "p2p_scatter_gather": False,
    "overlap_p2p": True,
    "kernel_launch_s": 0.0,
}
#: What gloo's efficiencies are shares of; only their product counts.
_LOOPBACK = "2 GB/s"


@dataclass(frozen=True, slots=True)
class CalibratedMachine:
    """What was calibrated: kernels and links, the host's times by tensor-parallel degree, cores that are shared.

    cores : as `NodeSpec.cores`, for up to so many processes: [(processes, cores), …], the last for any more. More
        processes than processors also take turns in the caches. Empty where every rank has a device of its own.
    host : by tensor-parallel degree, and whether there are more processes than processors.
    """

    profile: Profile
    node: str
    cores: tuple[tuple[int, float], ...]
    host: dict[tuple[int, bool], dict[str, float]]

    def host_for(self, tp: int, processes: int) -> dict[str, float]:
        """Host times of a process, one of so many."""
        crowded = (tp, bool(self.cores) and processes > self.cores[0][0])
        return self.host[crowded if crowded in self.host else (tp, False)]

    def cores_for(self, processes: int) -> float | None:
        """Cores that a job of so many processes shares."""
        fitting = [cores for most, cores in self.cores if processes <= most] or [cores for _, cores in self.cores[-1:]]
        return fitting[0] if fitting else None


def scenario_of(
    shape: GptShape, cut: Configuration, node: str, profile: Profile | str, cores: float | None = None
) -> Scenario:
    """The question the simulator is asked."""
    machine: dict[str, Any] = {"preset": node}
    if cores is not None:
        machine |= {"cores": cores, "nvlink_bandwidth": _LOOPBACK}
    description: dict[str, Any] = {
        "name": cut.name,
        "model": {
            "num_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "num_heads": shape.num_heads,
            "vocab_size": shape.vocab_size,
            "max_sequence_length": shape.sequence_length,
            "tied_embeddings": False,
        },
        "cluster": {"name": "this machine", "node": machine, "num_nodes": 1},
        "plan": {
            **{name: getattr(cut, name) for name in ("tp", "pp", "dp", "microbatch_size", "schedule", "num_chunks")},
            "recompute": cut.recompute,
            "zero_stage": 1 if cut.dp > 1 else 0,
        },
        "training": {
            "global_batch_size": cut.global_batch_size,
            "sequence_length": shape.sequence_length,
            "precision": "fp32",
        },
        "stack": STACK,
        "profile": profile if isinstance(profile, str) else profile.model_dump(),
    }
    return build_scenario(description, where="job")


def predict(shape: GptShape, cut: Configuration, machine: CalibratedMachine) -> Timeline:
    """Simulate one step of a configuration."""
    cores = machine.cores_for(cut.num_ranks)
    scenario = scenario_of(shape, cut, machine.node, machine.profile, cores)
    order = build_order(cut.schedule, cut.pp, cut.num_chunks, cut.microbatches)
    priced = stage_costs(scenario, visits_per_stage(order), order.rank_of_stage)
    costs = with_host(priced, scenario, machine, order.rank_of_stage)
    waiting = 0.0 if cores is None else machine.host_for(min(cut.tp, 2), cut.num_ranks)["waiting"]
    idle = (waiting * costs.forward[Cause.HOST], waiting * costs.backward.get(Cause.HOST, 0.0 * costs.forward_s))
    costs = with_flat_buffers(costs, scenario)
    program = build_program(order, costs, cores=cores, twins=cut.tp * cut.dp, idle_per_stage=idle)
    return run(program, "dag" if cores is None else "shared")


def with_host(costs: StageCosts, scenario: Scenario, machine: CalibratedMachine, home: np.ndarray) -> StageCosts:
    """Add the host's time, which kernels on a CPU do not hide.

    On a GPU the kernels run behind the host; there only what exceeds them would show, which `stack.kernel_launch_s`
    is for, and nothing is added here.
    """
    if not machine.cores:
        return costs
    plan = scenario.plan
    host = machine.host_for(min(plan.tp, 2), plan.num_gpus)
    layers = np.array([stage.num_layers for stage in costs.stages], dtype=float)
    forward = layers * host["layer_forward_s"] + host["visit_forward_s"]
    backward = layers * host["layer_backward_s"] + host["visit_backward_s"]
    if plan.recompute == "full":
        backward = backward + layers * host["layer_forward_s"]
    # Sharded or cut, parameters are DTensors, and the optimizer unpacks each of them.
    updating = machine.host_for(2 if plan.tp * plan.dp > 1 else 1, plan.num_gpus)
    per_rank = np.bincount(home, layers)
    return replace(
        costs,
        forward={**costs.forward, Cause.HOST: costs.forward[Cause.HOST] + forward},
        backward={**costs.backward, Cause.HOST: backward},
        optimizer_s=costs.optimizer_s + per_rank * updating["layer_update_s"] + updating["update_s"],
    )


def with_flat_buffers(costs: StageCosts, scenario: Scenario) -> StageCosts:
    """Add what FSDP2 copies around its two collectives: parameters move through flat buffers.

    Before the gather a shard is copied in, after it the whole is copied out; before the scatter the gradients are
    copied in, after it the shard is divided and added to the one that is kept.
    """
    plan, model = scenario.plan, scenario.model
    if plan.dp == 1:
        return costs
    compute = cost_model(scenario).compute
    width = scenario.training.activation_bytes
    held = np.zeros(plan.pp)
    for stage in costs.stages:
        held[stage.index % plan.pp] += width * part_params(stage.part, model, plan.tp)
    rate = compute.memory_bandwidth("copy")
    return replace(
        costs,
        gather_s=costs.gather_s + (2 * held / plan.dp + 2 * held) / rate,
        reduce_s=costs.reduce_s + (2 * held + 5 * held / plan.dp) / rate,
    )
