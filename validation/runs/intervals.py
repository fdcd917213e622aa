"""The table of 90 % intervals: by kind of run, the outer twentieths of the log errors, and their coverage.

What differs between frameworks and organisations is what a run of one's own differs by, so lineages count, not runs. A
family that set a value of a profile or stack is predicted better than a run of one's own will be: the broadest kinds,
to which all others are drawn, are of families that set none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

import sim.uncertainty
from flopcast_calibration.readers.families import lineage_of
from flopcast_validation.runs.scored import Scored
from sim.files import write_text
from sim.uncertainty import is_unknown, kind_of

LEVEL = 0.9
SHRINK = 4
"""A kind of n lineages takes n parts of its own quantile and this many of the next broader kind's."""


class Miss(NamedTuple):
    """How far a prediction was off.

    size : logarithm of the measured step time over the predicted one.
    fitted : its family set a value of the profile or stack.
    """

    size: float
    run: str
    fitted: bool


class Reach(NamedTuple):
    """How far an interval reaches to shorter and to longer steps, as logarithms, none below zero."""

    low: float
    high: float

    def holds(self, size: float) -> bool:
        """Whether a miss of this size lies within."""
        return -self.low <= size <= self.high

    @property
    def width(self) -> float:
        """Half of the interval, as a logarithm."""
        return (self.low + self.high) / 2


Kind = tuple[str, ...]
ANY: Kind = ()
Misses = dict[Kind, dict[str, list[Miss]]]
"""By kind (the path from the broadest to it) and by what is left out together."""


def write_intervals(batches: Sequence[Sequence[Scored]], path: Path | None = None) -> None:
    """Rewrite `sim/presets/intervals.yaml`.

    batches : runs of known frameworks, the same taken for unknown, and both after some of them were measured; the first
        batch gives the width of what is of no kind.
    """
    tables = [misses_by_kind(batch) for batch in batches]
    lines = [
        "# How far 90 % intervals of step times reach down and up, as logarithms; flopcast validate --update-intervals",
        'source: "log errors of published runs, lineages of many runs counting as their square root"',
        f"unknown: [{', '.join(f'{side:.4f}' for side in _of_none(tables[0][ANY]))}]",
        f"extrapolated: {off_range(batches[0]):.4f}",
        "kinds:",
    ]
    reaches: dict[Kind, Reach] = {}
    whole: Misses = {}
    for table in tables:
        for kind, groups in table.items():
            mine = whole.setdefault(kind, {})
            for name, group in groups.items():
                mine.setdefault(name, []).extend(group)
    for table in tables:  # what was itself measured is in several of them
        reaches |= reaches_of({kind: whole[kind] if kind else table[kind] for kind in table})
    for kind in sorted(reaches):
        groups = whole[kind]
        count = len({miss.run for group in groups.values() for miss in group})
        reach = f"[{reaches[kind].low:.4f}, {reaches[kind].high:.4f}]"
        lines.append(f'  "{kind[-1]}": {{reach: {reach}, lineages: {len(groups)}, runs: {count}}}')
    write_text(path or sim.uncertainty.TABLE, "\n".join(lines) + "\n")


def known_only(scored: Sequence[Scored]) -> list[Scored]:
    """Predicted runs whose framework is known."""
    return [item for item in scored if item.scenario is not None and not is_unknown(item.scenario.stack)]


def lineage_left_out(item: Scored) -> str:
    """What is left out together: framework and organisation; of GPUs known by their datasheets a family of GPUs."""
    assert item.scenario is not None
    if item.scenario.profile.provenance.of_datasheet:
        return item.run.choices[0].profile.gpu
    return lineage_of(item.run.family)


def misses_by_kind(scored: Iterable[Scored], group_of: Callable[[Scored], str] = lineage_left_out) -> Misses:
    """How far predictions were off, for every kind."""
    found: Misses = {}
    for item in scored:
        if item.error is not None and item.scenario is not None:
            path = tuple(reversed(kind_of(item.scenario)))
            miss = Miss(-log(1.0 + item.error), item.run.id, item.fitted)
            for depth in range(len(path) + 1):
                found.setdefault(path[:depth], {}).setdefault(group_of(item), []).append(miss)
    return found


