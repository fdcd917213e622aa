"""Room for plans that are too large as they are: what they recompute or keep in host memory, at the least cost.

A plan that fits needs nothing of this, as recomputation and copies only take time. One that does not may recompute any
set of the model's modules, or as many layers of every stage as it needs, or keep states on the host. Its step is never
shorter than without any of that: so plans are looked at in the order of that bound, until no one that is left can be
among the best. Of the ways in which a plan fits only those count that do no more than they must, and of these it gets
the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from sim.arrays import Bools, Floats, Ints, PlanFloats
from sim.errors import SpecError, nearest
from sim.search.fields import SAVING, Fields, agrees, has_fields
from sim.search.formula import Priced, Rows, join
from sim.search.result import SearchResult
from sim.search.space import Category
from sim.specs import Scenario
from sim.work.recompute import module_sets, own_modules

WAYS = ("modules", "block", "offload")
"""Ways to make room: sets of modules that run again, layers of every stage that do, states in host memory."""
DEFAULT = ("modules", "block")
NONE = "none"
"""The word for none of these ways."""
OPTIMIZER_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the optimizer's state in host memory that are tried."""
LAYER_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the layers whose activations wait in host memory that are tried."""
_NOTHING = Category("none", 0)
_Made = tuple[Category, int, float, float]
"""A plan for which room was made, in the fastest way: category, row, step time [s] and memory [bytes]."""


def check_ways(words: str | Sequence[str]) -> tuple[str, ...]:
    """Ways to make room in `modules,block` or a sequence of such, each once; none in `none`.

    Raises SpecError: there is no such way, or no word.
    """
    ways = [each.strip() for each in words.split(",") if each.strip()] if isinstance(words, str) else words
    if not ways and isinstance(words, str):
        raise SpecError("--room names no way; write --room modules,block,offload, or none")
    if {*ways} == {NONE}:
        return ()
    if NONE in ways:
        raise SpecError("--room none means no way at all; leave out none, or the others")
    for way in ways:
        if way not in WAYS:
            raise SpecError(f"--room {way}: there is no such way to make room for a plan{nearest(way, (*WAYS, NONE))}")
    return tuple(dict.fromkeys(ways))


def _ways(scenario: Scenario, ways: Sequence[str], fields: Fields) -> list[Category]:
    """All ways but blocks, as categories whose ZeRO stage does not count; the first of them does nothing."""
    sets = [own_modules(scenario.plan), *(module_sets(scenario.model, scenario.stack) if "modules" in ways else ())]
    kinds = [_NOTHING, *(replace(_NOTHING, recompute="selective", recompute_modules=each) for each in sets)]
    if not scenario.stack.cuda_graph_scope:
        kinds.append(replace(_NOTHING, recompute="full"))
    hosts = [*product(*_hosts(scenario))] if "offload" in ways else [(0.0, 0)]
    found = [replace(kind, optimizer_offload=share, offloaded_layers=layers)
             for kind, (share, layers) in product(kinds, hosts)]  # fmt: skip
    named = {name: value for name, value in fields.items() if name in SAVING}
    return [_NOTHING, *(each for each in dict.fromkeys(found) if each != _NOTHING and has_fields(each.fields, named))]


def _hosts(scenario: Scenario) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Shares of the optimizer's state, and numbers of layers, that the node can take."""
    node, measured = scenario.cluster.node, scenario.profile.host
    copies = measured.to_host_bytes_per_s and measured.to_device_bytes_per_s
    if not (node.host_link_bandwidth_bytes_per_s or copies):
        return (0.0,), (0,)
    layers = tuple(dict.fromkeys(round(share * scenario.model.num_layers) for share in LAYER_SHARES))
    updates = node.host_memory_bandwidth_bytes_per_s and scenario.training.optimizer in ("adam", "sgd")
    return OPTIMIZER_SHARES if updates else (0.0,), layers


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


