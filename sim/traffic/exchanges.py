"""What actions move while they compute: collectives of tensor, context and data parallelism within layers.

`sim.costs.block` says how much of them lengthens an action. Here is what lies behind it, for engines that let them meet
other traffic: how long they take in full, how many bytes they move, and how much compute they may run beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.costs.block import attention_beside, block_costs, chosen, total_time
from sim.costs.collectives import Fabric, all_to_all_bytes
from sim.costs.compute import ComputeModel
from sim.network.placement import Group, layer_groups
from sim.pricing.cells import plans_of
from sim.pricing.deal import put_together
from sim.pricing.layouts import cost_model, cut_of
from sim.pricing.stages import StageSeconds
from sim.pricing.zero import DataMove, VisitedBlock, ring_bytes, sent_by_group, visited_blocks
from sim.specs import Scenario
from sim.work.layers import Stage, block_operations
from sim.work.operations import BlockWork, Cause, Collective, Phase
from sim.work.sums import block_works

FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(3)
"""Rows of an Exchange; recomputation belongs to the input gradient, as does all that ZeRO moves in a backward."""


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
        (work,) = block_works(of_block, stack, (cut.recompute,))
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