def reaches_of(misses: Misses) -> dict[Kind, Reach]:
    """The reach of every kind, drawn to that of the broader kind above it; the broadest to families that set none."""
    reaches: dict[Kind, Reach] = {ANY: _of_none(misses[ANY])}
    for kind in sorted(misses, key=len):
        if kind:
            groups = _that_set_none(misses[kind]) if len(kind) == 1 else misses[kind]
            own = (
                quantiles(list(groups.values()), apart=UNKNOWN_FRAMEWORK not in kind[0]) if groups else Reach(0.0, 0.0)
            )
            broader, count = reaches[kind[:-1]], len(groups)
            sides = zip(own, broader, strict=True)
            reaches[kind] = Reach(*((count * mine + SHRINK * above) / (count + SHRINK) for mine, above in sides))
    del reaches[ANY]
    return reaches


def _that_set_none(groups: Mapping[str, Sequence[Miss]]) -> dict[str, list[Miss]]:
    """Without runs of families that set a value."""
    rest = {name: [miss for miss in group if not miss.fitted] for name, group in groups.items()}
    return {name: group for name, group in rest.items() if group}


def _of_none(groups: Mapping[str, Sequence[Miss]]) -> Reach:
    """The reach over families that set no value; where there are none, over all."""
    return quantiles(list((_that_set_none(groups) or groups).values()))


UNKNOWN_FRAMEWORK = "unknown framework"
"""What kinds begin with whose two sides are one: eager PyTorch stands for a framework that may be far better."""


def quantiles(groups: Sequence[Sequence[Miss]], *, apart: bool = True) -> Reach:
    """Weighted quantiles: a lineage counts as the square root of its runs, since a sweep's runs err together.

    apart : each side has its own; else both have that of the sizes.
    """
    pairs = [(miss.size, len(group) ** -0.5) for group in groups for miss in group]
    if apart:
        return Reach(max(0.0, -_beyond(pairs, -1.0)), max(0.0, _beyond(pairs, 1.0)))
    side = _beyond([(abs(size), weight) for size, weight in pairs], 1.0, 1.0 - LEVEL)
    return Reach(side, side)


def _beyond(pairs: Sequence[tuple[float, float]], side: float, share: float = (1.0 - LEVEL) / 2) -> float:
    """The size beyond which, to this side, no more than a share of the weight lies."""
    total, reached = sum(weight for _, weight in pairs), 0.0
    size = 0.0
    for size, weight in sorted(pairs, key=lambda pair: -side * pair[0]):  # noqa: B007
        reached += weight
        if reached > share * total:
            break
    return size


class Hit(NamedTuple):
    """A run, the reach that the others' errors alone give it, and whether its own lies within."""

    item: Scored
    reach: Reach
    inside: bool

    def within(self, reach: Reach) -> Hit:
        """The same run with another reach."""
        return Hit(self.item, reach, reach.holds(-log(1.0 + (self.item.error or 0.0))))


def left_out(scored: Sequence[Scored], group_of: Callable[[Scored], str] = lineage_left_out) -> list[Hit]:
    """Every run with the interval that the other lineages alone would have given; none of fewer than two lineages."""
    used = [item for item in scored if item.error is not None and item.scenario is not None]
    misses = misses_by_kind(used, group_of)
    hits = []
    names = sorted({group_of(item) for item in used})
    for name in names if len(names) > 1 else []:
        others = {kind: {other: v for other, v in groups.items() if other != name} for kind, groups in misses.items()}
        reaches = reaches_of({kind: groups for kind, groups in others.items() if groups})
        for item in used:
            if group_of(item) == name and item.error is not None and item.scenario is not None:
                path = tuple(reversed(kind_of(item.scenario)))
                found = [reaches[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in reaches]
                reach = found[0] if found else _of_none(others[ANY])
                hits.append(Hit(item, reach, reach.holds(-log(1.0 + item.error))))
    return hits


def left_out_coverage(scored: Sequence[Scored]) -> float:
    """Share of runs inside the interval that the other lineages alone would have given; NaN of fewer than two."""
    hits = left_out(scored)
    return sum(hit.inside for hit in hits) / len(hits) if hits else float("nan")


def off_range(scored: Sequence[Scored]) -> float:
    """How much wider intervals must be where something was extrapolated, for such runs to lie within as others do.

    In units of the half-widths that the other lineages alone would have given.
    """
    shares: dict[bool, dict[str, list[Miss]]] = {True: {}, False: {}}
    for item, reach, _ in left_out(scored):
        size = -log(1.0 + (item.error or 0.0))
        side = max(reach.high if size > 0 else reach.low, reach.width / 4)
        miss = Miss(abs(size) / side, item.run.id, item.fitted)
        shares[item.extrapolated].setdefault(lineage_left_out(item), []).append(miss)
    if not all(shares.values()):
        return 1.0
    beyond, within = (quantiles(list(shares[extrapolated].values())).high for extrapolated in (True, False))
    return max(1.0, beyond / within)