class Room:
    """Plans of a result with some fields that do not fit, the fastest first, and the ways in which they might.

    score : what none of their ways goes below, in order.
    ways_of_each : how many ways are looked at.
    """

    def __init__(self, result: SearchResult, fields: Fields) -> None:
        wanted, scenario, room = {**result.space.fixed_saving, **fields}, result.space.scenario, result.room
        self._space, self._limit, self._ways = result.space, result.memory_limit_bytes, _ways(scenario, room, wanted)
        # Of a block of layers modules are none.
        whole: Fields = {"recompute": "full", "recompute_method": "block", "recompute_modules": (),
                         "optimizer_offload": 0.0, "offloaded_layers": 0}  # fmt: skip
        self._block = "block" in room and not scenario.stack.cuda_graph_scope and has_fields(whole, wanted)
        self.ways_of_each, self._dominates = len(self._ways) + self._block, dominates(self._ways)
        here = _too_large(result, wanted) if room and self.ways_of_each > 1 else np.empty(0, dtype=np.int64)
        score = result.score(here)
        order = np.argsort(score, kind="stable")
        self.score, self._some = score[order], result.prices.take(here[order])
        self._zero = np.array([each.zero_stage for each in self._space.categories])[self._some.category]
        self._shares = np.array(list(dict.fromkeys(way.optimizer_offload for way in self._ways)))
        self._share_of = np.searchsorted(self._shares, [way.optimizer_offload for way in self._ways])

    def make(self, some: slice) -> list[_Made]:
        """Some of the plans, each in the fastest way in which it fits."""
        rows, whole = self._some.row[some], replace(_NOTHING, recompute="full")  # for blocks of layers
        priced, again = Rows.of(self._space, rows, (*self._ways, whole))
        return self._fastest(_Chosen(priced, rows, self._zero[some]), again[:-1])

    def _fastest(self, chosen: _Chosen, again: Ints) -> list[_Made]:
        """The fastest way in which each of some rows fits, if the space does not have it already.

        again : what each way runs again.
        """
        shares = self._shares[:, np.newaxis, np.newaxis]
        nbytes = chosen.priced.memory_bytes(chosen.zero, shares)[self._share_of, again]
        fits = self._allowed(chosen, nbytes <= self._limit)
        fits[0] = False  # of what does nothing it is known
        pointless = self._dominates.T.astype(np.float32) @ fits.astype(np.float32) > 0
        way, place = np.nonzero(fits & ~pointless)
        seconds, needed = np.empty(len(place)), nbytes[way, place]
        for number in np.unique(self._share_of[way]).tolist():
            here = np.flatnonzero(self._share_of[way] == number)
            rows = chosen.priced.take(place[here], again[way[here]][np.newaxis])
            seconds[here] = rows.step_times(chosen.zero[place[here]], float(self._shares[number]))[0, 0]
        layers = np.zeros(len(way), dtype=np.int64)
        if self._block:
            rows_again, number, *of_block = self._blocks(chosen)
            place, layers = np.concatenate([place, rows_again]), np.concatenate([layers, number])
            way = np.concatenate([way, 0 * number])
            seconds, needed = (np.concatenate(pair) for pair in zip((seconds, needed), of_block, strict=True))
        order = np.lexsort((needed, np.round(seconds, 12), place))
        order = order[np.unique(place[order], return_index=True)[1]]
        found, known = list[_Made](), {*self._space.categories}
        for at in order.tolist():
            made = self._category(int(chosen.zero[place[at]]), self._ways[way[at]], int(layers[at]))
            made_so = made, int(chosen.rows[place[at]]), float(seconds[at]), float(needed[at])
            found += [] if made in known else [made_so]
        return found

    def _allowed(self, chosen: _Chosen, fits: Bools) -> Bools:
        """Which ways the framework's rules leave to some rows, of those that fit; (ways, rows)."""
        found = np.zeros_like(fits)
        for zero in np.unique(chosen.zero).tolist():
            for place in np.flatnonzero(fits[:, chosen.zero == zero].any(axis=1)).tolist():
                some = np.flatnonzero((chosen.zero == zero) & fits[place])
                made = self._category(zero, self._ways[place])
                found[place, some] = self._space.keeps_room(made, chosen.rows[some])
        return found

    def _category(self, zero: int, way: Category, block_layers: int = 0) -> Category:
        """A category that makes room in a way, or by so many layers of every virtual stage that run again, if any."""
        if block_layers:
            way = replace(way, recompute="full", recompute_method="block", recompute_num_layers=block_layers)
        return replace(way, zero_stage=zero)

    def _blocks(self, chosen: _Chosen) -> tuple[Ints, Ints, PlanFloats, PlanFloats]:
        """The fewest layers of every virtual stage that make rows fit when they run again, whole, and the others not.

        Returns
        -------
        rows, layers : arrays
            Places of those that fit so, and with how many; without those that need none, or all.
        seconds, bytes : arrays
            Of these. [s], [bytes]
        """
        num_layers, columns = self._space.scenario.model.num_layers, chosen.priced.columns
        stages, again = columns.pp * columns.num_chunks, self._category(0, _NOTHING, 1)

        def priced(able: Ints, number: Ints) -> Rows:
            rows = chosen.priced.take(able)
            prices = rows.prices.mixed(rows.cell, number * stages[able] / num_layers)
            return replace(rows, prices=prices, cell=np.arange(len(able)))

        def needed(able: Ints, number: Ints) -> Floats:
            return np.asarray(priced(able, number).memory_bytes(chosen.zero[able])[0, 0])

        most = -(-num_layers // stages) - 1  # one less than all
        able = np.flatnonzero(most >= 1)
        able = able[needed(able, most[able]) <= self._limit] if len(able) else able
        # Memory is a convex function of the layers: from the fewest that are enough on, all numbers are.
        number, enough = np.ones_like(able), most[able]
        while (number < enough).any():
            middle = (number + enough) // 2
            fits = needed(able, middle) <= self._limit
            number, enough = np.where(fits, number, middle + 1), np.where(fits, middle, enough)
        while (refused := ~self._space.keeps_room(again, chosen.rows[able], recompute_num_layers=number)).any():
            number = number + refused
            able, number = able[number <= most[able]], number[number <= most[able]]
        if not len(able):
            return able, able, np.empty(0), np.empty(0)
        rows = priced(able, number)
        return able, number, rows.step_times(chosen.zero[able])[0, 0], rows.memory_bytes(chosen.zero[able])[0, 0]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Some rows of a space as they are priced, by their numbers, and their ZeRO stages."""

    priced: Rows
    rows: Ints
    zero: Ints


def _too_large(result: SearchResult, fields: Fields) -> Ints:
    """Places of plans without recomputation that do not fit.

    Of all of them where the fields say what is recomputed or in host memory, or that something is recomputed.
    """
    again = "recompute" in fields and not agrees("recompute", "none", fields["recompute"])
    everything = again or any(name in fields for name in SAVING[1:])
    free = {name: value for name, value in fields.items() if name not in SAVING}
    rows, plain = result.space.masks(free, result.categories)
    plain &= [each.recompute == "none" for each in result.categories]
    plain[len(result.space.categories) :] = False  # for which room was made
    return np.flatnonzero(rows[result.prices.row] & plain[result.prices.category] & (everything | ~result.fits))


def with_room(result: SearchResult, found: Sequence[_Made]) -> SearchResult:
    """Return the table with new rows appended, each plan once."""
    numbers = {each: number for number, each in enumerate(result.categories)}
    given = result.prices.category >= len(result.space.categories)
    known = set(zip(result.prices.category[given].tolist(), result.prices.row[given].tolist(), strict=True))
    rows = [(numbers.setdefault(made, len(numbers)), *others) for made, *others in found]
    rows = [each for each in rows if each[:2] not in known]
    if not rows:
        return result
    category, row, seconds, nbytes = map(np.array, zip(*rows, strict=True))
    new = Priced(category.astype(np.int16), row.astype(np.int32), seconds, nbytes)
    return replace(result, prices=join([result.prices, new]), categories=tuple(numbers))
