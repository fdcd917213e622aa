"""Bytes that the average GPU sends in a step, by network: between pipeline ranks, in layers, between replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.pricing.batch import batch_of
from sim.pricing.cost_model import cut_of
from sim.pricing.replicas import params_of, put_together
from sim.pricing.zero import zero_visits
from sim.specs import ParallelPlan, Scenario
from sim.work.layers import block_works
from sim.work.operations import BlockWork
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.stages import ModelPart, deal_stages


@dataclass(frozen=True, slots=True)
class StepBytes:
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
) -> StepBytes:
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
    sent = np.array([_within(work, plan) for (work,) in block_works(model, stack, cut, (cut.recompute,))])
    whole = sum((stage.part for stage in deal_stages(model, plan)), ModelPart())
    tensor += float(microbatches * put_together([whole], sent)[0] / plan.pp)
    return StepBytes(pipeline, tensor, _between_replicas(scenario, copies, visits, updates, training.activation_bytes))


def _within(work: BlockWork, plan: ParallelPlan) -> float:
    """Sent in one block for one micro-batch. [bytes]"""
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    phases = (work.forward, work.input_grad, work.weight_grad, work.recompute)
    return sum(
        ring_bytes(item.kind, float(item.nbytes), sizes[item.group]) for phase in phases for item in phase.collectives
    )


def _between_replicas(scenario: Scenario, copies: int, visits: float, updates: float, width: int) -> float:
    """Gradient reductions and weight gathers, as `sim.pricing` prices them. [bytes]"""
    plan, stack, model = scenario.plan, scenario.stack, scenario.model
    whole, batch = sum((stage.part for stage in deal_stages(model, plan)), ModelPart()), batch_of(scenario)
    held, share = params_of([whole], batch.costs, batch.layouts), copies / plan.pp
    shards = plan.sharding_group or plan.num_replicas
    parts = ((held.others.item() * share, shards), (held.experts.item() * share, plan.num_expert_replicas))
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
    if plan.sharding_group:
        between = parts[0][0] * gradient_width / shards
        moved += reductions * ring_bytes("all_reduce", between, plan.num_replicas // shards)
    return float(moved)
