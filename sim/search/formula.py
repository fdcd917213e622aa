"""Plans of a space priced and memory-checked as columns, some rows at a time, so that what these need stays in caches.

Prices are the closed form's: never above what the exact engine says, and nearly always within a percent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.even_pipelines import EvenPipelines, Links, find_links, sends_over
from sim.engines.order_facts import in_flight_by_rank
from sim.engines.program import end_of_step
from sim.pricing.cells import CellPrices, Plans, Way, price_cells
from sim.pricing.deal import Deal, dealt_layers, even_deal, longer_ranks, params_of
from sim.pricing.layouts import Layouts, place_layouts
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import StageSeconds, near_and_far, once_a_step, price_stages, tied_reduction
from sim.search.fields import SCHEDULES, base_plan
from sim.search.space import Category, Columns, Progress, Space
from sim.specs import Scenario
from sim.specs.stack import sends_overlap
from sim.work.recompute import Recompute


def ways_of(scenario: Scenario, categories: Sequence[Category]) -> tuple[tuple[Way, ...], Ints]:
    """Ways to compute layers: without and with sequence parallelism × what runs again and how many layers are
    offloaded; and of each category the number of the latter."""
    overlap = scenario.stack.overlap_tp_backward
    kinds = [(Recompute(each.recompute, each.recompute_modules), each.offloaded_layers) for each in categories]
    again = list(dict.fromkeys(kinds))
    ways = tuple(Way(overlap, flag, *each) for flag, each in product((False, True), again))
    return ways, np.array([again.index(each) for each in kinds], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Priced:
    """Plans with their prices: one row of four columns each.

    category, row : which of the space's.
    step_time_s : by the closed form, or what the step cannot go below. [s]
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


