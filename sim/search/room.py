"""Room for plans that are too large as they are: what they recompute or keep in host memory, at the least cost.

A plan that fits needs nothing of this, as recomputation and copies only take time. One that does not may recompute any
set of the model's modules, or as many layers of every stage as it needs, or keep states on the host. Its step is never
shorter than without any of that: so plans are looked at in the order of that bound, until no one that is left can be
among the best. Of the ways in which a plan fits only those count that do no more than they must, and of these it gets
the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import product

import numpy as np

from sim.arrays import Array, Bools, Ints, PlanFloats
from sim.costs.block import BACKWARD, FORWARD
from sim.errors import SpecError, nearest
from sim.pricing.deal import put_together
from sim.search.plans.layouts import ROOM, Category
from sim.search.plans.space import Fields, Space, agrees, has_fields
from sim.search.prices.formula import Priced, Rows, join
from sim.search.result import SearchResult
from sim.specs import Scenario
from sim.work.layers import FIRST_KIND
from sim.work.recompute import module_sets, own_modules


class ChosenRows:
    """Some plans of a space, each with its own row, sequence parallelism and ZeRO stage, in one of several ways.

    rows : of the space.
    ways : what of them runs again or is kept in host memory. The first does nothing.
    """

    def __init__(self, space: Space, some: Priced, ways: Sequence[Category]) -> None:
        self.space, self.rows, self.ways = space, some.row, tuple(ways)
        flag, self._zero = (
            np.array([int(getattr(each, name)) for each in space.categories])[some.category]
            for name in ("sequence_parallel", "zero_stage")
        )
        whole = replace(self.ways[0], recompute="full")  # for blocks of layers
        self._priced, again = Rows.of(space, some.row, flag, (*self.ways, whole))
        self._again_of = again[:-1]
        self._shares = np.array(list(dict.fromkeys(way.optimizer_offload for way in self.ways)))
        self._share_of = np.array([self._shares.tolist().index(way.optimizer_offload) for way in self.ways])

    def take(self, which: slice) -> ChosenRows:
        """Some of the rows."""
        part = copy(self)
        part.rows, part._zero, part._priced = self.rows[which], self._zero[which], self._priced.take(which)
        return part

    def memory_bytes(self) -> PlanFloats:
        """Peak memory of the rows in every way to make room; array (ways, rows).  [bytes]"""
        nbytes = self._priced.memory_bytes(self._zero, self._shares[:, np.newaxis, np.newaxis])
        return np.asarray(nbytes[self._share_of, self._again_of])

    def step_times(self, places: Ints, ways: Ints) -> PlanFloats:
        """Step times of rows, each with a way of its own to make room.  [s]"""
        found, share = np.empty(len(places)), self._share_of[ways]
        for number in np.unique(share).tolist():
            here = np.flatnonzero(share == number)
            some = places[here]
            rows = self._priced.take(some, self._again_of[ways[here]][np.newaxis])
            found[here] = rows.step_times(self._zero[some], float(self._shares[number]))[0, 0]
        return found

    def rank_work(self) -> tuple[PlanFloats, PlanFloats, PlanFloats]:
        """Forward and backward of one micro-batch, without ZeRO's traffic: on the average rank, and on the busiest; and
        the largest share of a block that is its forward. [s, s, -]"""
        rows = self._priced.take(slice(None), np.zeros((1, len(self.rows)), dtype=np.int64))
        batch, pp, more = rows.batch, rows.columns.pp, rows.columns.num_chunks - 1
        forward, backward = (table[:, 0, batch.way, batch.cell] for table in rows.prices.total_s[:2])
        both, between = forward + backward, np.maximum(pp - 2, 0)

        def of_ranks(blocks: Array) -> tuple[PlanFloats, PlanFloats, PlanFloats, PlanFloats]:
            """The first, the longest and the last rank's, and all of them together."""
            first, middle, last, *longer = put_together(rows.deal.stage_kinds, blocks)[:, 0, 0]
            longest = np.where(rows.longer > 0, longer[0], middle) if longer else middle
            ends = first + more * middle, last + more * middle
            whole = sum(ends) + between * (1 + more) * middle + rows.longer * (longest - middle)
            return ends[0], (1 + more) * longest, ends[1], np.asarray(whole)

        *ranks, whole = of_ranks(both)
        for place in (FORWARD, BACKWARD):  # no rank hides more waits than all of them together
            leads = rows.prices.ahead_s[1:, place][:, :, batch.way, batch.cell].copy()
            leads[:, :FIRST_KIND] = 0.0
            whole = whole - np.minimum(*(of_ranks(each)[-1] for each in leads))
        busiest = np.maximum(np.maximum(ranks[0], ranks[2]), np.where(between > 0, ranks[1], 0.0))
        share = (forward / np.maximum(both, 1e-30)).max(axis=0)[0, 0]
        return np.asarray(whole / pp), busiest, np.asarray(share)

    def blocks(
        self, limit_bytes: float, allowed: Callable[[Ints, Ints], Bools]
    ) -> tuple[Ints, Ints, PlanFloats, PlanFloats]:
        """The fewest layers of every virtual stage that make rows fit when they run again, whole, and the others not.

        Parameters
        ----------
        allowed : callable
            Whether rows may do so with some numbers of layers.

        Returns
        -------
        rows, layers : arrays
            Places of those that fit so, and with how many; without those that need none, or all.
        seconds, bytes : arrays
            Of these. [s], [bytes]
        """
        model = self.space.scenario.model
        stages = self._priced.columns.pp * self._priced.columns.num_chunks

        def priced(chosen: Ints, number: Ints) -> Rows:
            rows = self._priced.take(chosen)
            prices = rows.prices.mixed(rows.cell, number * stages[chosen] / model.num_layers)
            return replace(rows, prices=prices, cell=np.arange(len(chosen)))

        def needed(chosen: Ints, number: Ints) -> PlanFloats:
            return np.asarray(priced(chosen, number).memory_bytes(self._zero[chosen])[0, 0])

        most = -(-model.num_layers // stages) - 1  # one less than all
        able = np.flatnonzero(most >= 1)
        able = able[needed(able, most[able]) <= limit_bytes] if len(able) else able
        # Memory is a convex function of the layers: from the fewest that are enough on, all numbers are.
        number, enough = np.ones_like(able), most[able]
        while (number < enough).any():
            middle = (number + enough) // 2
            fits = needed(able, middle) <= limit_bytes
            number, enough = np.where(fits, number, middle + 1), np.where(fits, middle, enough)
        while (refused := ~allowed(able, number)).any():
            number = number + refused
            able, number = able[number <= most[able]], number[number <= most[able]]
        if not len(able):
            return able, able, np.empty(0), np.empty(0)
        rows = priced(able, number)
        return able, number, rows.step_times(self._zero[able])[0, 0], rows.memory_bytes(self._zero[able])[0, 0]


WAYS = ("modules", "block", "offload")
"""Ways to make room: sets of modules that run again, layers of every stage that do, states in host memory."""
DEFAULT = ("modules", "block")
OPTIMIZER_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the optimizer's state in host memory that are tried."""
LAYER_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the layers whose activations wait in host memory that are tried."""
_Made = tuple[Category, int, float, float]
"""A plan for which room was made, in the fastest way: category, row, step time [s] and memory [bytes]."""


def check_ways(ways: Sequence[str]) -> tuple[str, ...]:
    """Ways to make room, each once.

    Raises SpecError: there is no such way.
    """
    for way in ways:
        if way not in WAYS:
            raise SpecError(f"--room {way}: there is no such way to make room for a plan{nearest(way, WAYS)}")
    return tuple(dict.fromkeys(ways))


def dominates(ways: Sequence[Category]) -> Bools:
    """(ways, ways): whether the first, where it fits, makes the second pointless."""
    kinds = list(dict.fromkeys(way.runs_again for way in ways))
    within = np.array([[one <= other for other in kinds] for one in kinds])
    kind = np.array([kinds.index(way.runs_again) for way in ways])
    share, layers = np.array([(way.optimizer_offload, way.offloaded_layers) for way in ways]).T
    less = (share[:, np.newaxis] <= share) & (layers[:, np.newaxis] <= layers)
    # What runs again is not copied, and hides copies: that may pay where there are some.
    found = less & (within[np.ix_(kind, kind)] & (layers == 0)[:, np.newaxis] | (kind[:, np.newaxis] == kind))
    np.fill_diagonal(found, False)
    return np.asarray(found)


AT_ONCE = 20_000
"""Plans whose cells are priced together."""


class Room:
    """Plans of a result with some fields that do not fit, the fastest first, and the ways in which they might.

    score : what none of their ways goes below, in order.
    ways_of_each : how many ways are looked at.
    """

    def __init__(self, result: SearchResult, fields: Fields) -> None:
        self._plans, wanted = replace(result, ways_fixed={}), {**result.ways_fixed, **fields}
        scenario, room = result.space.scenario, () if result.objective == "memory_headroom" else result.room
        self._ways = _ways(scenario, room, wanted)
        # Of a block of layers modules are none.
        whole: Fields = {"recompute": "full", "recompute_method": "block", "recompute_modules": (),
                         "optimizer_offload": 0.0, "offloaded_layers": 0}  # fmt: skip
        self._block = "block" in room and not scenario.stack.cuda_graph_scope and has_fields(whole, wanted)
        self.ways_of_each, self._dominates = len(self._ways) + self._block, dominates(self._ways)
        here = _too_large(self._plans, wanted) if room and self.ways_of_each > 1 else np.empty(0, dtype=np.int64)
        score = result.score(here)
        order = np.argsort(score, kind="stable")
        self.score, self._some = score[order], result.prices.take(here[order])
        self._chosen: ChosenRows | None = None
        self._begin = 0

    def make(self, first: int, last: int, end: int) -> list[_Made]:
        """Some of the plans, from where the last ended, each in the fastest way in which it fits.

        end : of the plans that may be asked for next; those are priced together.
        """
        if self._chosen is None or last > self._begin + len(self._chosen.rows):
            some = self._some.take(slice(first, min(end, first + AT_ONCE)))
            self._begin, self._chosen = first, ChosenRows(self._plans.space, some, self._ways)
        chosen = self._chosen.take(slice(first - self._begin, last - self._begin))
        return _fitting(self._plans, chosen, self._some.category[first:last], self._dominates, self._block)


def _ways(scenario: Scenario, ways: Sequence[str], fields: Fields) -> list[Category]:
    """All ways but blocks, as categories whose other choices do not count; the first of them does nothing."""
    nothing, own = Category("none", False, 0), own_modules(scenario.plan)
    sets = [own, *(module_sets(scenario.model, scenario.stack) if "modules" in ways else ())]
    kinds = [nothing, *(replace(nothing, recompute="selective", recompute_modules=each) for each in sets)]
    if not scenario.stack.cuda_graph_scope:
        kinds.append(replace(nothing, recompute="full"))
    hosts = product(*_hosts(scenario)) if "offload" in ways else [(0.0, 0)]
    found = [
        replace(kind, optimizer_offload=share, offloaded_layers=layers)
        for kind, (share, layers) in product(kinds, list(hosts))
    ]
    named = {name: value for name, value in fields.items() if name in ("recompute", *ROOM)}
    chosen = [each for each in dict.fromkeys(found) if has_fields(each.fields, named)]
    return [nothing, *(each for each in chosen if each != nothing)]


def _hosts(scenario: Scenario) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Shares of the optimizer's state, and numbers of layers, that the node can take."""
    node, measured = scenario.cluster.node, scenario.profile.host
    copies = measured.to_host_bytes_per_s and measured.to_device_bytes_per_s
    if not (node.host_link_bandwidth_bytes_per_s or copies):
        return (0.0,), (0,)
    layers = tuple(dict.fromkeys(round(share * scenario.model.num_layers) for share in LAYER_SHARES))
    updates = node.host_memory_bandwidth_bytes_per_s and scenario.training.optimizer in ("adam", "sgd")
    return OPTIMIZER_SHARES if updates else (0.0,), layers


def _too_large(plans: SearchResult, fields: Fields) -> Ints:
    """Places of plans without recomputation that do not fit.

    Of all of them where the fields say what is recomputed or in host memory, or that something is recomputed.
    """
    again = "recompute" in fields and not agrees("recompute", "none", fields["recompute"])
    everything = again or any(name in fields for name in ROOM)
    free = {name: value for name, value in fields.items() if name not in ("recompute", *ROOM)}
    rows, categories = plans.masks(free)
    plain = np.array([each.recompute == "none" for each in plans.categories]) & categories
    plain[len(plans.space.categories) :] = False
    return np.flatnonzero(rows[plans.prices.row] & plain[plans.prices.category] & (everything | ~plans.fits))


def _fitting(plans: SearchResult, chosen: ChosenRows, category: Ints, dominating: Bools, block: bool) -> list[_Made]:
    """The fastest way in which each of some rows fits, if the space does not have it already."""
    categories, limit = plans.space.categories, plans.memory_limit_bytes
    found, known = list[_Made](), set(categories)
    nbytes = chosen.memory_bytes()
    fits = _allowed(plans, chosen, category, nbytes <= limit)
    fits[0] = False  # of what does nothing it is known
    pointless = dominating.T.astype(np.float32) @ fits.astype(np.float32) > 0
    way, place = np.nonzero(fits & ~pointless)
    seconds, needed = chosen.step_times(place, way), nbytes[way, place]
    layers = np.zeros(len(way), dtype=np.int64)
    if block:
        layers_again = _category(categories[0], chosen.ways[0], 1)

        def allowed(places: Ints, number: Ints) -> Bools:
            return plans.space.keeps_room(layers_again, chosen.rows[places], recompute_num_layers=number)

        rows, number, *of_block = chosen.blocks(limit, allowed)
        place = np.concatenate([place, rows])
        way, layers = np.concatenate([way, 0 * number]), np.concatenate([layers, number])
        seconds, needed = (np.concatenate(pair) for pair in zip((seconds, needed), of_block, strict=True))
    order = np.lexsort((needed, np.round(seconds, 12), place))
    order = order[np.unique(place[order], return_index=True)[1]]
    for each, one, blocks, *numbers in zip(
        *(column[order].tolist() for column in (place, way, layers, seconds, needed)), strict=True
    ):
        made = _category(categories[category[each]], chosen.ways[one], blocks)
        found += [] if made in known else [(made, int(chosen.rows[each]), numbers[0], numbers[1])]
    return found


def _allowed(plans: SearchResult, chosen: ChosenRows, base: Ints, fits: Bools) -> Bools:
    """Which ways the framework's rules leave to some rows, each of a category, of those that fit; (ways, rows)."""
    found = np.zeros_like(fits)
    for number in np.unique(base).tolist():
        for place in np.flatnonzero(fits[:, base == number].any(axis=1)).tolist():
            some = np.flatnonzero((base == number) & fits[place])
            made = _category(plans.space.categories[number], chosen.ways[place])
            found[place, some] = plans.space.keeps_room(made, chosen.rows[some])
    return found


def _category(base: Category, way: Category, block_layers: int = 0) -> Category:
    """A category that makes room in a way, or by so many layers of every virtual stage that run again, if any do."""
    if block_layers:
        way = replace(way, recompute="full", recompute_method="block", recompute_num_layers=block_layers)
    return replace(way, sequence_parallel=base.sequence_parallel, zero_stage=base.zero_stage)


def with_room(plans: SearchResult, found: Sequence[_Made]) -> SearchResult:
    """Return the table with new rows appended, each plan once."""
    numbers = {each: number for number, each in enumerate(plans.categories)}
    given = plans.prices.take(np.flatnonzero(plans.prices.category >= len(plans.space.categories)))
    known = set(zip(given.category.tolist(), given.row.tolist(), strict=True))
    rows = []
    for category, row, seconds, nbytes in found:
        number = numbers.setdefault(category, len(numbers))
        if (number, row) not in known:
            known.add((number, row))
            rows.append((number, row, seconds, nbytes))
    if not rows:
        return plans
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    new = Priced(columns[0].astype(np.int16), columns[1].astype(np.int32), *columns[2:])
    return replace(plans, prices=join([plans.prices, new]), categories=tuple(numbers))
