"""Seconds of one block (a layer, the embedding, the head) and one micro-batch, by what they are spent on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sim.costs.collectives import Fabric, collective_time
from sim.costs.compute import ComputeModel
from sim.network.placement import Group, context_group, expert_group, tensor_group
from sim.specs import GpuSpec, Profile, Scenario
from sim.work.layers import layer_work
from sim.work.operations import BlockWork, Cause, Collective, Number, Phase
from sim.work.pieces import Cut

Array = np.ndarray
Groups = dict[str, Group]
"""Group of every kind of collective inside a layer: tp, cp, ep."""


class Part(StrEnum):
    """What a stage spends its busy time on."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    MEMORY_BOUND = "memory_bound"
    LOGITS = "logits"
    RECOMPUTE = "recompute"
    HOST = "host_wait"
    TENSOR_PARALLEL = "tensor_parallel_comm"
    CONTEXT_PARALLEL = "context_parallel_comm"
    EXPERT_PARALLEL = "expert_parallel_comm"
    DATA_PARALLEL = "data_parallel_comm"


_PART_OF = {
    Cause.MATMUL: Part.MATMUL,
    Cause.ATTENTION: Part.ATTENTION,
    Cause.MEMORY_BOUND: Part.MEMORY_BOUND,
    Cause.LOGITS: Part.LOGITS,
}


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Seconds of one block (layer, embedding or head), as in StageCosts; floats, or arrays over cuts. [s]"""

    forward: dict[Part, Number]
    backward: dict[Part, Number]
    at_peak: dict[Part, Number]
    weight_grad: Number

    @property
    def forward_s(self) -> Number:
        """Forward of one micro-batch. [s]"""
        return sum(self.forward.values())

    @property
    def backward_s(self) -> Number:
        """Backward of one micro-batch. [s]"""
        return sum(self.backward.values())


def cut_of(scenario: Scenario) -> Cut:
    """The scenario's Cut."""
    plan, training = scenario.plan, scenario.training
    return Cut(
        tp=plan.tp,
        microbatch_size=plan.microbatch_size,
        sequence_length=training.sequence_length,
        sequence_parallel=plan.sequence_parallel,
        recompute=plan.recompute,
        width=training.activation_bytes,
        cp=plan.cp,
        fp8=training.precision == "fp8",
        slices=plan.sequence_slices,
        ep=plan.ep,
    )


def pricing(scenario: Scenario) -> tuple[Cut, ComputeModel, Fabric]:
    """What turns the scenario's counts into seconds."""
    cut = cut_of(scenario)
    stack, measured = scenario.stack, scenario.profile.host.kernel_launch_s
    compute = ComputeModel(
        scenario.cluster.gpu,
        _sustained(scenario.profile, scenario.cluster.gpu),
        scenario.training.precision,
        cut.width,
        stack.kernel_launch_s if measured is None else measured,
        stack.backward_launch_s if measured is None else measured,
        stack.collective_launch_s if measured is None else measured,
        stack.elementwise_rate,
        stack.flash_version,
    )
    return cut, compute, Fabric.of(scenario.cluster, scenario.profile)


def _sustained(profile: Profile, gpu: GpuSpec) -> Profile:
    """The profile with multiplies at the clock that the GPU keeps."""
    if gpu.sustained_clock == 1.0:
        return profile
    gemm = profile.gemm
    slower = gemm.model_copy(update={"max_efficiency": gemm.max_efficiency * gpu.sustained_clock})
    return profile.model_copy(update={"gemm": slower})


def model_groups(scenario: Scenario) -> Groups:
    """The groups over which one layer of the scenario is cut."""
    plan, cluster = scenario.plan, scenario.cluster
    placed = {"tp": tensor_group, "cp": context_group, "ep": expert_group}
    return {name: place(plan, cluster) for name, place in placed.items()}


