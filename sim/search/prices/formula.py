"""Plans of a space priced and memory-checked as columns, some rows at a time, so that what these need stays in caches.

Prices are the closed form's: never above what the exact engine says, and nearly always within a percent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from sim.arrays import Array, Floats, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.even_pipelines import EvenPipelines, Links, find_links, sends_over
from sim.engines.order_facts import in_flight_by_rank
from sim.engines.program import end_of_step
from sim.pricing.cells import CellPrices, Plans, Way, price_cells
from sim.pricing.deal import dealt_layers, even_deal, longer_ranks, params_of
from sim.pricing.layouts import Layouts, place_layouts
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import StageSeconds, near_and_far, once_a_step, price_stages, tied_reduction
from sim.search.plans.layouts import SCHEDULES, Columns
from sim.search.plans.space import Progress, Space, base_plan
from sim.specs import Scenario
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word


def plan_batch(space: Space, layouts: Layouts, row: Ints, category: Ints) -> Plans:
    """Some plans of a space under one schedule, by row and category, as columns of what they cost.

    layouts : the space's, on its cluster.
    """
    columns, scenario, categories = space.columns, space.scenario, space.categories
    stack, num_chunks = scenario.stack, columns.num_chunks[row]
    words = [searched_word(each.recompute, scenario.plan) for each in categories]
    again = list(dict.fromkeys(zip(words, (each.offloaded_layers for each in categories), strict=True)))
    ways = ways_of(scenario, again)
    number = [
        each.sequence_parallel * len(again) + again.index((word, each.offloaded_layers))
        for each, word in zip(categories, words, strict=True)
    ]
    # Cached: plans that differ in their ZeRO stage share cells.
    prices, cell = price_cells(layouts, columns.layout[row], columns.microbatch_size[row], ways, space.slices)
    return Plans(
        layouts,
        prices,
        base_plan(scenario),
        space.schedules[0],
        layout=columns.layout[row],
        cell=cell,
        way=np.array(number)[category],
        zero_stage=np.array([each.zero_stage for each in categories])[category],
        num_chunks=num_chunks,
        num_microbatches=space.num_microbatches[row],
        overlap_p2p=np.full(len(row), False) | sends_overlap(stack.overlap_p2p, num_chunks),
        overlap_grad_reduce=np.full(len(row), stack.overlap_grad_reduce),
        overlap_param_gather=np.full(len(row), stack.overlap_param_gather),
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """Plans with their prices: one row of four columns each.

    category, row : which of the space's.
    step_time_s : by the closed form. [s]
    memory_bytes : of the fullest GPU. [bytes]
    """

    category: Array
    row: Array
    step_time_s: Array
    memory_bytes: Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, places: Array | slice) -> Priced:
        """Some of the plans."""
        return Priced(*(getattr(self, name)[places] for name in Priced.__slots__))


def join(parts: Sequence[Priced]) -> Priced:
    """Several tables as one."""
    return Priced(*(np.concatenate([getattr(each, name) for each in parts]) for name in Priced.__slots__))


def price_all(space: Space) -> Iterator[tuple[int, Ints, Floats, Floats]]:
    """(category, rows, step times, memory) of one category after the other. [-, -, s, bytes]"""
    priced = price_space(space)
    for number in np.unique(priced.category).tolist():
        here = priced.take(priced.category == number)
        yield number, here.row, here.step_time_s, here.memory_bytes


def price_space(space: Space, progress: Progress | None = None) -> Priced:
    """The table of all plans, category after category."""
    report = progress or (lambda done, size: None)
    # Given back at once, untouched: from then on glibc's malloc keeps the memory of arrays as large as those below
    # instead of returning it to the system and faulting it in again, a third of the time.
    np.empty(4_000_000)
    scenario, categories = space.scenario, space.categories
    words = [searched_word(each.recompute, scenario.plan) for each in categories]
    again, zeros = list(dict.fromkeys(words)), sorted({each.zero_stage for each in categories})
    flags = {each.sequence_parallel for each in categories}
    rows_of = [space.rows_of(flag) if flag in flags else np.empty(0, dtype=np.int64) for flag in (False, True)]
    without, columns = len(rows_of[0]), space.columns.take(np.concatenate(rows_of))
    layouts, links = layouts_with_links(scenario, space.layouts, partial(report, 0, space.num_plans))
    ways = ways_of(scenario, [(word, 0) for word in again])
    prices, cell = price_cells(layouts, columns.layout, columns.microbatch_size, ways)
    flag, choices = (np.arange(len(columns)) >= without).astype(np.int64), np.array(zeros)[:, np.newaxis, np.newaxis]
    seconds, nbytes = np.empty((2, len(zeros), len(again), len(columns)))
    for begin in range(0, len(columns), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        rows = Rows(scenario, layouts, links, prices, columns.take(some), cell[some], flag[some])
        nbytes[..., some], seconds[..., some] = rows.memory_bytes(choices), rows.step_times(choices)
        report(round(min(some.stop / len(columns), 1.0) * space.num_plans), space.num_plans)
    where = [
        (
            zeros.index(each.zero_stage),
            again.index(word),
            (slice(without), slice(without, None))[each.sequence_parallel],
        )
        for each, word in zip(categories, words, strict=True)
    ]
    found = [rows_of[each.sequence_parallel] for each in categories]
    table = Priced(
        np.repeat(np.arange(len(found), dtype=np.int16), [len(each) for each in found]),
        np.concatenate(found, dtype=np.int32, casting="same_kind"),
        *(np.concatenate([each[at] for at in where]) for each in (seconds, nbytes)),
    )
    kept = np.concatenate([space.kept[each][rows] for each, rows in zip(categories, found, strict=True)])
    return table if kept.all() else table.take(np.flatnonzero(kept))


def ways_of(scenario: Scenario, again: Sequence[tuple[str, int]]) -> tuple[Way, ...]:
    """Ways to compute layers: without and with sequence parallelism × what runs again and how many layers are
    offloaded."""
    overlap = scenario.stack.overlap_tp_backward
    return tuple(Way(overlap, flag, *each) for flag, each in product((False, True), again))


def layouts_with_links(
    scenario: Scenario, degrees: Ints, waiting: Callable[[], object] | None = None
) -> tuple[Layouts, Links]:
    """Layouts (tp, cp, pp, dp, ep) on the scenario's cluster, and the links of their pipelines."""
    layouts = place_layouts(scenario, degrees, waiting)
    longer = longer_ranks(dealt_layers(scenario.model, scenario.plan), layouts.pp)
    return layouts, find_links(list(zip(layouts.hops, layouts.pp.tolist(), longer.tolist(), strict=True)))


