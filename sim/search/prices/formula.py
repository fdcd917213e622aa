"""Plans of a space priced and memory-checked as columns, some rows at a time, so that what these need stays in caches.

Prices are the closed form's: never above what the exact engine says, and nearly always within a percent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Floats, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.even_pipelines import EvenPipelines, Links, Pipelines, find_links, sends_over
from sim.engines.order_facts import in_flight_by_rank
from sim.engines.program import end_of_step
from sim.pricing.cells import CellPrices, Plans, Way, price_cells
from sim.pricing.deal import dealt_layers, even_deal, longer_ranks, params_of
from sim.pricing.layouts import Layouts, place_layouts
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import StageSeconds, near_and_far, once_a_step, price_stages, tied_reduction
from sim.search.plans.layouts import OVERLAPS, SCHEDULES, Category, Columns
from sim.search.plans.space import Progress, Space, base_plan
from sim.specs import Scenario
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word


def plan_batch(space: Space, layouts: Layouts, row: Ints, category: Ints) -> Plans:
    """Some plans of a space under one schedule, by row and category, as columns of what they cost.

    layouts : the space's, on its cluster.
    """
    columns, num_chunks = space.columns, space.columns.num_chunks[row]

    def of_category(values: list[Any]) -> Any:
        return np.array(values)[category]

    sends, reduce, gather, tensor = zip(*(each.overlaps for each in space.categories), strict=True)
    beside: Bools = np.zeros(len(row), dtype=bool)
    for stated in dict.fromkeys(sends):
        beside |= of_category([each == stated for each in sends]) & sends_overlap(stated, num_chunks)
    words = [searched_word(each.recompute, space.scenario.plan) for each in space.categories]
    kinds = [
        (overlap, each.sequence_parallel, word, each.offloaded_layers)
        for overlap, each, word in zip(tensor, space.categories, words, strict=True)
    ]
    flags = sorted({kind[:2] for kind in kinds})
    ways = tuple(Way(*flag, *again) for flag, again in product(flags, dict.fromkeys(kind[2:] for kind in kinds)))
    # Cached: plans that differ in their ZeRO stage share cells.
    prices, cell = price_cells(layouts, columns.layout[row], columns.microbatch_size[row], ways, space.slices)
    return Plans(
        layouts,
        prices,
        base_plan(space.scenario),
        space.schedules[0],
        layout=columns.layout[row],
        cell=cell,
        way=of_category([ways.index(Way(*kind)) for kind in kinds]),
        zero_stage=of_category([each.zero_stage for each in space.categories]),
        num_chunks=num_chunks,
        num_microbatches=space.num_microbatches[row],
        overlap_p2p=beside,
        overlap_grad_reduce=of_category(list(reduce)),
        overlap_param_gather=of_category(list(gather)),
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
    priced, _ = price_space(space)
    for number in np.unique(priced.category).tolist():
        here = priced.take(priced.category == number)
        yield number, here.row, here.step_time_s, here.memory_bytes


def price_space(space: Space, progress: Progress | None = None) -> tuple[Priced, bool]:
    """The table of all plans, category after category; and whether it has them all.

    Interrupted (KeyboardInterrupt), it has those that were priced so far.
    """
    # Given back at once, untouched: from then on glibc's malloc keeps the memory of arrays as large as those below
    # instead of returning it to the system and faulting it in again, a third of the time.
    np.empty(4_000_000)
    categories = space.categories
    rows_of = [space.rows_of(flag) for flag in (False, True)]
    sizes = np.array([len(rows_of[category.sequence_parallel]) for category in categories])
    begins = dict(zip(categories, (np.cumsum(sizes) - sizes).tolist(), strict=True))
    seconds, nbytes = np.full((2, sizes.sum()), np.nan)
    finished = True
    try:
        waiting = None if progress is None else partial(progress, 0, space.num_plans)
        for priced, rows, of_flag in _pieces(space, waiting):
            _price_piece(rows, of_flag, categories, begins, seconds, nbytes)
            if progress is not None:
                progress(round(priced * space.num_plans), space.num_plans)
    except KeyboardInterrupt:
        if np.isnan(seconds).all():
            raise
        finished = False
    kept = np.concatenate([space.kept[each][rows_of[each.sequence_parallel]] for each in categories])
    if not finished:
        kept &= ~np.isnan(seconds)
    row = np.concatenate([rows_of[each.sequence_parallel] for each in categories], dtype=np.int32, casting="same_kind")
    table = Priced(np.repeat(np.arange(len(sizes), dtype=np.int16), sizes), row, seconds, nbytes)
    return table if kept.all() else table.take(np.flatnonzero(kept)), finished


_Where = Mapping[bool, tuple[int, slice]]
"""Rows with and without sequence parallelism: the number of the first among all of its kind, and where they stand."""


def _price_piece(
    rows: Rows,
    of_flag: _Where,
    categories: Sequence[Category],
    begins: Mapping[Category, int],
    seconds: Floats,
    nbytes: Floats,
) -> None:
    """Write prices of some rows in every category to where these begin."""
    zeros = sorted({category.zero_stage for category in categories})
    needed, here = rows.memory_bytes(_choices(zeros)), []
    for category in categories:
        if category.sequence_parallel in of_flag:
            first, inside = of_flag[category.sequence_parallel]
            begin = begins[category] + first
            here.append((category, slice(begin, begin + inside.stop - inside.start), inside))
    for category, place, inside in here:
        nbytes[place] = needed[zeros.index(category.zero_stage), rows.recompute(category), inside]
    for overlaps, took, ends in rows.step_times(categories):
        for category, place, inside in here:
            if (category.overlaps[0], category.overlaps[_OVERLAP_TP]) == overlaps:
                seconds[place] = took[ends.index(_end_key(category)), rows.recompute(category), inside]


def _pieces(space: Space, waiting: Callable[[], object] | None = None) -> Iterator[tuple[float, Rows, _Where]]:
    """Some rows of a space at a time: which share of all rows is behind them, and where they stand.

    waiting : called while layouts are placed, before the first.
    """
    scenario, categories = space.scenario, space.categories
    recomputes = tuple(dict.fromkeys(category.recompute for category in categories))
    flags = {category.sequence_parallel for category in categories}
    cut = [space.rows_of(flag) if flag in flags else np.empty(0, dtype=np.int64) for flag in (False, True)]
    without, columns = len(cut[0]), space.columns.take(np.concatenate(cut))
    layouts, links = layouts_with_links(scenario, space.layouts, waiting)
    again = [(searched_word(mode, scenario.plan), 0) for mode in recomputes]
    prices, cell = price_cells(layouts, columns.layout, columns.microbatch_size, ways_of(categories, again))
    flag = (np.arange(len(columns)) >= without).astype(np.int64)
    for begin in range(0, len(columns), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(columns))
        some, border = slice(begin, end), min(max(without - begin, 0), end - begin)
        found = {False: (begin, slice(0, border))} if border else {}
        found |= {True: (begin + border - without, slice(border, end - begin))} if border < end - begin else {}
        yield (
            end / len(columns),
            Rows(scenario, layouts, links, prices, columns.take(some), cell[some], flag[some]),
            found,
        )


def ways_of(categories: Sequence[Category], again: Sequence[tuple[str, int]]) -> tuple[Way, ...]:
    """Ways to compute layers: with tensor parallelism overlapped as in categories × without and with sequence
    parallelism × what runs again and how many layers are offloaded."""
    overlaps = sorted({category.overlaps[_OVERLAP_TP] for category in categories})
    return tuple(Way(overlap, flag, *each) for overlap, flag, each in product(overlaps, (False, True), again))


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
        self._plan, self._overlaps = scenario.plan, list(dict.fromkeys(way.overlap_tp for way in ways))
        self._again = len(ways) // (2 * len(self._overlaps))
        self.columns, self.links = columns, links.take(columns.layout)
        count = scenario.training.global_batch_size // (columns.dp * columns.microbatch_size)
        self.gpipe = columns.schedule == SCHEDULES.index("gpipe")
        self.in_flight = in_flight_by_rank(columns.pp, columns.num_chunks, count, self.gpipe)
        off, none = np.array(False), np.array(0)
        self.batch = Plans(
            layouts,
            prices,
            base_plan(scenario),
            "interleaved",
            layout=columns.layout[_ROWS],
            cell=cell[_ROWS],
            way=flag[_ROWS] * self._again + (np.arange(self._again)[:, np.newaxis] if again is None else again),
            zero_stage=none,
            num_chunks=columns.num_chunks[_ROWS],
            num_microbatches=count[_ROWS],
            overlap_p2p=off,
            overlap_grad_reduce=off,
            overlap_param_gather=off,
        )
        self.deal = even_deal(self.batch)
        self.fullest = even_deal(self.batch, True) if len(scenario.model.layer_kinds) > 1 else self.deal
        self.longer = longer_ranks(dealt_layers(scenario.model, scenario.plan), layouts.pp)[columns.layout]

    def recompute(self, category: Category) -> int:
        """Where a category stands on the axis over ways to recompute."""
        words = [way.recompute for way in self.batch.prices.ways]
        return words.index(searched_word(category.recompute, self._plan))

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

    def step_times(
        self, categories: Sequence[Category]
    ) -> Iterator[tuple[tuple[bool | str, bool], PlanFloats, list[tuple[int, bool, bool]]]]:
        """Step times for every (overlapped sends, overlapped tensor parallelism), and the choices they range over.  [s]

        The choices are (ZeRO stage, overlapped reductions, overlapped gathers); ways to recompute and rows follow them.
        """
        ends = sorted({_end_key(category) for category in categories})
        visits = sorted({_visit_key(*end) for end in ends})
        which = [visits.index(_visit_key(*end)) for end in ends]
        zero, reduce, gather = (_choices([key[place] for key in ends]) for place in range(3))
        zero_of, reduce_of, gather_of = (_choices([key[place] for key in visits]) for place in range(3))
        once = self._once(zero)
        for overlap_tp, sends in product(self._overlaps, dict.fromkeys(each.overlaps[0] for each in categories)):

            def priced(beside: bool, overlap_tp: bool = overlap_tp) -> PlanFloats:
                of_sends = self._pipelines(not beside)
                forward, backward = self._stages(zero_of, (beside, reduce_of, gather_of, overlap_tp))
                ends_at = EvenPipelines(of_sends, forward, backward).find_ends()[:, which]
                passes = EvenPipelines(of_sends, forward[:, which], backward[:, which])
                return self._ended(passes, ends_at, once, reduce, gather)

            yield (sends, overlap_tp), self._with_sends(sends, priced), ends

    def step_time(self, zero_stage: Ints, overlaps: Sequence[Any], optimizer_offload: float = 0.0) -> PlanFloats:
        """Step times with a ZeRO stage of each row, over ways to recompute and rows.  [s]"""
        sends, reduce, gather, tensor = overlaps
        once = self._once(zero_stage, optimizer_offload)

        def priced(beside: bool) -> PlanFloats:
            of_stages = self._stages(zero_stage, (beside, np.array(reduce), np.array(gather), tensor))
            passes = EvenPipelines(self._pipelines(not beside), *of_stages)
            return self._ended(passes, passes.find_ends(), once, np.array(reduce), np.array(gather))

        return np.asarray(self._with_sends(sends, priced)[0])

    def _with_sends(self, stated: bool | str, priced: Callable[[bool], PlanFloats]) -> PlanFloats:
        """Step times of rows whose sends overlap as a stack states it, from those of all with overlap and without."""
        beside = sends_overlap(stated, self.columns.num_chunks)
        if np.ndim(beside) == 0 or beside.all() or not beside.any():
            return priced(bool(np.all(beside)))
        return np.asarray(np.where(beside, priced(True), priced(False)))

    def _once(self, zero_stage: Ints, optimizer_offload: float = 0.0) -> StageSeconds:
        batch = replace(self.batch, zero_stage=zero_stage, optimizer_offload=optimizer_offload)
        # A shorter middle rank is never the last to be done: it counts in averages only.
        return once_a_step(batch, self.deal).of_ranks(slice(0, 3))

    def _ended(
        self, passes: EvenPipelines, ends_at: KindPlanFloats, once: StageSeconds, reduce: Bools, gather: Bools
    ) -> PlanFloats:
        """Step times of pipelines whose ranks end so, with reductions and gathers overlapped or not.  [s]"""
        end = end_of_step(
            ends_at,
            once.reduce_s,
            once.gather_s,
            once.optimizer_s,
            tied_embedding=tied_reduction(self.batch, self.deal),
            hidden_share=once.hidden_share,
            overlap_reduce=reduce,
            overlap_gather=gather,
            reduced_after=partial(passes.reductions_after_end, once, ends_at),
            gather_window=passes.gather_windows,
        )
        return np.asarray(end + self.batch.costs.stack.step_setup_s)

    def _pipelines(self, blocking: bool) -> Pipelines:
        columns, (near, far) = self.columns, (each[0, 0] for each in near_and_far(self.batch))
        sends = sends_over(self.links, near, far)
        numbers = (columns.pp, columns.num_chunks, self.batch.num_microbatches[0, 0])
        return Pipelines(*numbers, self.gpipe, self.links, sends, blocking, self.longer)

    def _stages(self, zero: Ints, overlaps: tuple[bool, Bools, Bools, bool]) -> tuple[KindPlanFloats, KindPlanFloats]:
        """Forward and backward of the kinds of stages, over what ZeRO moves in them, recomputation and rows.  [s]"""
        p2p, reduce, gather, overlap_tp = overlaps
        flags: dict[str, Any] = {"overlap_grad_reduce": reduce, "overlap_param_gather": gather}
        flags["overlap_p2p"] = np.array(p2p)
        way = self.batch.way + 2 * self._again * self._overlaps.index(overlap_tp)
        batch = replace(self.batch, zero_stage=zero, way=way, **flags)
        seconds = price_stages(batch, self.deal, split=False)
        shape = (len(self.deal.stage_kinds), *batch.shape)
        forward, backward = (np.broadcast_to(each, shape) for each in (seconds.forward_s, seconds.backward_s))
        return forward, backward


_AT_ONCE = 2048
"""Rows that are priced together: so few that arrays over kinds of ranks, choices and rows stay in the caches."""
_ROWS = (np.newaxis, np.newaxis)
"""Puts rows on the last of three axes: choices of ZeRO, ways to recompute, rows."""
_OVERLAP_TP = OVERLAPS.index("overlap_tp_backward")


def _choices(values: Sequence[Any]) -> Any:
    """Values on the first of the three axes."""
    return np.array(values)[:, np.newaxis, np.newaxis]


def _end_key(category: Category) -> tuple[int, bool, bool]:
    """What the end of a step depends on: the ZeRO stage, overlapped reductions and overlapped gathers."""
    return category.zero_stage, category.overlaps[1], category.overlaps[2]


def _visit_key(zero_stage: int, reduce: bool, gather: bool) -> tuple[int, bool, bool]:
    """The part of this key that the seconds of stages depend on: ZeRO's choices, if it moves something at visits."""
    if zero_stage < 2:
        return 0, False, False
    return zero_stage, reduce, gather and zero_stage == 3
