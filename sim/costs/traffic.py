"""Bytes that the average GPU sends in a step, by network: between pipeline ranks, in layers, between replicas."""

from __future__ import annotations

from dataclasses import dataclass

from sim.costs.block import cut_of
from sim.costs.replicas import Held, held_by
from sim.costs.stage import blocks_of, model_blocks
from sim.costs.zero import zero_visits
from sim.specs import ParallelPlan, Scenario
from sim.work.operations import BlockWork
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.stages import deal_stages


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the average GPU sends in a step. [bytes]

    pipeline : activations and their gradients to other pipeline ranks.
    tensor : collectives within layers, over the tensor-, the context- and the expert-parallel group.
    data : gradient reductions and weight gathers over the data-parallel group.
    """

    pipeline: float
    tensor: float
    data: float


def ring_bytes(kind: str, nbytes: float, size: int) -> float:
    """Sent by each of `size` ranks of a ring for a buffer of `nbytes`. [bytes]

    An all-reduce sends 2 (n − 1)/n of the buffer, a gather, a reduce-scatter or an all-to-all half of that (Thakur,
    Rabenseifner, Gropp 2005, sections 4.1 to 4.4).
    """
    return (2.0 if kind == "all_reduce" else 1.0) * nbytes * (size - 1) / size


def step_traffic(
    scenario: Scenario, sends: float, *, copies: int = 1, visits: float = 1.0, updates: float = 1.0
) -> Traffic:
    """Count a step's bytes.

    Parameters
    ----------
    sends : float
        From one pipeline rank to another in a step, forward and backward, of all ranks together.
    copies : int
        Pipelines, each with a model of its own, that run through the ranks.
    visits : float
        How often in a step the schedule turns to a stage (`visits_per_stage`); ZeRO stages 2 and 3 move their share
        once a visit.
    updates : float
        Weight updates in a step.

    Notes
    -----
    In a layer of a GPT without sequence parallelism each GPU sends 8 b s h (t − 1)/t numbers a micro-batch, and half as
    many more under full recomputation; a boundary between ranks moves b s h numbers each way (Narayanan et al. 2021,
    arXiv:2104.04473, section 3.2).
    """
    model, plan, stack, training = scenario.model, scenario.plan, scenario.stack, scenario.training
    cut = cut_of(scenario)
    microbatches = scenario.num_microbatches * plan.sequence_slices
    boundary = float(cut.width * cut.tokens * model.hidden_size)
    scatter = stack.p2p_scatter_gather and not plan.sequence_parallel and plan.tp > 1
    each = boundary / plan.tp if scatter or plan.sequence_parallel else boundary
    pipeline = sends * each / plan.pp
    tensor = sends * ring_bytes("all_gather", boundary, plan.tp) / plan.pp if scatter else 0.0
    blocks = [work for work, _ in model_blocks(scenario, cut)]
    counts = blocks_of(deal_stages(model, plan), model).sum(axis=0)
    sent = [_within(work, plan) for work in blocks]
    tensor += float(microbatches * (counts @ sent) / plan.pp)
    return Traffic(pipeline, tensor, _between_replicas(scenario, copies, visits, updates, training.activation_bytes))


def _within(work: BlockWork, plan: ParallelPlan) -> float:
    """Sent in one block for one micro-batch. [bytes]"""
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    phases = (work.forward, work.input_grad, work.weight_grad, work.recompute)
    return sum(
        ring_bytes(item.kind, float(item.nbytes), sizes[item.group]) for phase in phases for item in phase.collectives
    )


def _between_replicas(scenario: Scenario, copies: int, visits: float, updates: float, width: int) -> float:
    """Gradient reductions and weight gathers, as `sim.costs.stage` prices them. [bytes]"""
    plan, stack, model = scenario.plan, scenario.stack, scenario.model
    stages = deal_stages(model, plan) * copies
    held = sum((held_by(stage, model, plan.tp, plan.ep) for stage in stages), Held(0.0)) * (1.0 / plan.pp)
    parts = ((held.params - held.experts, plan.num_replicas), (held.experts, plan.num_expert_replicas))
    visits = float(zero_visits(plan.num_chunks, scenario.num_microbatches, visits))
    reductions = visits if plan.zero_stage == 3 or (plan.zero_stage == 2 and visits > 1) else updates
    collective = "reduce_scatter" if plan.zero_stage else "all_reduce"
    gathers = {0: 0.0, 1: updates, 2: updates, 3: 2.0 * visits}[plan.zero_stage]
    gradient_width = GRADIENT_WIDTH[stack.gradient_precision]
    moved = 0.0
    for params, size in parts:
        # Copies of the model sum their gradients too.
        summed = size * copies if reductions == updates else size
        moved += reductions * ring_bytes(collective, params * gradient_width, summed)
        moved += gathers * ring_bytes("all_gather", params * width, size)
    return float(moved)
