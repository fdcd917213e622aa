"""What actions move while they compute, and what the average GPU sends in a step, collective by collective.

`sim.costs.block` says how much of them lengthens an action. Here is what lies behind it, for engines that let them meet
other traffic: how long they take in full, how many bytes they move, and how much compute they may run beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.costs.block import attention_beside, block_costs, chosen, total_time
from sim.costs.collectives import Fabric, all_to_all_bytes
from sim.costs.compute import ComputeModel
from sim.network.placement import Group, layer_groups
from sim.pricing.cells import Plans, plans_of, sent_bytes
from sim.pricing.deal import TRAINED, params_of, put_together
from sim.pricing.layouts import cost_model, cut_of
from sim.pricing.stages import StageSeconds
from sim.pricing.zero import (
    DataMove,
    VisitedBlock,
    moved_once,
    reduced_to_shards,
    ring_bytes,
    sent_by_group,
    visited_blocks,
)
from sim.schedules.actions import B, F, I, W
from sim.specs import Scenario
from sim.work.layers import Stage, block_operations, deal_stages
from sim.work.operations import BlockWork, Cause, Collective, Phase
from sim.work.recompute import recompute_of
from sim.work.sums import block_works

FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(3)
"""Rows of an Exchange; recomputation belongs to the input gradient, as does all that ZeRO moves in a backward."""
ROWS = {F: [FORWARD], B: [INPUT_GRAD, WEIGHT_GRAD], I: [INPUT_GRAD], W: [WEIGHT_GRAD]}
"""Rows that belong to each kind of action."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind of group in the actions of every stage. Arrays (3, stages).

    group : tp, cp or dp (ZeRO's gathers and reductions).
    beside : whether compute goes on meanwhile; else it waits.
    seconds : with the machine to themselves. [s]
    nbytes : that each member sends. [bytes]
    between_bytes : of these, those that go from one sharding group to another; of tokens those that leave an NVLink
        domain. [bytes]
    budget : compute that may hide them. [s]
    hidden_share : of their time within the budget, the share that is really hidden.
    """

    group: str
    beside: bool
    seconds: Floats
    nbytes: Floats
    between_bytes: Floats
    budget: Floats
    hidden_share: Floats


_Moved = tuple[tuple[str, bool], int, Sequence[float]]
"""Kind of group and whether compute goes on meanwhile; row of an Exchange; seconds, bytes that each member sends, those
between sharding groups, buffers that ZeRO's collectives move whole, and the budget."""


def stage_exchanges(scenario: Scenario, stages: tuple[Stage, ...]) -> tuple[Exchange, ...]:
    """Everything that the actions of stages, of all copies of the model, move within layers."""
    plan, stack = scenario.plan, scenario.stack
    costs, cut, plans = cost_model(scenario), cut_of(scenario), plans_of(scenario)
    compute, fabric = costs.noting(), costs.fabric
    groups = layer_groups(plan, scenario.cluster) | {"dp": plans.layouts.data.take(0)}
    moving = plans.gathers_in_turns | ((plans.moving_stage >= 2) & ~plans.at_visits)
    moves = moving and max(plan.num_replicas, plan.num_expert_replicas) > 1
    if plans.alone > 0.5:  # tokens of most passes wait
        stack = stack.replace(overlap_experts=False)
    operations = block_operations(scenario.model, stack, cut)
    tables: defaultdict[tuple[str, bool], Floats] = defaultdict(lambda: np.zeros((len(operations), 3, 5)))
    for place, (of_block, visited) in enumerate(zip(operations, visited_blocks(scenario), strict=True)):
        (work,) = block_works(of_block, stack, (recompute_of(plan, scenario.model),))
        moved = list(_within(work, compute, groups, fabric))
        if moves:
            passes = block_costs([work], compute, groups, fabric)[0].passes
            budgets = [float(sum(each.values())) for each in passes[:2]]
            moved += _zero(visited, budgets, scenario, reduces=bool(plans.moving_stage >= 2))
        for key, row, numbers in moved:
            if numbers[0] > 0:
                tables[key][place, row] += numbers
    parts = np.array([stage.part for stage in stages])
    found = []
    for key, of_blocks in tables.items():
        group, (seconds, nbytes, _, buffers, _) = groups[key[0]], np.moveaxis(of_blocks, -1, 0)
        whole = np.where(buffers > 0, buffers, nbytes * group.size / np.maximum(group.size - 1, 1))
        hidden = put_together(parts, seconds * fabric.hidden_share(group, whole, seconds)).T
        seconds, nbytes, between, _, budget = put_together(parts, of_blocks).T
        found.append(Exchange(*key, seconds, nbytes, between, budget, hidden / np.maximum(seconds, 1e-30)))
    return tuple(found)


def _within(work: BlockWork, compute: ComputeModel, groups: dict[str, Group], fabric: Fabric) -> Iterator[_Moved]:
    """Tensor- and context-parallel collectives of a block, as `sim.costs.block.block_costs` exposes them."""

    def moved(name: str, beside: bool, row: int, items: Sequence[Collective], budget: float = 0.0) -> _Moved:
        return (name, beside), row, (*_moved(items, groups[name], fabric), budget)

    recomputed = (INPUT_GRAD, work.recompute)
    passes = (FORWARD, work.forward), recomputed, (INPUT_GRAD, work.input_grad), (WEIGHT_GRAD, work.weight_grad)
    for row, phase in passes:
        context = chosen(phase, "cp")
        for name in ("tp", "ep"):
            yield moved(name, False, row, chosen(phase, name, overlapped=False))
        budget = float(attention_beside(context, groups["cp"], _compute_s(phase, compute, Cause.ATTENTION)))
        yield moved("cp", any(item.overlapped for item in context), row, context, budget)
    beside_it = _compute_s(work.weight_grad, compute) + _compute_s(work.input_grad, compute, Cause.MATMUL)
    yield moved("tp", True, INPUT_GRAD, chosen(work.input_grad, "tp", overlapped=True), beside_it)
    # Tokens on their way beside computation share a pass's, forward, recomputed, or both gradients'.
    for row, phase in (passes[0], recomputed, (INPUT_GRAD, work.input_grad + work.weight_grad)):
        yield moved("ep", True, row, chosen(phase, "ep", overlapped=True), _compute_s(phase, compute))


def _compute_s(phase: Phase, compute: ComputeModel, only: Cause | None = None) -> float:
    return float(sum(s for cause, s in compute.phase_time(phase).items() if only in (None, cause)))


def _moved(items: Sequence[Collective], group: Group, fabric: Fabric) -> tuple[float, float, float, float]:
    """Collectives in a row: seconds, bytes that each member sends, of these tokens over its card, buffers."""
    nbytes, far, buffers = 0.0, 0.0, 0.0
    for item in items:
        if item.kind == "all_to_all":
            inside, outside = all_to_all_bytes(item.nbytes, group, item.copies, item.limit)
            nbytes, far = nbytes + float(inside + outside), far + float(outside)
            buffers += float(item.nbytes)
        else:
            nbytes += float(ring_bytes(item.kind, item.nbytes, group.size))
    return float(total_time(items, group, fabric)), nbytes, far, buffers


def _zero(block: VisitedBlock, budgets: Sequence[float], scenario: Scenario, *, reduces: bool) -> Iterator[_Moved]:
    """Gathers and reductions of ZeRO stages 2 and 3, as `sim.pricing.zero.lengthened_passes` prices them."""
    plan, ahead, beside = scenario.plan, scenario.stack.overlap_param_gather, scenario.stack.overlap_grad_reduce
    if plan.zero_stage == 3:
        weights = np.array([block.gather_s, *_sent(block.gather), _buffers(block.gather)])
        for row, times, budget in zip((FORWARD, INPUT_GRAD), (1.0, block.regathers), budgets, strict=True):
            yield ("dp", ahead), row, (*(weights * times), budget)
    if reduces:
        # Where the gather runs beside the same backward its budget is the gather's, and is there already.
        beside_gather = plan.zero_stage == 3 and block.regathers and ahead == beside
        numbers = (block.reduce_s, *_sent(block.reduce), _buffers(block.reduce), 0.0 if beside_gather else budgets[1])
        yield ("dp", beside), INPUT_GRAD, numbers


def _sent(moves: Sequence[DataMove]) -> tuple[float, float]:
    """Bytes that each member sends, and those of them between sharding groups."""
    sent = sent_by_group(moves)
    return sum(sent.values()), sent.get("between", 0.0)


def _buffers(moves: Sequence[DataMove]) -> float:
    """Bytes of the buffers within sharding groups."""
    return float(sum(np.asarray(each.nbytes).item() for each in moves if each.over != "between"))


def visit_exchange(scenario: Scenario, costs: StageSeconds) -> Exchange | None:
    """What ranks move at visits: weights gathered forward, then backward, and gradients reduced; None: nothing."""
    visits, plans = costs.visits, plans_of(scenario)
    if visits is None:
        return None
    gathers, rows = plans.moving_stage.item() == 3, []
    for block in visited_blocks(scenario):
        weights, reduced = gathers * _sent(block.gather)[0], _sent(block.reduce)
        rows.append([weights, weights * block.regathers, *reduced])
    *nbytes, between = put_together(np.array([stage.part for stage in costs.stages]), np.array(rows)).T
    none = np.zeros((3, len(between)))
    over_groups = np.stack([none[0], none[0], between])
    seconds = np.vstack([visits.gather, visits.reduce])
    return Exchange("dp", False, seconds, np.array(nbytes), over_groups, none, none)


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
        (work,) = block_works(block, scenario.stack, (recompute_of(plan, scenario.model),))
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
    reduction, gather = moved_once(layouts, held, stage, copies)
    if stage == 2:
        at_turns = reduced_to_shards(held, layouts.costs.stack.gradient_bytes, layouts)
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
