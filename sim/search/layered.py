"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Bools, Floats, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.step_end import end_of_step
from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.batch import Batch, Layouts, find_cells, place_layouts
from sim.pricing.cells import price_cells
from sim.pricing.cost_model import cost_model
from sim.pricing.deal import dealt_ranks, dealt_stages
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.ranks import RankKind, once_a_step, tied_reduction
from sim.pricing.replicas import params_of
from sim.pricing.stages import near_and_far, price_stages
from sim.pricing.visits import VisitSeconds, price_visits
from sim.search.plans.layouts import divisors, tensor_degrees
from sim.search.plans.space import recompute_fields, recomputes_of, sharding_fields
from sim.specs import ParallelPlan, Scenario
from sim.work.recompute import searched_word
from sim.work.stages import ModelPart

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages, as they are dealt."""

CHOICES = ("recompute", "sequence_parallel", "zero_stage")


@dataclass(frozen=True, slots=True)
class Rows:
    """Layered plans, one a row: every rank holds `num_chunks` chunks of equally many layers."""

    batch: Ints
    tp: Ints
    pp: Ints
    dp: Ints
    num_chunks: Ints
    microbatch_size: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Ints) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def layout(self) -> Ints:
        """(tp, cp, pp, dp, ep) of each."""
        one = np.ones_like(self.tp)
        return np.stack([self.tp, one, self.pp, self.dp, one], axis=1)

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.pp * self.dp)

    @property
    def num_microbatches(self) -> Ints:
        """Of each pipeline and step."""
        return np.asarray(self.batch // (self.dp * self.microbatch_size))


@dataclass(frozen=True, slots=True)
class LayeredTable:
    """Every layered plan of some batches and numbers of GPUs, that fits in memory.

    choice : place in `choices`, (recompute, sequence_parallel, zero_stage), of each row.
    bound_s : time that its step cannot go below. [s]
    memory_bytes : of the fullest rank. [bytes]
    plans : looked at, with those that do not fit.
    """

    scenario: Scenario
    choices: tuple[tuple[str, bool, int], ...]
    rows: Rows
    choice: Ints
    bound_s: PlanFloats
    memory_bytes: PlanFloats
    plans: int
    offloaded_layers: int

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        rows, given = self.rows, self.scenario
        fields_of_plan = ("tp", "pp", "dp", "num_chunks", "microbatch_size")
        numbers: dict[str, Any] = {name: int(getattr(rows, name)[place]) for name in fields_of_plan}
        numbers["offloaded_layers"] = self.offloaded_layers
        numbers |= dict(zip(CHOICES, self.choices[int(self.choice[place])], strict=True))
        numbers |= recompute_fields(numbers["recompute"], given.plan)
        numbers |= sharding_fields(numbers["zero_stage"], given.plan)
        one_layer = numbers["pp"] * numbers["num_chunks"] == given.model.num_layers
        numbers["schedule"] = "modular" if one_layer else "breadth_first"
        plan = ParallelPlan(**numbers, placement=given.plan.placement)
        return given.replace(plan=plan, training=given.training.replace(global_batch_size=int(rows.batch[place])))


def best_of(
    table: LayeredTable, bound: PlanFloats, share: Callable[[int], float], top: int = 1
) -> tuple[list[Estimate], int]:
    """Run plans in the order of their bounds until no other can be among the `top` best; and how many were run.

    `bound` is what none goes below of its step time times its `share`; infinite for those to be left out.
    """
    found: list[tuple[float, Estimate]] = []
    run = 0
    for place in np.argsort(bound, kind="stable").tolist():
        if not np.isfinite(bound[place]) or (len(found) == top and bound[place] >= found[-1][0]):
            break
        answer = estimate(table.scenario_at(place))
        run += 1
        if answer.fits:
            found = sorted([*found, (answer.step_time_s * share(place), answer)], key=lambda item: item[0])[:top]
    return [answer for _, answer in found], run


def layered_table(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    tensor: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    zero_stages: Sequence[int] = (0, 1, 2, 3),
    offloaded_layers: int = 0,
) -> LayeredTable:
    """Bound and memory-check every layered plan.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    tensor, pipeline : sequences of int, optional
        Degrees to try. Default: tensor-parallel degrees that divide NVLink domains or fill them, and all divisors of
        the layers.
    recomputes, sequence_parallel, zero_stages : sequences
        Choices to try.
    offloaded_layers : int
        Layers of the model whose activations wait in host memory.

    Notes
    -----
    At least as many micro-batches as pipeline ranks: with fewer the ranks only wait for each other.

    Raises
    ------
    SpecError
        The model is a mixture of experts.
    """
    if scenario.model.num_experts:
        raise SpecError(
            f"layered plans are searched for models without experts, and {scenario.model.name!r} has "
            f"{scenario.model.num_experts}; use flopcast search, or estimate one layered plan"
        )
    domain, layers = scenario.cluster.nvlink_domain_gpus, scenario.model.num_layers
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    degrees = [tp for tp in whole if tensor is None or tp in tensor]
    depths = [pp for pp in divisors(layers) if pipeline is None or pp in pipeline]
    everything = _rows(scenario, degrees, depths, batches or (scenario.training.global_batch_size,), gpus)
    choices = tuple(product(recomputes_of(scenario, recomputes), sequence_parallel, zero_stages))
    layouts, which = np.unique(everything.layout, axis=0, return_inverse=True)
    placed = place_layouts(layouts, scenario.cluster, scenario.plan)
    # Memory first: most plans of a large model do not fit, and need no price.
    fitting: list[tuple[int, Batch, Ints, Floats]] = []
    looked_at = 0
    for number, (recompute, sp, zero) in enumerate(choices):
        able = (everything.tp > 1) & (scenario.training.sequence_length % everything.tp == 0) | (not sp)
        able &= (everything.dp > 1) | (zero == 0)
        where = np.flatnonzero(able)
        if not len(where):
            continue
        rows = everything.take(where)
        batch = _batch(scenario, placed, which.ravel()[where], rows, recompute, sp, zero, offloaded_layers)
        needed = _memory_bytes(batch)
        looked_at += len(where)
        fits = np.flatnonzero(needed <= scenario.cluster.gpu.memory_bytes * (1 + 1e-9))
        if len(fits):
            fitting.append((number, batch.take(fits), where[fits], needed[fits]))
    numbers, batches_that_fit, places, memory = zip(*fitting, strict=True) if fitting else ((), (), (), ())
    none: list[Any] = [np.empty(0, dtype=np.int64)]
    return LayeredTable(
        scenario,
        choices,
        everything.take(np.concatenate([*places, *none])),
        np.repeat(np.array(numbers, dtype=np.int64), [len(each) for each in places]),
        np.concatenate([*map(_least_step_s, batches_that_fit), *none]).astype(float),
        np.concatenate([*memory, *none]).astype(float),
        looked_at,
        offloaded_layers,
    )


def _batch(
    scenario: Scenario,
    layouts: Layouts,
    layout: Ints,
    rows: Rows,
    recompute: str,
    sequence_parallel: bool,
    zero_stage: int,
    offloaded_layers: int,
) -> Batch:
    """Rows of one choice as columns of what they cost."""
    costs, stack = cost_model(scenario), scenario.stack
    kinds, recomputes = ((stack.overlap_tp_backward, sequence_parallel),), (searched_word(recompute, scenario.plan),)
    offloaded = {"offloaded_layers": offloaded_layers}
    cells, cell = find_cells(layouts, layout, rows.microbatch_size, kinds, recomputes, **offloaded)
    all_rows = np.zeros(len(rows), dtype=np.int64)
    return Batch(
        costs,
        layouts,
        price_cells(costs, cells),
        layout=layout,
        cell=cell,
        kind=all_rows,
        recompute=all_rows,
        zero_stage=all_rows + zero_stage,
        num_chunks=rows.num_chunks,
        num_microbatches=rows.num_microbatches,
        overlap_p2p=(all_rows + stack.overlap_p2p).astype(bool),
        overlap_grad_reduce=(all_rows + stack.overlap_grad_reduce).astype(bool),
        overlap_param_gather=(all_rows + stack.overlap_param_gather).astype(bool),
        reshard_after_forward=scenario.plan.reshard_after_forward,
        outer_zero_stage=scenario.plan.outer_zero_stage,
    )


def _ranks(batch: Batch) -> tuple[RankKind, ...]:
    """The first, a middle and the last rank of every layout; embedding and head never share a stage."""
    kinds = dealt_ranks(batch)
    return tuple(replace(kind, part=replace(kind.part, shared_tables=0)) for kind in kinds)


def _least_step_s(batch: Batch) -> PlanFloats:
    """Time that a step cannot go below.  [s]

    A rank turns to its next chunk when it has done all micro-batches of this one, and when the first of them has come
    round through all ranks; then the last chunk fills and drains the pipeline once. Embedding and head are counted
    where they stand, links between ranks at the nearest they can be. The first rank's backward is the last to end, and
    the embedding's gradients are complete only then.
    """
    stack = batch.costs.stack
    parts = dealt_stages(batch)
    seconds = price_stages(batch, parts, False)
    passes = (seconds.forward[:, 0], seconds.backward[:, 0])
    (first_f, forward, last_f), (first_b, backward, last_b) = passes
    moved = _least_at_visits(price_visits(batch, parts, (*passes, passes[1]), False))
    m, v, pp = batch.num_microbatches, batch.num_chunks, batch.pp
    near, far = near_and_far(batch)
    send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
    hop_f, hop_b = forward + send, backward + send
    sending = 0.0 if stack.overlap_p2p else m * send
    own_f, own_b = (sending + lost for lost in moved.lost)
    round_f = np.maximum(m * forward + own_f, pp * hop_f)
    round_b = np.maximum(m * backward + own_b, pp * hop_b)
    there = moved.begin + np.maximum(m * first_f + own_f, round_f) + (v - 2) * round_f + (pp - 1) * hop_f + m * last_f
    back = np.maximum(m * last_b + own_b, round_b) + (v - 2) * round_b + (pp - 1) * hop_b + m * first_b + moved.tail
    if moved.stream is not None:
        fetched, returned = moved.stream.least(v, pp == 1)
        there = np.maximum(there, fetched + (pp - 1) * hop_f + m * last_f)
        back = np.maximum(back, m * last_b + (pp - 1) * hop_b + returned)
    once = once_a_step(batch, _ranks(batch)).take(slice(0, 1))
    window = (v - 1) * m * forward + m * (first_f - forward) + forward + (last_f - forward) * (pp == 1)
    end = end_of_step(
        (there + back)[np.newaxis],
        once.reduce,
        once.gather,
        once.update,
        tied_embedding=tied_reduction(batch),
        hidden_share=once.hidden_share,
        overlap_reduce=stack.overlap_grad_reduce,
        overlap_gather=stack.overlap_param_gather,
        # Of the first rank's reduction all but the last bucket may be over when its backward is.
        reduced_after=lambda: once.reduce - np.minimum(once.reduce - once.tail, back),
        gather_window=lambda: window,
    )
    return np.asarray(end.step + stack.step_setup_s)


class _AtVisits(NamedTuple):
    """What visits take at least: (there, back) or a number, arrays over plans. [s]

    begin, tail : before the first action of the first rank, and after its last.
    lost : by a rank from one visit to the next, at stages in the middle.
    stream : where gathers and reductions run beside compute, one after the other.
    """

    begin: Number
    tail: Number
    lost: tuple[Number, Number]
    stream: _Stream | None = None


@dataclass(frozen=True, slots=True)
class _Stream:
    """Gathers and reductions of a rank where all of them run beside compute."""

    visits: VisitSeconds

    def least(self, chunks: Ints, alone: Bools) -> tuple[PlanFloats, PlanFloats]:
        """Until the first rank may begin its last chunk's forward; and what is left to move, when the first of its
        chunks has been gone through on the way back, until its gradients are complete.  [s]

        One visit's gather is begun ahead.
        """
        (there, back), reduce, tail = self.visits.gather, self.visits.reduce, self.visits.tail
        end, between = np.where(alone, LAST, MIDDLE), np.maximum(chunks - 2, 0)
        plans, several = np.arange(len(end)), chunks > 1

        def of_end(seconds: KindPlanFloats) -> PlanFloats:
            return np.broadcast_to(seconds, (3, len(end)))[end, plans]

        fetched = there[FIRST] + between * there[MIDDLE] + of_end(there - self.visits.early[0])
        returned = of_end(tail) + between * (reduce[MIDDLE] + back[MIDDLE]) + reduce[FIRST]
        ahead, beside = self.visits.ahead, self.visits.beside
        fetched, returned = np.where(several & ahead, fetched, 0.0), np.where(several & ahead & beside, returned, 0.0)
        return fetched, returned


def _least_at_visits(visits: VisitSeconds | None) -> _AtVisits:
    if visits is None:
        return _AtVisits(0.0, 0.0, (0.0, 0.0))
    gather, slows = visits.gather[:, 1], visits.gather_slows[:, 1]
    waits = np.where(visits.ahead, 0.0, gather)
    reduced = np.where(visits.beside, visits.reduce_slows, visits.reduce).min(axis=0)
    there, back = waits + slows
    return _AtVisits(
        begin=visits.gather[0, 0] - visits.early[0, 0],
        tail=np.where(visits.beside, visits.tail, visits.reduce)[0],
        lost=(there, back + reduced),
        stream=_Stream(visits),
    )


def _memory_bytes(batch: Batch) -> PlanFloats:
    """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
    kinds = _ranks(batch)
    parts = [_of_plans(kind.part, batch) for kind in kinds]
    peaks = batch.num_microbatches * stage_bytes(batch, parts)
    logits = batch.num_microbatches * np.stack([batch.pp == 1, 0 * batch.pp, 1 + 0 * batch.pp])
    held = params_of([kind.part for kind in kinds], batch.costs, batch.layouts).take(batch.layout)
    return np.asarray(peak_memory(batch, held, peaks, logits).total.max(axis=0))