def block_costs(work: BlockWork, compute: ComputeModel, groups: Groups, fabric: Fabric) -> BlockCosts:
    """Seconds of one block, tensor- and context-parallel communication included.

    A collective that may overlap hides behind the block's gradient multiplies, and lengthens the backward only by what
    is left over and what it takes from the kernels beside it: never by more than doing one after the other. Broadcasts
    over the numbers of the cut and over groups.
    """
    return costs_by_recompute((work,), compute, groups, fabric)[0]


def costs_by_recompute(
    works: Sequence[BlockWork], compute: ComputeModel, groups: Groups, fabric: Fabric
) -> list[BlockCosts]:
    """As `block_costs`, of one block under several ways to recompute; what they share is priced once.

    Parameters
    ----------
    works : sequence of BlockWork
        As `sim.work.layers.layer_works` gives them: they differ in what they run again only.
    """
    work = works[0]
    forward = _phase(work.forward, compute, groups, fabric)
    _add_exposed_tokens(forward, (work.forward,), groups, fabric)
    input_grad = _phase(work.input_grad, compute, groups, fabric)
    weight_grad = _phase(work.weight_grad, compute, groups, fabric)
    gradients: dict[Part, Number] = {}
    for part in (input_grad, weight_grad):
        for name, seconds in part.items():
            gradients[name] = gradients.get(name, 0.0) + seconds
    beside = _collective_time(work.input_grad, groups["tp"], fabric, overlapped=True)
    nbytes = sum(item.nbytes for item in _of_tensor(work.input_grad, overlapped=True))
    budget = sum(weight_grad.values()) + input_grad.get(Part.MATMUL, 0.0)
    exposed = fabric.exposed(groups["tp"], nbytes, beside, budget)
    gradients[Part.TENSOR_PARALLEL] = gradients.get(Part.TENSOR_PARALLEL, 0.0) + exposed
    _add_exposed_tokens(gradients, (work.input_grad, work.weight_grad), groups, fabric)
    talk = {name: np.asarray(group.size) > 1 for name, group in groups.items()}
    # Launches run ahead of the GPU, but not past a wait: for the slowest host of a tensor-parallel group, or for the
    # GPU's word how many tokens come to each expert.
    ahead = ~talk["tp"] & (not any(item.group == "ep" for item in work.forward.collectives))
    of_forward = compute.host_time((work.forward,), talk)
    of_gradients = compute.host_time((work.input_grad, work.weight_grad), talk, backward=True)
    weight_share = compute.host_time((work.weight_grad,), talk, backward=True) / np.maximum(of_gradients, 1e-30)
    at_peak: dict[Part, Number] = {}
    for operation in (*work.forward.operations, *work.input_grad.operations, *work.weight_grad.operations):
        name = _PART_OF[operation.cause]
        at_peak[name] = at_peak.get(name, 0.0) + operation.flop / compute.peak(operation)
    answers = []
    for each in works:
        assert each.forward is work.forward
        whole = each.recompute is work.forward
        first, second = dict(forward), dict(gradients)
        again = dict(forward) if whole else _phase(each.recompute, compute, groups, fabric)
        if not whole:
            _add_exposed_tokens(again, (each.recompute,), groups, fabric)
        launches = (of_forward, of_forward if whole else compute.host_time((each.recompute,), talk), of_gradients)
        waited = _wait_for_host((first, again, second), launches, ahead)[-1]
        second[Part.RECOMPUTE] = sum(again.values())
        answers.append(BlockCosts(first, second, at_peak, sum(weight_grad.values()) + weight_share * waited))
    return answers


