"""Plans of a table run on the exact engine, those too that fit only once room is made, until the best are proven.

A price is a lower bound of what the exact engine finds (`sim.engines.even_pipelines`), and nothing that makes room for
a plan makes it faster. So a plan that fits is a node with its price, and some that do not are a node with the lowest
price among them: room is made for those when no other bound is lower (`sim.search.best_first`).

Plans that differ in the ZeRO stage only and come out the same (one replica has nothing to shard) are one: the first is
run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from sim.arrays import Array
from sim.search.best_first import Found, Node, best_first
from sim.search.candidate import Candidate
from sim.search.fields import Fields
from sim.search.layouts import expert_degrees
from sim.search.result import SearchResult
from sim.search.room import Room, with_room
from sim.search.space import Progress
from sim.units import show

MOST_RUNS = 200
"""Plans that a search runs at most unless told otherwise: a second or two, and ten times what a proof has taken."""
COPIES = 4
"""Plans that are run once, as they differ in a ZeRO stage without effect only, at most."""
FIRST_LOOK, MOST_AT_ONCE = 256, 2048
"""Plans that are looked at together: few at first, as the best of them rule others out."""
SLACK = 0.002
"""Room is first made for plans whose price is above that of the best few by so much: these may take longer than it."""


def run_best(
    result: SearchResult, named: Fields, top: int, most: int, progress: Progress | None = None
) -> tuple[SearchResult, Found[Candidate]]:
    """Run the best plans with some fields.

    Parameters
    ----------
    top : int
        How many of the best are to be proven.
    most : int
        Plans to run at most.

    Returns
    -------
    result, found
        The table with plans for which room was made, and what is known of the best.
    """
    table = _Table(result, Room(result, named), top, progress)
    found = best_first(table.nodes(named, most), Found[Candidate](top, most, len(result.prices)))
    return table.result, found


class _Table:
    """A table while its plans are run, and room is made for some of them.

    result : has the rows so far.
    """

    def __init__(self, result: SearchResult, room: Room, top: int, progress: Progress | None) -> None:
        self.result, self._room, self._progress = result, room, progress
        self._seen, self._lowest = set[tuple[object, ...]](), [np.inf] * top

    def nodes(self, named: Fields, most: int) -> Iterator[Node[Candidate]]:
        """Yield the best plans with some fields that fit, and those for which room may be made."""
        places = self.result.best_places(named, COPIES * most + 1)  # so many runs, and a bound for the others
        yield from self._plans(places)
        if len(places) > COPIES * most:
            yield (float(self.result.score(places[-1:])[0]),), None
        yield from self._to_look_at(0, FIRST_LOOK)

    def _plans(self, places: Array) -> Iterator[Node[Candidate]]:
        """Yield plans at some places, by their scores; of equals the one that needs least memory first."""
        some = self.result.prices.take(places)
        columns = (places, some.row, some.category, self.result.score(places), some.step_time_s, some.memory_bytes)
        for place, row, category, score, seconds, nbytes in zip(*(each.tolist() for each in columns), strict=True):
            unsharded = replace(self.result.categories[category], zero_stage=0)
            same = (row, unsharded, *(float(f"{number:.12g}") for number in (seconds, nbytes)))
            if same not in self._seen:
                self._seen.add(same)
                self._lowest = sorted((*self._lowest, score))[: len(self._lowest)]
                yield (score, nbytes, place), partial(self._run, place, seconds)

    def _run(self, place: int, seconds: float, found: Found[Candidate]) -> tuple[()]:
        result, scenario = self.result, self.result.scenario_at(place)
        run = result.known.get(scenario.plan) or Candidate.run(scenario, seconds)
        result.known[scenario.plan] = run
        found.record((run.worth(result.objective), run))
        return ()

    def _to_look_at(self, first: int, size: int) -> Iterator[Node[Candidate]]:
        """Yield the plans from one on for which room may be made."""
        if first < len(self._room.score):
            yield (float(self._room.score[first]),), partial(self._make_room, first, size)

    def _make_room(self, first: int, size: int, found: Found[Candidate]) -> Iterator[Node[Candidate]]:
        """Make room for some plans, and yield those that fit then, and the plans after them."""
        begun, before, score = time.perf_counter(), len(self.result.prices), self._room.score
        ceiling = self._lowest[-1] * (1 + SLACK)
        end = int(np.searchsorted(score, ceiling if score[first] < ceiling else found.worst))
        last = min(first + size, end)
        made = self._room.make(slice(first, last))
        looked_at = self.result.plans_given_room + self._room.ways_of_each * (last - first)
        elapsed_s = self.result.elapsed_s + time.perf_counter() - begun
        self.result = replace(with_room(self.result, made), plans_given_room=looked_at, elapsed_s=elapsed_s)
        if self._progress is not None:
            self._progress(last, len(score))
        yield from self._plans(np.arange(before, len(self.result.prices)))
        yield from self._to_look_at(last, min(2 * size, MOST_AT_ONCE))


def nothing_fits(result: SearchResult, fields: Fields | None = None) -> str:
    """The sentence that no plan, or none with some fields, fits, and by how much; of all plans what would help, too."""
    leanest, space = result.leanest(fields), result.space
    if leanest is None:
        fixed = " and ".join(f"plan.{name} = {value}" for name, value in space.fixed_saving.items())
        return f"no plan of this search has {fixed}; leave it out and the search chooses it, or ask flopcast estimate"
    lowest, plan = result.prices.memory_bytes[leanest], result.scenario_at(leanest).plan
    gpu, experts = space.scenario.cluster.gpu, space.scenario.model.num_experts
    needed, limit = show(lowest, "B"), show(result.memory_limit_bytes, "B")
    lean = (
        f"tp {plan.tp}, cp {plan.cp}, pp {plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, {plan.schedule}, "
        f"recompute {plan.recompute}, ZeRO {plan.zero_stage}{f', ep {plan.ep}' if experts else ''}"
    )
    if fields is not None:
        priced = len(result.having(fields))
        return f"none of the {priced:,} such plans fits in {limit}: the leanest needs {needed} ({lean})"
    limited = result.memory_limit_bytes < gpu.usable_bytes
    named = "--memory-limit" if limited else f"the memory of one {gpu.name}"
    raised = f"raise --memory-limit to {math.ceil(lowest / 1e9)} GB, or "
    remedy = raised if limited and lowest < gpu.usable_bytes else ""
    tp, cp, _, dp, ep = space.layouts.T
    widest = int((tp * cp * dp).max())  # over all GPUs that hold the same layers
    if wider := [str(each) for each in expert_degrees(space.scenario) if ep.max() < each <= widest][:4]:
        degrees = ",".join(wider)
        remedy += (
            f"deal the {experts} experts over more GPUs (-s plan.ep=[{degrees}]; without it all degrees are searched), "
        )
    return (
        f"none of {result.plans_priced:,} plans fits: memory rules them all out. The leanest needs {needed}, {named} "
        f"is {limit} ({lean}). To go on, {remedy}{_hosted(result)}use more GPUs (--gpus) or GPUs with more memory"
    )


def _hosted(result: SearchResult) -> str:
    """The sentence that some plan fits only with states in host memory; empty if none does."""
    if "offload" in result.room:
        return ""
    able, found = run_best(replace(result, room=(*result.room, "offload")), {}, 1, 1)
    if not found.best:
        return ""
    plan = found.best[0].scenario.plan
    kept = [f"{plan.optimizer_offload:.0%} of the optimizer's state"] if plan.optimizer_offload else []
    kept += [f"activations of {plan.offloaded_layers} layers"] if plan.offloaded_layers else []
    return (
        f"with {' and '.join(kept)} in host memory one fits (tp {plan.tp}, pp {plan.pp}, dp {plan.dp}): search "
        f"with --room {','.join(able.room)}, or "
    )
