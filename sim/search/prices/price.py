"""Step time of many plans at once: the closed-form engine's formula over arrays.

Prices come from the cost model's own functions; what is new, here and in `sim.search.prices.ends`, is only which ranks
need to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sim.engines.timeline import step_end
from sim.search.plans.columns import stack_of, table
from sim.search.prices.ends import RankEnds, Stages
from sim.search.prices.facts import Facts
from sim.search.prices.held import AtSpots, OnceAStep
from sim.search.prices.hidden import gather_windows, reductions_after_end
from sim.search.prices.pipelines import Pipelines
from sim.search.prices.sends import Sends, send_times
from sim.search.prices.stages import Passes, cell_scenario, price_blocks, stacked, stage_seconds
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
        stages = Stages(
            self._remembered(("pipes", overlap_p2p), lambda: self._pipes(not overlap_p2p)), forward, backward
        )
        ends: RankEnds = self._remembered(("ends", *visit, overlap_p2p), stages.find_ends)
        once: OnceAStep = self._remembered(("once", zero_stage), lambda: self.at_spots.once(zero_stage, facts.spot))
        exposed = once.reduce[:, np.newaxis]
        if overlap_reduce and once.reduce.any():
            params = self.at_spots.held.ranks.params[:, facts.spot]
            after = reductions_after_end(stages, ends, params, once)
            exposed = exposed - once.hidden_share * np.clip(exposed - after, 0.0, exposed)
        gather = once.gather[:, np.newaxis]
        if overlap_gather and once.gather.any():
            gather = gather - once.hidden_share * np.minimum(gather, gather_windows(facts, forward))
        tied = self._remembered("tied", lambda: self.at_spots.tied(facts.spot))
        seconds: Array = step_end(ends.ended + exposed, tied, once.update[:, np.newaxis] + gather)
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
        cell, cells = self.facts.cell, self.facts.cells
        blocks = price_blocks(given, cells, self.recomputes, self.compute, self.fabric)
        return [(stacked(b, "forward_s", cells)[:, cell], stacked(b, "backward_s", cells)[:, cell]) for b in blocks]

    def _pipes(self, blocking: bool) -> Pipelines:
        return Pipelines(self.facts, self._remembered("sends", self._sends), blocking)

    def _sends(self) -> Sends:
        given = cell_scenario(self.scenario, self.scenario.stack, self.facts.cells, self.sequence_parallel)
        return send_times(given, self.facts, self.fabric)