def _wait_for_host(passes: Sequence[dict[Part, Number]], launches: Sequence[Number], ahead: Array) -> list[Number]:
    """Add to the passes what the GPU waits where their kernels and collectives are shorter than their launches.

    Launches may run ahead of the GPU: what the host gains in a pass whose kernels are long, it has in hand in the next.
    What is recomputed and the gradients, which follow it at once, count as one.
    Where they may not (`ahead`: tensor-parallel ranks wait at every collective for the slowest of their hosts) nothing
    is gained.
    """
    short = [host - sum(parts.values()) for parts, host in zip(passes, launches, strict=True)]
    of_forward, of_backward = np.maximum(0.0, short[0]), np.maximum(0.0, short[1] + short[2])
    in_hand = np.maximum(0.0, sum(short)) / np.maximum(of_forward + of_backward, 1e-30)
    pooled = of_forward * in_hand, 0.0, of_backward * in_hand
    waits = [np.where(ahead, some, np.maximum(0.0, own)) for some, own in zip(pooled, short, strict=True)]
    for parts, waited in zip(passes, waits, strict=True):
        if np.any(waited):
            parts[Part.HOST] = waited
    return waits


def _phase(phase: Phase, compute: ComputeModel, groups: Groups, fabric: Fabric) -> dict[Part, Number]:
    parts = {_PART_OF[cause]: seconds for cause, seconds in compute.phase_time(phase).items()}
    communication = _collective_time(phase, groups["tp"], fabric, overlapped=False)
    if np.any(communication):
        parts[Part.TENSOR_PARALLEL] = communication
    tokens = sum(collective_time(item, groups["ep"], fabric) for item in of_experts(phase, overlapped=False))
    if np.any(tokens):
        parts[Part.EXPERT_PARALLEL] = tokens
    exchange = _context_time(phase, parts.get(Part.ATTENTION, 0.0), groups["cp"], fabric)
    if np.any(exchange):
        parts[Part.CONTEXT_PARALLEL] = exchange
    return parts


def _of_tensor(phase: Phase, overlapped: bool) -> Iterator[Collective]:
    return (item for item in phase.collectives if item.group == "tp" and item.overlapped is overlapped)


def _collective_time(phase: Phase, group: Group, fabric: Fabric, overlapped: bool) -> Number:
    chosen = _of_tensor(phase, overlapped)
    return sum(collective_time(item, group, fabric) for item in chosen)


def of_experts(phase: Phase, overlapped: bool) -> list[Collective]:
    """The phase's exchanges of tokens, those that compute waits for or those beside it."""
    return [item for item in phase.collectives if item.group == "ep" and item.overlapped is overlapped]


def _add_exposed_tokens(parts: dict[Part, Number], phases: Sequence[Phase], groups: Groups, fabric: Fabric) -> None:
    """What tokens on their way beside another micro-batch's computation add to a pass of as much computation."""
    items = [item for phase in phases for item in of_experts(phase, overlapped=True)]
    if items:
        group = groups["ep"]
        seconds = sum(collective_time(item, group, fabric) for item in items)
        compute = sum(each for name, each in parts.items() if name in _PART_OF.values())
        exposed = fabric.exposed(group, sum(item.nbytes for item in items), seconds, compute)
        parts[Part.EXPERT_PARALLEL] = parts.get(Part.EXPERT_PARALLEL, 0.0) + exposed


def _context_time(phase: Phase, attention: Number, group: Group, fabric: Fabric) -> Number:
    """What the exchange of keys and values adds: all of it, or what the attention beside it does not hide.

    A ring of cp steps computes on its own block first and cannot hide behind the last block's attention.
    """
    chosen = [item for item in phase.collectives if item.group == "cp"]
    seconds = sum(collective_time(item, group, fabric) for item in chosen)
    nbytes = sum(item.nbytes for item in chosen)
    beside = any(item.overlapped for item in chosen)
    return fabric.exposed(group, nbytes, seconds, attention * (1.0 - 1.0 / group.size) if beside else 0.0)


def layer_costs(scenario: Scenario) -> BlockCosts:
    """Seconds of one transformer layer and micro-batch, without what data parallelism moves."""
    cut, compute, fabric = pricing(scenario)
    return block_costs(layer_work(scenario.model, scenario.stack, cut), compute, model_groups(scenario), fabric)