def price_space(space: Space, progress: Progress | None = None) -> Priced:
    """The table of all plans, category after category."""
    report, size = progress or (lambda done, size: None), len(space.columns)
    # Given back at once, untouched: from then on glibc's malloc keeps the memory of arrays as large as those below
    # instead of returning it to the system and faulting it in again, a third of the time.
    np.empty(4_000_000)
    zeros, zero = np.unique([each.zero_stage for each in space.categories], return_inverse=True)
    rows, again = Rows.of(space, np.arange(size), space.categories, partial(report, 0, space.num_plans))
    seconds, nbytes = np.empty((2, len(zeros), len(rows.prices.ways) // 2, size))
    for begin in range(0, size, _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        part, choices = rows.take(some), zeros[:, np.newaxis, np.newaxis]
        nbytes[..., some], seconds[..., some] = part.memory_bytes(choices), part.step_times(choices)
        report(round(min(some.stop / size, 1.0) * space.num_plans), space.num_plans)
    category, row = space.plans
    at = zero.ravel()[category], again[category], row
    return Priced(category.astype(np.int16), row.astype(np.int32), seconds[at], nbytes[at])


def plan_batch(space: Space, category: Ints, row: Ints) -> Plans:
    """Some plans of a space under one schedule, by category and row, as columns of what they cost, on one axis."""
    rows, again = Rows.of(space, row, space.categories)
    stack, num_chunks = space.scenario.stack, rows.columns.num_chunks
    return replace(
        rows.plans(..., again[category]),
        schedule=space.schedules[0],
        zero_stage=np.array([each.zero_stage for each in space.categories])[category],
        overlap_p2p=np.full(len(row), False) | sends_overlap(stack.overlap_p2p, num_chunks),
        overlap_grad_reduce=np.full(len(row), stack.overlap_grad_reduce),
        overlap_param_gather=np.full(len(row), stack.overlap_param_gather),
    )


@dataclass(frozen=True)
class Rows:
    """Some rows of a space: choices of ZeRO × ways to recompute × rows.

    prices : of cells whose ways are those of `ways_of`.
    again : what each row runs again and offloads, of the ways, on the last axis; None: all on the one before it.
    """

    scenario: Scenario
    layouts: Layouts
    prices: CellPrices
    columns: Columns
    cell: Ints
    again: Ints | None = None

    @classmethod
    def of(
        cls, space: Space, rows: Ints, categories: Sequence[Category], waiting: Callable[[], object] | None = None
    ) -> tuple[Rows, Ints]:
        """Rows of a space with what they cost in the ways of some categories; and the number of each category's way."""
        scenario, columns = space.scenario, space.columns.take(rows)
        there, layout = np.unique(columns.layout, return_inverse=True)
        columns = replace(columns, layout=layout.ravel())
        layouts = place_layouts(scenario, space.layouts[there], waiting)
        ways, again = ways_of(scenario, categories)
        # Cached: plans that differ in their ZeRO stage share cells.
        prices, cell = price_cells(layouts, columns.layout, columns.microbatch_size, ways, space.slices)
        return cls(scenario, layouts, prices, columns, cell), again

    def take(self, places: Ints | slice, again: Ints | None = None) -> Rows:
        """Some of the rows; `again` is what each of them runs again, if not all ways are wanted."""
        return replace(self, columns=self.columns.take(places), cell=self.cell[places], again=again)

    def plans(self, at: Any, again: Ints) -> Plans:
        """The rows as plans without ZeRO whose sends wait.

        at : puts the rows on their axis.
        again : what plans run again, of the ways.
        """
        columns, stack, batch = self.columns, self.scenario.stack, self.scenario.training.global_batch_size
        return Plans(
            self.layouts,
            self.prices,
            base_plan(self.scenario),
            "interleaved",
            layout=columns.layout[at],
            cell=self.cell[at],
            way=columns.sequence_parallel[at] * (len(self.prices.ways) // 2) + again,
            zero_stage=np.array(0),
            num_chunks=columns.num_chunks[at],
            num_microbatches=(batch // (columns.dp * columns.microbatch_size))[at],
            overlap_p2p=np.array(False),
            overlap_grad_reduce=np.array(stack.overlap_grad_reduce),
            overlap_param_gather=np.array(stack.overlap_param_gather),
        )

    @cached_property
    def batch(self) -> Plans:
        """The rows as plans, on three axes."""
        again = np.arange(len(self.prices.ways) // 2)[:, np.newaxis] if self.again is None else self.again
        return self.plans((np.newaxis, np.newaxis), again)

    @cached_property
    def deal(self) -> Deal:
        """The layers of kinds of stages and ranks."""
        return even_deal(self.batch)

    @cached_property
    def longer(self) -> Ints:
        """How many ranks of each row hold a layer more than the others."""
        dealt = dealt_layers(self.scenario.model, self.scenario.plan)
        return np.asarray(longer_ranks(dealt, self.layouts.pp)[self.columns.layout])

    @cached_property
    def _gpipe(self) -> Bools:
        return np.asarray(self.columns.schedule == SCHEDULES.index("gpipe"))

    def memory_bytes(self, zero_stage: Ints, optimizer_offload: Number = 0.0) -> PlanFloats:
        """Peak memory of the fullest GPU, over choices, ways to recompute and rows.  [bytes]"""
        columns, batch = self.columns, replace(self.batch, zero_stage=zero_stage, optimizer_offload=optimizer_offload)
        kept = in_flight_by_rank(columns.pp, columns.num_chunks, batch.num_microbatches[0, 0], self._gpipe)
        fullest = even_deal(self.batch, True) if len(self.scenario.model.layer_kinds) > 1 else self.deal
        first, middle, last, *longer = stage_bytes(batch, fullest.stage_kinds)
        for each in longer:  # the second rank is the fullest of the middle ones, and among the first to have more
            middle = np.where(self.longer > 0, each, middle)
        peaks = np.stack([kept.first.peak(middle, first), kept.middle * middle, kept.last.peak(middle, last)])
        most = kept.last.most
        logits = np.stack([most * (columns.pp == 1), np.zeros_like(most), most])[:, np.newaxis, np.newaxis]
        held = params_of(fullest.rank_kinds.counts[:3], batch.layouts)[..., batch.layout]
        first, middle, last = peak_memory(batch, held, peaks, logits).total
        others = np.maximum(last * (columns.pp > 1), middle * (columns.pp > 2))
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
        beside = sends_overlap(self.scenario.stack.overlap_p2p, self.columns.num_chunks)

        def priced(beside: bool) -> PlanFloats:
            pipelines = self._pipelines(visits, beside)
            ends = pipelines.find_ends()
            if zero_stage.ndim == 3:
                ends = ends[:, which]
                pipelines = pipelines._replace(
                    forward=pipelines.forward[:, which], backward=pipelines.backward[:, which]
                )
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
        return np.asarray(end + self.scenario.stack.step_setup_s)

    def _pipelines(self, zero_stage: Ints, beside: bool) -> EvenPipelines:
        """The pipelines of rows, over what ZeRO moves at visits, recomputation and rows."""
        columns, (near, far) = self.columns, (each[0, 0] for each in near_and_far(self.batch))
        numbers = (columns.pp, columns.num_chunks, self.batch.num_microbatches[0, 0], self._gpipe)
        links = _links_of(self.layouts, dealt_layers(self.scenario.model, self.scenario.plan)).take(columns.layout)
        sends = links, sends_over(links, near, far), not beside, self.longer
        batch = replace(self.batch, zero_stage=zero_stage, overlap_p2p=np.array(beside))
        seconds = price_stages(batch, self.deal, split=False)
        shape = (len(self.deal.stage_kinds), *batch.shape)
        passes = (np.broadcast_to(each, shape) for each in (seconds.forward_s, seconds.backward_s))
        return EvenPipelines(*numbers, *sends, *passes)


@lru_cache(maxsize=4)
def _links_of(layouts: Layouts, dealt: int) -> Links:
    """Links of the pipelines of layouts that deal so many layers."""
    longer = longer_ranks(dealt, layouts.pp)
    return find_links(list(zip(layouts.hops, layouts.pp.tolist(), longer.tolist(), strict=True)))


_AT_ONCE = 2048
"""Rows that are priced together: so few that arrays over kinds of ranks, choices and rows stay in the caches."""