class Rows:
    """Some rows of a space: choices of ZeRO × ways to recompute × rows.

    prices : of cells whose ways are those of `ways_of`.
    again : of what runs again and is offloaded there, what each row has, on the last axis; all on the one before it
        where that is not said.
    """

    def __init__(
        self,
        scenario: Scenario,
        layouts: Layouts,
        links: Links,
        prices: CellPrices,
        columns: Columns,
        cell: Ints,
        flag: Ints,
        again: Ints | None = None,
    ) -> None:
        ways = prices.ways
        self._stack, self._again = scenario.stack, len(ways) // 2
        self.columns, self.links = columns, links.take(columns.layout)
        count = scenario.training.global_batch_size // (columns.dp * columns.microbatch_size)
        self.gpipe = columns.schedule == SCHEDULES.index("gpipe")
        self.in_flight = in_flight_by_rank(columns.pp, columns.num_chunks, count, self.gpipe)
        stack = scenario.stack
        self.batch = Plans(
            layouts,
            prices,
            base_plan(scenario),
            "interleaved",
            layout=columns.layout[_ROWS],
            cell=cell[_ROWS],
            way=flag[_ROWS] * self._again + (np.arange(self._again)[:, np.newaxis] if again is None else again),
            zero_stage=np.array(0),
            num_chunks=columns.num_chunks[_ROWS],
            num_microbatches=count[_ROWS],
            overlap_p2p=np.array(False),
            overlap_grad_reduce=np.array(stack.overlap_grad_reduce),
            overlap_param_gather=np.array(stack.overlap_param_gather),
        )
        self.deal = even_deal(self.batch)
        self.fullest = even_deal(self.batch, True) if len(scenario.model.layer_kinds) > 1 else self.deal
        self.longer = longer_ranks(dealt_layers(scenario.model, scenario.plan), layouts.pp)[columns.layout]

    def memory_bytes(self, zero_stage: Ints, optimizer_offload: Number = 0.0) -> PlanFloats:
        """Peak memory of the fullest GPU, over choices, ways to recompute and rows.  [bytes]"""
        batch, kept = replace(self.batch, zero_stage=zero_stage, optimizer_offload=optimizer_offload), self.in_flight
        first, middle, last, *longer = stage_bytes(batch, self.fullest.stage_kinds)
        for each in longer:  # the second rank is the fullest of the middle ones, and among the first to have more
            middle = np.where(self.longer > 0, each, middle)
        peaks = np.stack([kept.first.peak(middle, first), kept.middle * middle, kept.last.peak(middle, last)])
        most = kept.last.most
        logits = np.stack([most * (self.columns.pp == 1), np.zeros_like(most), most])[:, np.newaxis, np.newaxis]
        held = params_of(self.fullest.rank_kinds.counts[:3], batch.layouts)[..., batch.layout]
        first, middle, last = peak_memory(batch, held, peaks, logits).total
        others = np.maximum(last * (self.columns.pp > 1), middle * (self.columns.pp > 2))
        return np.asarray(np.maximum(first, others))

    def step_times(self, zero_stage: Ints, optimizer_offload: float = 0.0) -> PlanFloats:
        """Step times over choices of ZeRO, ways to recompute and rows.  [s]

        zero_stage : (choices, 1, 1), or one of each row.
        """
        visits, which = zero_stage, np.arange(len(zero_stage))
        if zero_stage.ndim == 3:  # without ZeRO 2 or 3 nothing moves at visits, and pipelines end alike
            kinds = np.where(zero_stage < 2, 0, zero_stage)
            visits, which = np.unique(kinds, return_inverse=True)
            visits, which = visits[:, np.newaxis, np.newaxis], which.ravel()
        batch = replace(self.batch, zero_stage=zero_stage, optimizer_offload=optimizer_offload)
        # A shorter middle rank is never the last to be done: it counts in averages only.
        once = once_a_step(batch, self.deal).of_ranks(slice(0, 3))
        beside = sends_overlap(self._stack.overlap_p2p, self.columns.num_chunks)

        def priced(beside: bool) -> PlanFloats:
            pipelines = self._pipelines(visits, beside)
            ends = pipelines.find_ends()
            if zero_stage.ndim == 3:
                ends = ends[:, which]
                passes = (each[:, which] for each in (pipelines.forward, pipelines.backward))
                pipelines = EvenPipelines(*pipelines[:-2], *passes)
            return self._ended(pipelines, ends, once)

        if np.ndim(beside) == 0 or beside.all() or not beside.any():
            return priced(bool(np.all(beside)))
        return np.asarray(np.where(beside, priced(True), priced(False)))

    def _ended(self, passes: EvenPipelines, ends_at: KindPlanFloats, once: StageSeconds) -> PlanFloats:
        """Step times of pipelines whose ranks end so.  [s]"""
        end = end_of_step(
            ends_at,
            once.reduce_s,
            once.gather_s,
            once.optimizer_s,
            tied_embedding=tied_reduction(self.batch, self.deal),
            hidden_share=once.hidden_share,
            overlap_reduce=self.batch.overlap_grad_reduce,
            overlap_gather=self.batch.overlap_param_gather,
            reduced_after=partial(passes.reductions_after_end, once, ends_at),
            gather_window=passes.gather_windows,
        )
        return np.asarray(end + self._stack.step_setup_s)

    def _pipelines(self, zero_stage: Ints, beside: bool) -> EvenPipelines:
        columns, (near, far) = self.columns, (each[0, 0] for each in near_and_far(self.batch))
        numbers = (columns.pp, columns.num_chunks, self.batch.num_microbatches[0, 0], self.gpipe)
        sends = self.links, sends_over(self.links, near, far), not beside, self.longer
        return EvenPipelines(*numbers, *sends, *self._stages(zero_stage, beside))

    def _stages(self, zero_stage: Ints, beside: bool) -> tuple[KindPlanFloats, KindPlanFloats]:
        """Forward and backward of the kinds of stages, over what ZeRO moves in them, recomputation and rows.  [s]"""
        batch = replace(self.batch, zero_stage=zero_stage, overlap_p2p=np.array(beside))
        seconds = price_stages(batch, self.deal, split=False)
        shape = (len(self.deal.stage_kinds), *batch.shape)
        forward, backward = (np.broadcast_to(each, shape) for each in (seconds.forward_s, seconds.backward_s))
        return forward, backward


_AT_ONCE = 2048
"""Rows that are priced together: so few that arrays over kinds of ranks, choices and rows stay in the caches."""
_ROWS = (np.newaxis, np.newaxis)
"""Puts rows on the last of three axes: choices of ZeRO, ways to recompute, rows."""
