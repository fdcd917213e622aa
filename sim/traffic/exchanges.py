"""What actions move while they compute: collectives of tensor, context and data parallelism within layers.

`sim.costs.block` says how much of them lengthens an action. Here is what lies behind it, for engines that let them meet
other traffic: how long they take in full, how many bytes they move, and how much compute they may run beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.costs.block import block_costs, chosen, total_time
from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.network.placement import Group, layer_groups
from sim.pricing.batch import Layouts, batch_of
from sim.pricing.cost_model import cost_model, cut_of
from sim.pricing.parts import counts_of, put_together
from sim.pricing.replicas import HELD, TRAINED, params_of, sent_between, sent_in_rings
from sim.pricing.zero import blocks_sharing, gathered_widths, gathers_for_backward, visit_seconds
from sim.specs import Scenario
from sim.work.layers import block_operations
from sim.work.operations import BlockWork, Cause, Collective, Phase
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.stages import Stage
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
    between_bytes : of these, those that go from one sharding group to another. [bytes]
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


@dataclass(slots=True)
class _Row:
    """The same of one block and row, added up; and the buffers that ZeRO's collectives move, whole. [bytes]"""

    seconds: float = 0.0
    nbytes: float = 0.0
    between_bytes: float = 0.0
    buffers: float = 0.0
    budget: float = 0.0


_Table = dict[tuple[str, bool], list[_Row]]


def stage_exchanges(scenario: Scenario, stages: tuple[Stage, ...]) -> tuple[Exchange, ...]:
    """Everything that the stages' actions move within layers.

    Parameters
    ----------
    stages : tuple of Stage
        Of all copies of the model.
    """
    plan = scenario.plan
    costs, cut, batch = cost_model(scenario), cut_of(scenario), batch_of(scenario)
    compute, fabric, layouts = costs.noting(), costs.fabric, batch.layouts
    layouts = layouts.without_sums_between if plan.outer_zero_stage else layouts
    groups = layer_groups(plan, scenario.cluster) | {"dp": layouts.data.take(0)}
    tables = []
    blocks = blocks_sharing(scenario.model, plan.num_stages == 1)
    operations = block_operations(scenario.model, scenario.stack, cut)
    for block, part, width in zip(operations, blocks, gathered_widths(costs), strict=True):
        (work,) = block_works(block, scenario.stack, (cut.recompute,))
        table: _Table = {}
        _within(table, work, compute, groups, fabric)
        if batch.moving_stage >= 2 and plan.num_chunks == 1 and max(plan.num_replicas, plan.num_expert_replicas) > 1:
            priced, held = block_costs([work], compute, groups, fabric)[0], params_of(counts_of([part]), layouts)[:, 0]
            budgets = float(priced.forward_s), float(priced.backward_s)
            again = gathers_for_backward(part, scenario)
            _zero(table, held, width, again, budgets, scenario, layouts)
        tables.append(table)
    parts = counts_of([stage.part for stage in stages])
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        rows = [table.get(key) or _rows() for table in tables]
        seconds, nbytes, between, budget = (
            put_together(parts, np.array([[getattr(row, name) for row in block] for block in rows])).T
            for name in ("seconds", "nbytes", "between_bytes", "budget")
        )
        of_blocks = np.array([[_hidden_s(row, groups[key[0]], fabric) for row in block] for block in rows])
        hidden = put_together(parts, of_blocks).T
        found.append(Exchange(*key, seconds, nbytes, between, budget, hidden / np.maximum(seconds, 1e-30)))
    return tuple(found)


def _hidden_s(row: _Row, group: Group, fabric: Fabric) -> float:
    """What compute hides of a row's collectives where all of them run beside it.  [s]"""
    if row.seconds == 0:
        return 0.0
    moved = row.buffers or row.nbytes * group.size / np.maximum(group.size - 1, 1)
    return float(row.seconds * fabric.hidden_share(group, moved, row.seconds))


def _rows() -> list[_Row]:
    return [_Row() for _ in range(3)]


def _add(
    table: _Table,
    key: tuple[str, bool],
    row: int,
    seconds: float,
    nbytes: float,
    budget: float = 0.0,
    buffers: float = 0.0,
    between: float = 0.0,
) -> None:
    if seconds > 0:
        here = table.setdefault(key, _rows())[row]
        here.seconds += seconds
        here.nbytes += nbytes
        here.budget += budget
        here.buffers += buffers
        here.between_bytes += between


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
            _add(table, (group, False), row, *_moved(chosen(phase, group, overlapped=False), groups[group], fabric))
        beside = any(item.overlapped for item in context)
        budget = 0.0
        if beside:
            budget = float(compute.phase_time(phase).get(Cause.ATTENTION, 0.0)) * (1.0 - 1.0 / groups["cp"].size)
        _add(table, ("cp", beside), row, *_moved(context, groups["cp"], fabric), budget)
    hidden = chosen(work.input_grad, "tp", overlapped=True)
    if hidden:
        beside_it = _compute_s(work.weight_grad, compute) + _compute_s(work.input_grad, compute, Cause.MATMUL)
        _add(table, ("tp", True), INPUT_GRAD, *_moved(hidden, groups["tp"], fabric), beside_it)
    # Tokens on their way beside computation share a pass's, forward, recomputed, or both gradients'.
    passes = (
        (FORWARD, (work.forward,)),
        (INPUT_GRAD, (work.recompute,)),
        (INPUT_GRAD, (work.input_grad, work.weight_grad)),
    )
    for row, together in passes:
        tokens = [item for phase in together for item in chosen(phase, "ep", overlapped=True)]
        budget = sum(_compute_s(phase, compute) for phase in together)
        _add(table, ("ep", True), row, *_moved(tokens, groups["ep"], fabric), budget)


