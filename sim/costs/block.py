"""Seconds of one block (a layer, the embedding, the head) and one micro-batch, by what they are spent on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sim.costs.collectives import COLLECTIVES, Fabric
from sim.costs.compute import ComputeModel
from sim.network.placement import Group, tensor_group
from sim.specs import Scenario
from sim.work.layers import Cut, layer_work
from sim.work.operations import BlockWork, Cause, Phase


class Part(StrEnum):
    """What a stage spends its busy time on."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    MEMORY_BOUND = "memory_bound"
    LOGITS = "logits"
    RECOMPUTE = "recompute"
    HOST = "host_wait"
    TENSOR_PARALLEL = "tensor_parallel_comm"
    DATA_PARALLEL = "data_parallel_comm"


_PART_OF = {
    Cause.MATMUL: Part.MATMUL,
    Cause.ATTENTION: Part.ATTENTION,
    Cause.MEMORY_BOUND: Part.MEMORY_BOUND,
    Cause.LOGITS: Part.LOGITS,
}


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Seconds of one block (layer, embedding or head), as in StageCosts. [s]"""

    forward: dict[Part, float]
    backward: dict[Part, float]
    at_peak: dict[Part, float]
    weight_grad: float


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
    )


def pricing(scenario: Scenario) -> tuple[Cut, ComputeModel, Fabric]:
    """What turns the scenario's counts into seconds."""
    cut = cut_of(scenario)
    stack = scenario.stack
    compute = ComputeModel(
        scenario.cluster.gpu,
        scenario.profile,
        scenario.training.precision,
        cut.width,
        stack.kernel_launch_s,
        stack.elementwise_rate,
    )
    return cut, compute, Fabric.of(scenario.cluster, scenario.profile)


def block_costs(work: BlockWork, compute: ComputeModel, group: Group, fabric: Fabric) -> BlockCosts:
    """Seconds of one block, tensor-parallel communication included.

    A collective that may overlap hides behind the block's gradient multiplies, and lengthens the backward only by what
    is left over and what it takes from the kernels beside it: never by more than doing one after the other.
    """
    forward = _phase(work.forward, compute, group, fabric)
    again = _phase(work.recompute, compute, group, fabric)
    input_grad = _phase(work.input_grad, compute, group, fabric)
    weight_grad = _phase(work.weight_grad, compute, group, fabric)
    backward: dict[Part, float] = {}
    for part in (input_grad, weight_grad):
        for name, seconds in part.items():
            backward[name] = backward.get(name, 0.0) + seconds
    beside = _collective_time(work.input_grad, group, fabric, overlapped=True)
    budget = sum(weight_grad.values()) + input_grad.get(Part.MATMUL, 0.0)
    largest = max((float(item.nbytes) for item in work.input_grad.collectives if item.overlapped), default=0.0)
    exposed = beside - fabric.hidden_share(group, largest) * min(beside, budget)
    backward[Part.TENSOR_PARALLEL] = backward.get(Part.TENSOR_PARALLEL, 0.0) + exposed
    backward[Part.RECOMPUTE] = sum(again.values())
    at_peak: dict[Part, float] = {}
    for operation in (*work.forward.operations, *work.input_grad.operations, *work.weight_grad.operations):
        name = _PART_OF[operation.cause]
        at_peak[name] = at_peak.get(name, 0.0) + float(operation.flop / compute.peak(operation))
    return BlockCosts(forward, backward, at_peak, float(sum(weight_grad.values())))


def _phase(phase: Phase, compute: ComputeModel, group: Group, fabric: Fabric) -> dict[Part, float]:
    parts = {_PART_OF[cause]: float(seconds) for cause, seconds in compute.phase_time(phase).items()}
    communication = _collective_time(phase, group, fabric, overlapped=False)
    if communication:
        parts[Part.TENSOR_PARALLEL] = communication
    return parts


def _collective_time(phase: Phase, group: Group, fabric: Fabric, overlapped: bool) -> float:
    chosen = (item for item in phase.collectives if item.overlapped is overlapped)
    return float(sum(COLLECTIVES[item.kind](item.nbytes, group, fabric) for item in chosen))


def layer_costs(scenario: Scenario) -> BlockCosts:
    """Seconds of one transformer layer and micro-batch, without what data parallelism moves."""
    cut, compute, fabric = pricing(scenario)
    group = tensor_group(scenario.plan, scenario.cluster)
    return block_costs(layer_work(scenario.model, scenario.stack, cut), compute, group, fabric)
