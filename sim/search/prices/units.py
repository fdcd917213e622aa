"""A unit of work: a part of the space, priced and memory-checked on its own, anywhere.

Prices are the closed form's: never above what the exact engine says, and nearly always within a percent of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from sim.arrays import Floats, Ints, KindPlanFloats, PlanFloats
from sim.engines.even_pipelines import EvenPipelines, Pipelines, gather_windows, reductions_after_end
from sim.engines.in_flight import InFlightByRank, in_flight_by_rank
from sim.engines.pipeline_links import Links, find_links, sends_over
from sim.engines.step_end import exposed_gather, exposed_reduction, step_end
from sim.pricing.batch import Batch, Layouts, find_cells, place_layouts
from sim.pricing.cells import price_cells
from sim.pricing.cost_model import CostModel
from sim.pricing.deal import even_ranks, even_stages
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.ranks import once_a_step, tied_reduction
from sim.pricing.replicas import params_of
from sim.pricing.stages import near_and_far, price_stages
from sim.pricing.zero import zero_visits
from sim.search.plans.columns import OVERLAPS, SCHEDULES, Category, Columns
from sim.search.plans.space import Space

PLANS_PER_UNIT = 400_000
"""So many that what the plans of a unit share is computed seldom, so few that a worker answers in a fraction of a
second and its arrays take tens of megabytes."""


def price_unit(part: Space) -> tuple[PlanFloats, PlanFloats]:
    """Step time and peak memory of every plan of a part: category after category, in each all its rows.  [s, bytes]

    A function of its argument alone, which pickles to some tens of kilobytes: a pool can run it on any machine.
    """
    scenario, columns = part.scenario, part.columns
    # A cost model of its own: what a unit looked up goes when it is done.
    costs, layouts = CostModel(scenario), place_layouts(part.layouts, scenario.cluster)
    count = scenario.training.global_batch_size // (columns.dp * columns.microbatch_size)
    gpipe = columns.schedule == SCHEDULES.index("gpipe")
    kept = in_flight_by_rank(columns.pp, columns.num_chunks, count, gpipe)
    width = layouts.tp * layouts.data.size
    sizes = list(zip(width.tolist(), layouts.pp.tolist(), strict=True))
    links = find_links(sizes, scenario.cluster.nvlink_domain_gpus)
    answers = np.empty((2, part.num_plans))
    places = _places(part)
    for flag in (False, True):
        wanted = [category for category in part.categories if category.sequence_parallel is flag]
        rows = part.rows_of(flag) if wanted else np.empty(0, dtype=np.int64)
        if not len(rows):
            continue
        own = Rows(part, columns.take(rows), costs, layouts, wanted, count[rows], kept.take(rows), links)
        for zero_stage in sorted({category.zero_stage for category in wanted}):
            nbytes = own.memory_bytes(zero_stage)
            for category in wanted:
                if category.zero_stage == zero_stage:
                    answers[1, places[category]] = nbytes[own.recomputes.index(category.recompute)]
        for category, seconds in own.step_times(wanted):
            answers[0, places[category]] = seconds
    return answers[0], answers[1]


class Rows:
    """Rows of a part with, or without, sequence parallelism: ways to recompute × rows."""

    def __init__(
        self,
        part: Space,
        columns: Columns,
        costs: CostModel,
        layouts: Layouts,
        categories: Sequence[Category],
        num_microbatches: Ints,
        in_flight: InFlightByRank,
        links: Links,
    ) -> None:
        self.columns, self.in_flight = columns, in_flight
        self.links = links.take(columns.layout)
        self.gpipe = columns.schedule == SCHEDULES.index("gpipe")
        self.recomputes = tuple(dict.fromkeys(category.recompute for category in categories))
        flag, at = categories[0].sequence_parallel, OVERLAPS.index("overlap_tp_backward")
        kinds = tuple((overlaps, flag) for overlaps in sorted({category.overlaps[at] for category in categories}))
        cells, cell = find_cells(layouts, columns.layout, columns.microbatch_size, kinds, self.recomputes)
        row, off = np.newaxis, np.array(False)
        plan = part.scenario.plan
        self.batch = Batch(
            costs,
            layouts,
            price_cells(costs, cells),
            layout=columns.layout[row],
            cell=cell[row],
            kind=np.array(0),
            recompute=np.arange(len(self.recomputes))[:, np.newaxis],
            zero_stage=np.array(0),
            num_chunks=columns.num_chunks[row],
            num_microbatches=num_microbatches[row],
            overlap_p2p=off,
            overlap_grad_reduce=off,
            overlap_param_gather=off,
            embedding_as_layer=plan.embedding_as_layer,
            head_as_layer=plan.head_as_layer,
        )
        # Interleaved, a rank turns to a chunk once a round of pp micro-batches.
        rounds = num_microbatches // columns.pp
        self.visits = zero_visits(columns.num_chunks, num_microbatches, rounds)[row]
        self.alone = layouts.pp == 1
        self.parts, self.ranks = even_stages(self.batch), even_ranks(self.batch)

    def memory_bytes(self, zero_stage: int) -> PlanFloats:
        """Peak memory of the fullest GPU under a ZeRO stage, over ways to recompute and rows.  [bytes]"""
        batch, kept = replace(self.batch, zero_stage=np.array(zero_stage)), self.in_flight
        first, middle, last = stage_bytes(batch, self.parts)
        peaks = np.stack([kept.first.peak(middle, first), kept.middle * middle, kept.last.peak(middle, last)])
        single = self.columns.pp == 1
        logits = np.stack([kept.last.most * single, np.zeros_like(kept.last.most), kept.last.most])[:, np.newaxis]
        held = params_of([kind.part for kind in self.ranks], batch.costs, batch.layouts).take(batch.layout)
        first, middle, last = peak_memory(batch, held, peaks, logits).total
        others = np.maximum(np.where(single, 0.0, last), np.where(self.columns.pp > 2, middle, 0.0))
        return np.asarray(np.maximum(first, others))

    def step_times(self, categories: Sequence[Category]) -> Iterator[tuple[Category, PlanFloats]]:
        """Step time of the rows under every category.  [s]"""
        near, far = (each[0] for each in near_and_far(self.batch))
        columns, sends = self.columns, sends_over(self.links, self.columns.pp, near, far)
        sizes = (columns.pp, columns.num_chunks, self.batch.num_microbatches[0])
        pipelines = {
            blocks: Pipelines(*sizes, self.gpipe, self.links, sends, blocks)
            for blocks in {not category.overlaps[0] for category in categories}
        }
        once = {
            zero: once_a_step(replace(self.batch, zero_stage=np.array(zero)), self.ranks, self.visits)
            for zero in {category.zero_stage for category in categories}
        }
        tied = tied_reduction(self.batch)
        setup = self.batch.costs.stack.step_setup_s
        for key, alike in groupby(sorted(categories, key=_stage_key), key=_stage_key):
            forward, backward = self._stages(*key)
            of_key = list(alike)
            for blocks in pipelines:
                here = [category for category in of_key if category.overlaps[0] is not blocks]
                if not here:
                    continue
                stages = EvenPipelines(pipelines[blocks], forward, backward)
                ends = stages.find_ends()
                for kind, several in groupby(sorted(here, key=_end_key), key=_end_key):
                    of_zero = once[kind[0]]
                    exposed, gather = of_zero.reduce, of_zero.gather
                    if kind[1] and of_zero.reduce.any():
                        after = reductions_after_end(stages, ends, of_zero)
                        exposed = exposed_reduction(exposed, after, of_zero.hidden_share, True)
                    if kind[2] and of_zero.gather.any():
                        window = gather_windows(stages.pipelines, forward)
                        gather = exposed_gather(gather, window, of_zero.hidden_share, True)
                    seconds = step_end(ends.ended + exposed, tied, of_zero.update + gather) + setup
                    for category in several:
                        yield category, seconds[self.recomputes.index(category.recompute)]

    def _stages(
        self, zero_stage: int, reduce: bool, gather: bool, overlap_tp: bool
    ) -> tuple[KindPlanFloats, KindPlanFloats]:
        kinds = self.batch.prices.cells.kinds
        batch = replace(
            self.batch,
            zero_stage=np.array(zero_stage),
            overlap_grad_reduce=np.array(reduce),
            overlap_param_gather=np.array(gather),
            kind=np.array([overlaps for overlaps, _ in kinds].index(overlap_tp)),
        )
        seconds = price_stages(batch, self.parts, self.visits, self.alone)
        return seconds.forward[:, 0], seconds.backward[:, 0]


def _stage_key(category: Category) -> tuple[int, bool, bool, bool]:
    """What seconds of stages depend on, besides what is recomputed: ZeRO only where it moves something at visits."""
    _, reduce, gather, overlap_tp = category.overlaps
    if category.zero_stage < 2:
        return 0, False, False, overlap_tp
    return category.zero_stage, reduce, gather and category.zero_stage == 3, overlap_tp


def _end_key(category: Category) -> tuple[int, bool, bool]:
    """What the end of a step depends on besides."""
    return category.zero_stage, category.overlaps[1], category.overlaps[2]


def _places(part: Space) -> dict[Category, slice]:
    """Where the plans of each category stand among all of a part."""
    ends = np.cumsum([len(rows) for _, rows in categories_of(part)]).tolist()
    return {each: slice(begin, end) for each, begin, end in zip(part.categories, [0, *ends], ends, strict=False)}


def categories_of(part: Space) -> Iterator[tuple[int, Ints]]:
    """Number and rows of every category, in the order of `price_unit`."""
    rows = {flag: part.rows_of(flag) for flag in (False, True)}
    for number, category in enumerate(part.categories):
        yield number, rows[category.sequence_parallel]


def price_all(space: Space) -> Iterator[tuple[int, Ints, Floats, Floats]]:
    """(category, rows, step times, memory) of one category after the other, part by part. [-, -, s, bytes]"""
    for part in space.parts(PLANS_PER_UNIT):
        seconds, nbytes = price_unit(part)
        begin = 0
        for number, rows in categories_of(part):
            end = begin + len(rows)
            if len(rows):
                yield number, part.first_row + rows, seconds[begin:end], nbytes[begin:end]
            begin = end