def _compute_s(phase: Phase, compute: ComputeModel, only: Cause | None = None) -> float:
    return float(sum(s for cause, s in compute.phase_time(phase).items() if only in (None, cause)))


def _moved(items: Sequence[Collective], group: Group, fabric: Fabric) -> tuple[float, float]:
    """(seconds, bytes that each member sends) of collectives one after the other."""
    nbytes = 0.0
    for item in items:
        passes = 2.0 if item.kind == "all_reduce" else 1.0
        nbytes += float(passes * item.nbytes * (group.size - 1) / group.size)
    return float(total_time(items, group, fabric)), nbytes


def _zero(
    table: _Table,
    held: Floats,
    width: int,
    again: float,
    budgets: tuple[float, float],
    scenario: Scenario,
    layouts: Layouts,
) -> None:
    """Gathers and reductions of ZeRO stages 2 and 3, as `sim.pricing.zero.lengthened_passes` prices them.

    again : how often weights are gathered for the backward.
    """
    plan, stack = scenario.plan, scenario.stack
    gather, reduce = visit_seconds(layouts, held, width)
    trained, grad_width = held[TRAINED], GRADIENT_WIDTH[stack.gradient_precision]
    ahead = stack.overlap_param_gather
    if plan.zero_stage == 3:
        sent, buffers = sent_in_rings(held[HELD], layouts.sharding).item() * width, held[HELD].sum().item() * width
        for row, times, budget in zip((FORWARD, INPUT_GRAD), (1.0, again), budgets, strict=True):
            if times:
                _add(table, ("dp", ahead), row, gather.item() * times, sent * times, budget, buffers * times)
    if plan.zero_stage >= 2:
        # Where the gather runs beside the same backward its budget is the gather's, and is there already.
        beside_gather = plan.zero_stage == 3 and again and ahead == stack.overlap_grad_reduce
        budget = 0.0 if beside_gather else budgets[1]
        inside = sent_in_rings(trained, layouts.sharding).item() * grad_width
        between = np.asarray(sent_between(trained, layouts)).item() * grad_width
        key, buffers = ("dp", stack.overlap_grad_reduce), trained.sum().item() * grad_width
        _add(table, key, INPUT_GRAD, reduce.item(), inside + between, budget, buffers, between)


@dataclass(frozen=True, slots=True)
class VisitBytes:
    """What each member of its group sends at a visit to every stage. [bytes]

    gather : the weights, (forward and backward, stages). reduce : the gradients, (stages), with those that go
    `between` sharding groups.
    """

    gather: Floats
    reduce: Floats
    between: Floats


def visit_bytes(scenario: Scenario, stages: tuple[Stage, ...]) -> VisitBytes | None:
    """Bytes of `sim.pricing.visits.price_visits`; None where ranks have one chunk or move nothing so.

    Parameters as of `stage_exchanges`.
    """
    plan, stack, batch = scenario.plan, scenario.stack, batch_of(scenario)
    moving = int(batch.moving_stage.item())
    if plan.num_chunks == 1 or moving < 2 or max(plan.num_replicas, plan.num_expert_replicas) == 1:
        return None
    layouts = batch.layouts.without_sums_between if plan.outer_zero_stage else batch.layouts
    grad_width = GRADIENT_WIDTH[stack.gradient_precision]
    blocks = blocks_sharing(scenario.model, plan.num_stages == 1)
    rows = []
    for part, width in zip(blocks, gathered_widths(batch.costs), strict=True):
        held = params_of(counts_of([part]), layouts)[:, 0]
        weights = sent_in_rings(held[HELD], layouts.sharding).item() * width * (moving == 3)
        inside = sent_in_rings(held[TRAINED], layouts.sharding).item()
        between = np.asarray(sent_between(held[TRAINED], layouts)).item()
        again, reduces = gathers_for_backward(part, scenario), moving >= 2
        rows.append(
            [weights, weights * again, (inside + between) * grad_width * reduces, between * grad_width * reduces]
        )
    found = put_together(counts_of([stage.part for stage in stages]), np.array(rows)).T
    return VisitBytes(found[:2], found[2], found[3])