def _of_plans(part: ModelPart, batch: Batch) -> ModelPart:
    """A part that every layout has, of every plan."""
    return part.each(lambda number: number[batch.layout] if np.ndim(number) else number)


def _rows(
    scenario: Scenario, degrees: list[int], depths: list[int], batches: Sequence[int], gpus: tuple[int, int]
) -> Rows:
    layers, most = scenario.model.num_layers, min(gpus[1], scenario.cluster.num_gpus)
    shapes = [(tp, pp, v) for tp in degrees for pp in depths for v in divisors(layers // pp) if v > 1]
    cuts = [
        (batch, dp, size) for batch in batches for dp in divisors(batch) if dp <= most for size in divisors(batch // dp)
    ]
    shape, cut = np.array(shapes, dtype=np.int64).reshape(-1, 3), np.array(cuts, dtype=np.int64).reshape(-1, 3)
    first, second = (each.ravel() for each in np.indices((len(shape), len(cut))))
    (tp, pp, chunks), (batch, dp, size) = shape[first].T, cut[second].T
    used = tp * pp * dp
    kept = (used >= gpus[0]) & (used <= most) & (batch // (dp * size) >= pp)
    kept &= dp % (scenario.plan.sharding_group or 1) == 0
    return Rows(*(each[kept] for each in (batch, tp, pp, dp, chunks, size)))
