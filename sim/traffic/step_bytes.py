"""Collectives of the average GPU in a step, one by one; and the bytes it sends, by network: between pipeline ranks, in
layers, between replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.pricing.cells import Plans, plans_of, sent_bytes
from sim.pricing.deal import TRAINED, params_of
from sim.pricing.layouts import cost_model, cut_of
from sim.pricing.zero import DataMove, moved_once, reduced_to_shards, ring_bytes, visited_blocks
from sim.specs import Scenario
from sim.work.layers import block_operations, deal_stages
from sim.work.sums import block_works


@dataclass(frozen=True, slots=True)
class StepCollective:
    """Collectives that are alike, of the average GPU in a step.

    group : tp, cp or ep; or as in `sim.pricing.zero.DataMove`.
    size : of the group. [GPUs]
    nbytes : of each, as of `sim.work.operations.Collective`. [bytes]
    count : in a step.
    """

    name: str
    group: str
    kind: str
    size: int
    nbytes: float
    count: float

    @property
    def sent_bytes(self) -> float:
        """Bytes that the GPU sends, over all kinds of traffic. [bytes]"""
        return float(self.count * ring_bytes(self.kind, self.nbytes, self.size))


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


def step_traffic(scenario: Scenario, sends: float, *, copies: int = 1, updates: float = 1.0) -> StepBytes:
    """Count a step's bytes.

    sends : from one pipeline rank to another in a step, forward and backward, of all ranks together.
    copies : pipelines, each with a model of its own, that run through the ranks.
    updates : weight updates in a step.

    In a layer of a GPT without sequence parallelism each GPU sends 8 b s h (t − 1)/t numbers a micro-batch, and half as
    many more under full recomputation; a boundary between ranks moves b s h numbers each way (Narayanan et al. 2021,
    arXiv:2104.04473, section 3.2).
    """
    plan, cut = scenario.plan, cut_of(scenario)
    boundary = float(cut.width * cut.tokens * scenario.model.hidden_size)
    pipeline = sends * float(sent_bytes(cost_model(scenario), cut)) / plan.pp
    scatter = scenario.stack.p2p_scatter_gather and not plan.sequence_parallel and plan.tp > 1
    tensor = sends * ring_bytes("all_gather", boundary, plan.tp) / plan.pp if scatter else 0.0
    listed = step_collectives(scenario, copies=copies, updates=updates)
    tensor += sum(each.sent_bytes for each in listed if each.group in _IN_LAYERS)
    return StepBytes(pipeline, tensor, sum(each.sent_bytes for each in listed if each.group not in _IN_LAYERS))


_IN_LAYERS = ("tp", "cp", "ep")


def step_collectives(scenario: Scenario, *, copies: int = 1, updates: float = 1.0) -> list[StepCollective]:
    """Every collective of a step but sends between pipeline ranks, as they are priced.

    Parameters as of `step_traffic`.

    Left out, as they are not priced: sums over the tensor-parallel group of the gradients of what its GPUs hold whole
    (norms and routers, some numbers a layer), of the gradient's norm, of the loss that is logged.
    """
    plans = plans_of(scenario)
    stages = deal_stages(scenario.model, scenario.plan)
    whole = np.sum([stage.part for stage in stages], axis=0)
    found = list(_in_layers(scenario, whole))
    if plans.moving_stage == 3 or plans.gathers_in_turns:
        found += _of_blocks(scenario, plans, whole, copies)
    found += _of_all(scenario, plans, whole, updates, copies)
    return [each for each in found if each.size > 1 and each.count > 0 and each.nbytes > 0]


def _in_layers(scenario: Scenario, whole: Floats) -> Iterator[StepCollective]:
    """Collectives of tensor, context and expert parallelism."""
    plan, cut = scenario.plan, cut_of(scenario)
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    microbatches = scenario.num_microbatches * plan.sequence_slices / plan.pp
    blocks = block_operations(scenario.model, scenario.stack, cut)
    for count, block in zip(whole, blocks, strict=False):
        (work,) = block_works(block, scenario.stack, (cut.recompute,))
        for phase in (work.forward, work.input_grad, work.weight_grad, work.recompute):
            for item in phase.collectives:
                size, times = sizes[item.group], float(microbatches * count)
                yield StepCollective(item.name, item.group, item.kind, size, float(item.nbytes), times)


def _of_blocks(scenario: Scenario, plans: Plans, whole: Floats, copies: int) -> Iterator[StepCollective]:
    """Collectives of ZeRO stage 3, block by block; in pipelines gradients are summed once a step, by `_of_all`."""
    visits = (1.0 if plans.at_visits else scenario.num_forwards) * copies / scenario.plan.pp
    for count, block in zip(whole, visited_blocks(scenario), strict=False):
        yield from _listed("gather weights", block.gather, float(count) * visits * (1 + block.regathers))
        if not plans.gathers_in_turns:
            yield from _listed("reduce gradients", block.reduce, float(count) * visits)


def _of_all(scenario: Scenario, plans: Plans, whole: Floats, updates: float, copies: int) -> Iterator[StepCollective]:
    """Collectives of all that a GPU holds, once an update; those of ZeRO stage 2 may reduce more often."""
    layouts, stage = plans.layouts, int(plans.moving_stage.item())
    updates *= 1 if scenario.stack.sums_at_last_flush else scenario.flushes
    often = 1 if scenario.plan.zero_stage == 3 else scenario.flushes
    held = params_of(whole[np.newaxis], layouts)[TRAINED] * (copies / scenario.plan.pp)
    reduction, gather = moved_once(layouts, held, stage, bool(plans.state_is_spread.item()), copies)
    if stage == 2:
        inside = layouts.without_sums_between if scenario.plan.outer_zero_stage else layouts
        at_turns = reduced_to_shards(held, layouts.costs.gradient_width, inside)
        turns = 1.0 if plans.at_visits else float(scenario.num_forwards)
        yield from _listed("reduce gradients", at_turns, turns)
    yield from _listed("reduce gradients", reduction, updates)
    if plans.gathers_in_turns:
        gather = [each for each in gather if each.over == "between"]
    yield from _listed("gather weights", gather, updates / often)


_OF_SHARDS = {"all_reduce": "sum shards", "reduce_scatter": "reduce shards", "all_gather": "gather shards"}
"""Names of collectives between sharding groups."""


def _listed(name: str, moves: Iterable[DataMove], times: float) -> Iterator[StepCollective]:
    """Collectives of one layout, so often in a step."""
    for each in moves:
        size, nbytes = int(np.asarray(each.group.size).item()), np.asarray(each.nbytes).item() / each.pieces
        said = _OF_SHARDS[each.kind] if each.over == "between" else name
        yield StepCollective(said, each.over, each.kind, size, nbytes, times * each.pieces)
