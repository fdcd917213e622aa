"""What actions move while they compute: collectives of tensor, context and data parallelism within layers.

`sim.costs.block` says how much of them lengthens an action. Here is what lies behind it, for engines that let them meet
other traffic: how long they take in full, how many bytes they move, and how much compute they may run beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
from sim.pricing.replicas import DataMove, ring_bytes, sent_by_group
from sim.pricing.stages import StageSeconds
from sim.pricing.zero import VisitedBlock, visited_blocks
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


_Table = defaultdict[tuple[str, bool], Floats]
"""What a block moves, by kind of group and whether compute goes on meanwhile; arrays (rows, numbers) of seconds, bytes
that each member sends, those between sharding groups, buffers that ZeRO's collectives move whole, and the budget."""


def stage_exchanges(scenario: Scenario, stages: tuple[Stage, ...]) -> tuple[Exchange, ...]:
    """Everything that the stages' actions move within layers.

    stages : of all copies of the model.
    """
    plan = scenario.plan
    costs, cut, plans = cost_model(scenario), cut_of(scenario), plans_of(scenario)
    compute, fabric = costs.noting(), costs.fabric
    groups = layer_groups(plan, scenario.cluster) | {"dp": plans.layouts.data.take(0)}
    moving = plans.gathers_in_turns | ((plans.moving_stage >= 2) & ~plans.at_visits)
    moves = moving and max(plan.num_replicas, plan.num_expert_replicas) > 1
    tables = []
    stack = scenario.stack
    if plans.alone > 0.5:  # tokens of most passes wait
        stack = stack.replace(overlap_experts=False)
    operations = block_operations(scenario.model, stack, cut)
    for of_block, visited in zip(operations, visited_blocks(scenario), strict=True):
        (work,) = block_works(of_block, stack, (cut.recompute,))
        tables.append(_Table(_nothing))
        _within(tables[-1], work, compute, groups, fabric)
        if moves:
            priced = block_costs([work], compute, groups, fabric)[0]
            budgets = [float(sum(each.values())) for each in priced.passes[:2]]
            _zero(tables[-1], visited, budgets, scenario, reduces=bool(plans.moving_stage >= 2))
    parts = np.array([stage.part for stage in stages])
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        of_blocks = np.array([table.get(key, _nothing()) for table in tables])
        hidden = np.array([[_hidden_s(groups[key[0]], fabric, *row) for row in rows] for rows in of_blocks])
        seconds, nbytes, between, _, budget = put_together(parts, of_blocks).T
        share = put_together(parts, hidden).T / np.maximum(seconds, 1e-30)
        found.append(Exchange(*key, seconds, nbytes, between, budget, share))
    return tuple(found)


def _nothing() -> Floats:
    return np.zeros((3, 5))


def _add(
    table: _Table,
    key: tuple[str, bool],
    row: int,
    moved: Sequence[float] | Floats,
    budget: float = 0.0,
) -> None:
    if moved[0] > 0:
        table[key][row] += *moved, budget


def _hidden_s(
    group: Group, fabric: Fabric, seconds: float, nbytes: float, between: float, buffers: float, budget: float
) -> float:
    """What compute hides of a row's collectives where all of them run beside it.  [s]"""
    if seconds == 0:
        return 0.0
    moved = buffers or nbytes * group.size / np.maximum(group.size - 1, 1)
    return float(seconds * fabric.hidden_share(group, moved, seconds))


def _within(table: _Table, work: BlockWork, compute: ComputeModel, groups: dict[str, Group], fabric: Fabric) -> None:
    """Tensor- and context-parallel collectives of a block, as `sim.costs.block.block_costs` exposes them."""
    phases = (
        (FORWARD, work.forward),
        (INPUT_GRAD, work.recompute),
        (INPUT_GRAD, work.input_grad),
        (WEIGHT_GRAD, work.weight_grad),
    )
    for row, phase in phases:
        context = chosen(phase, "cp")
        for group in ("tp", "ep"):
            _add(table, (group, False), row, _moved(chosen(phase, group, overlapped=False), groups[group], fabric))
        beside = any(item.overlapped for item in context)
        budget = float(attention_beside(context, groups["cp"], _compute_s(phase, compute, Cause.ATTENTION)))
        _add(table, ("cp", beside), row, _moved(context, groups["cp"], fabric), budget)
    hidden = chosen(work.input_grad, "tp", overlapped=True)
    if hidden:
        beside_it = _compute_s(work.weight_grad, compute) + _compute_s(work.input_grad, compute, Cause.MATMUL)
        _add(table, ("tp", True), INPUT_GRAD, _moved(hidden, groups["tp"], fabric), beside_it)
    # Tokens on their way beside computation share a pass's, forward, recomputed, or both gradients'.
    passes = (
        (FORWARD, (work.forward,)),
        (INPUT_GRAD, (work.recompute,)),
        (INPUT_GRAD, (work.input_grad, work.weight_grad)),
    )
    for row, together in passes:
        tokens = [item for phase in together for item in chosen(phase, "ep", overlapped=True)]
        budget = sum(_compute_s(phase, compute) for phase in together)
        _add(table, ("ep", True), row, _moved(tokens, groups["ep"], fabric), budget)


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


def _zero(table: _Table, block: VisitedBlock, budgets: Sequence[float], scenario: Scenario, *, reduces: bool) -> None:
    """Gathers and reductions of ZeRO stages 2 and 3, as `sim.pricing.zero.lengthened_passes` prices them."""
    plan, stack = scenario.plan, scenario.stack
    ahead, key = stack.overlap_param_gather, ("dp", stack.overlap_grad_reduce)
    if plan.zero_stage == 3:
        weights = np.array([block.gather_s, *_sent(block.gather), _buffers(block.gather)])
        for row, times, budget in zip((FORWARD, INPUT_GRAD), (1.0, block.regathers), budgets, strict=True):
            if times:
                _add(table, ("dp", ahead), row, weights * times, budget)
    if reduces:
        # Where the gather runs beside the same backward its budget is the gather's, and is there already.
        beside_gather = plan.zero_stage == 3 and block.regathers and ahead == stack.overlap_grad_reduce
        budget = 0.0 if beside_gather else budgets[1]
        _add(table, key, INPUT_GRAD, (block.reduce_s, *_sent(block.reduce), _buffers(block.reduce)), budget)


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
