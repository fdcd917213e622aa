"""Step time of many plans at once: the closed-form engine's formula over arrays.

Prices come from the cost model's own functions; what is new here is only which ranks need to be looked at. The layers
are dealt evenly, so a pipeline has at most four kinds of rank: the first (embedding), the last (head), and middle ranks
whose link to the rank before stays inside an NVLink domain or leaves it. Of a kind the first rank ends last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sim.engines.closed_form import pipeline_time
from sim.engines.timeline import step_end
from sim.search.columns import stack_of, table
from sim.search.facts import Facts
from sim.search.held import AtSpots, OnceAStep
from sim.search.hidden import gather_windows, reduction_after_end
from sim.search.sends import Sends, send_times
from sim.search.stages import Passes, block_seconds, cell_scenario, stage_seconds
from sim.specs import Scenario, StackSpec

Array = np.ndarray
T = TypeVar("T")


class StepTimes:
    """Step times of rows with, or without, sequence parallelism; what their categories share is computed once."""

    def __init__(
        self,
        scenario: Scenario,
        facts: Facts,
        at_spots: AtSpots,
        sequence_parallel: bool,
        recomputes: Sequence[str],
    ) -> None:
        self.scenario, self.facts, self.at_spots = scenario, facts, at_spots
        self.sequence_parallel, self.recomputes = sequence_parallel, recomputes
        self.compute, self.fabric = at_spots.compute, at_spots.fabric
        self._known: dict[Any, Any] = {}

    def of(self, zero_stage: int, overlaps: tuple[bool, ...]) -> Array:
        """Under a ZeRO stage and overlaps, over ways to recompute and rows.  [s]"""
        facts = self.facts
        overlap_p2p, overlap_reduce, overlap_gather, overlap_tp = overlaps
        # Stages know of the overlaps what ZeRO moves at every visit, and of ZeRO what they move.
        at_visits = zero_stage if zero_stage >= 2 else 0
        visit = (at_visits, overlap_reduce and at_visits >= 2, overlap_gather and at_visits == 3, overlap_tp)
        forward, backward = self._remembered(("stages", *visit), lambda: self._stages(*visit))
        ends = self._remembered(
            ("ends", *visit, overlap_p2p), lambda: self._ends(forward, backward, blocking=not overlap_p2p)
        )
        once: OnceAStep = self._remembered(("once", zero_stage), lambda: self.at_spots.once(zero_stage, facts.spot))
        exposed = once.reduce[[0, 1, 1, 2]][:, np.newaxis]
        if overlap_reduce and once.reduce.any():
            params = self.at_spots.held.ranks.params[:, facts.spot]
            after = reduction_after_end(facts, params, backward, once, self._sends(), blocking=not overlap_p2p)
            exposed = exposed - once.hidden_share * np.clip(exposed - after, 0.0, exposed)
        gather = once.gather[:, np.newaxis]
        if overlap_gather and once.gather.any():
            gather = gather - once.hidden_share * np.minimum(gather, gather_windows(facts, forward))
        tied = self._remembered("tied", lambda: self.at_spots.tied(facts.spot))
        seconds: Array = step_end(ends + exposed, tied, once.update[:, np.newaxis] + gather)
        return seconds + self.scenario.stack.step_setup_s

    def _remembered(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        value: T = self._known[key]
        return value

    def _stack(self, overlap_reduce: bool, overlap_gather: bool, overlap_tp: bool) -> StackSpec:
        stack = self.scenario.stack
        return stack_of(stack, (stack.overlap_p2p, overlap_reduce, overlap_gather, overlap_tp))

    def _stages(self, zero_stage: int, overlap_reduce: bool, overlap_gather: bool, overlap_tp: bool) -> Passes:
        blocks = self._remembered(("blocks", overlap_tp), lambda: self._blocks(overlap_tp))
        sharded = None
        if zero_stage >= 2:
            sharded = self._remembered(
                ("sharded", zero_stage), lambda: self.at_spots.sharded(zero_stage, self.facts.spot)
            )
        stack = self._stack(overlap_reduce, overlap_gather, overlap_tp)
        given = table(self.scenario, stack, zero_stage=zero_stage)
        return stage_seconds(given, self.facts, blocks, sharded, self.fabric)

    def _blocks(self, overlap_tp: bool) -> list[Passes]:
        stack = self._stack(False, False, overlap_tp)
        given = cell_scenario(self.scenario, stack, self.facts.cells, self.sequence_parallel)
        cell = self.facts.cell
        blocks = block_seconds(given, self.facts.cells, self.recomputes, self.compute, self.fabric)
        return [(forward[:, cell], backward[:, cell]) for forward, backward in blocks]

    def _sends(self) -> Sends:
        given = cell_scenario(self.scenario, self.scenario.stack, self.facts.cells, self.sequence_parallel)
        return self._remembered("sends", lambda: send_times(given, self.facts, self.fabric))

    def _ends(self, forward: Array, backward: Array, blocking: bool) -> Array:
        """When the first, the two kinds of middle rank and the last end their last action; never where they are not."""
        facts, sends = self.facts, self._sends()
        pp, chunks = facts.columns.pp, facts.columns.num_chunks
        of_stage = forward + backward
        rest = (chunks - 1) * of_stage[1]  # of a rank's chunks but the outermost
        first, middle, last = of_stage + rest
        total = np.where(pp == 1, first, first + (pp - 2) * middle + last)
        if blocking:
            first, last, total = first + sends.first, last + sends.last, total + sends.total
            middle = middle + sends.worst_middle
        slowest = np.maximum(np.maximum(first, last), np.where(pp > 2, middle, 0.0))
        pipeline = pipeline_time(facts.num_microbatches, slowest, total, chunks)
        if not blocking:  # the fill passes every boundary once each way
            pipeline = pipeline + sends.total / chunks
        # Rank r drains before rank 0 by what the ranks before it still do in the last micro-batch.
        near, far = facts.crossings.near_rank, facts.crossings.far_rank
        ends = [pipeline]
        for rank in (near, far, pp - 1):
            ends.append(np.where(rank > 0, pipeline - (backward[0] + (rank - 1) * backward[1]), -np.inf))
        return np.stack(ends)
