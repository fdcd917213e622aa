"""The table of 90 % intervals, learnt from published runs: how far the parts of a step are off.

What differs between frameworks and organisations is what a run of one's own differs by, so sources count, not runs: the
runs of one source on one GPU err together, as a multivariate Student t, and count as the square root of their number.
Families that set a value of a profile or stack are predicted better than a run of one's own will be: how much better is
learnt beside the rest, and no answer takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import lgamma, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

import sim.uncertainty
from flopcast_calibration.readers.families import lineage_of
from flopcast_validation.runs.scored import Scored
from sim.files import write_text
from sim.uncertainty import (
    FACTS,
    FREEDOM,
    PARTS,
    Doubt,
    Spreads,
    facts_of,
    is_unknown,
    kind_of,
    measured_doubts,
    spread_of,
)

LEVEL = 0.9
MOST = 12
"""Runs of a source that count, evenly sampled."""
START, REST = 0.15, 0.06
"""Where the spread of a part's seconds and that of a run start, as logarithms."""
RIDGE = (0.1, 0.5)
"""What it costs to move the logarithms of spreads and of facts' factors, squared: what few runs tell of stays."""
FOLDS = 4
"""Parts of the lineages that are left out in turn."""


class Source(NamedTuple):
    """Runs of one source on one GPU, as `learn` takes them.

    shares : of their steps, (runs, parts); facts : which hold, and whether their family set a value, (runs, facts + 1).
    sizes : logarithm of the measured step times over the predicted ones, (runs,).
    weight : how much each run counts.
    """

    shares: np.ndarray
    facts: np.ndarray
    sizes: np.ndarray
    weight: float


def lineage_left_out(item: Scored) -> str:
    """What is left out together: framework and organisation; of GPUs known by their datasheets a family of GPUs."""
    assert item.scenario is not None
    if item.scenario.profile.provenance.of_datasheet:
        return item.run.choices[0].profile.gpu
    return lineage_of(item.run.family)


def known_only(scored: Sequence[Scored]) -> list[Scored]:
    """Predicted runs whose framework is known."""
    return [item for item in scored if item.scenario is not None and not is_unknown(item.scenario.stack)]


def published_by_kind(scored: Sequence[Scored]) -> dict[str, dict[str, set[str]]]:
    """Return the ids of runs of known frameworks on measured GPUs, by kind and lineage."""
    found: dict[str, dict[str, set[str]]] = {}
    for item in known_only(scored):
        if item.error is not None and item.scenario and not item.scenario.profile.provenance.of_datasheet:
            lineages = found.setdefault(kind_of(item.scenario), {})
            lineages.setdefault(lineage_of(item.run.family), set()).add(item.run.id)
    return found


def doubt_left_out(item: Scored, published: Mapping[str, Mapping[str, set[str]]]) -> Doubt:
    """What the interval of a run needs, as if runs of its lineage were not published."""
    assert item.scenario is not None
    others = set(published.get(kind_of(item.scenario), ())) - {lineage_of(item.run.family)}
    return Doubt(dict(item.shares), facts_of(item.scenario, len(others)))


def size_of(item: Scored) -> float:
    """Logarithm of the measured step time over the predicted one."""
    return -log(1.0 + (item.error or 0.0))


def learn(batches: Sequence[Sequence[Scored]], keep: Callable[[str], bool] = lambda lineage: True) -> Spreads:
    """The spreads under which the errors of these runs are likeliest.

    Parameters
    ----------
    batches : sequence of sequence of Scored
        Runs of known frameworks, the same taken for unknown, and with their GPUs known by datasheets; the first batch
        says what is published.
    keep : function
        Whether the runs of a lineage count.

    Notes
    -----
    Maximum posterior of a multivariate Student t by source, its covariance that of `sim.uncertainty.spread_of`.
    """
    published = published_by_kind(batches[0])
    sources = [source for batch in batches for source in _sources(batch, published, keep)]
    parts, facts = len(PARTS), len(FACTS) + 1
    start = np.concatenate([np.full(parts, log(START)), [log(REST)], np.zeros(facts)])

    ridge = np.concatenate([np.full(parts, RIDGE[0]), [0.0], np.full(facts, RIDGE[1])])

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = float(ridge @ (x - start) ** 2), 2.0 * ridge * (x - start)
        for source in sources:
            own, along = _surprise(x, source, parts)
            value, slope = value + source.weight * own, slope + source.weight * along
        return value, slope

    bounds = [(log(0.01), 0.0)] * (parts + 1) + [(-1.5, 1.5)] * facts
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    sizes = np.exp(found)
    return Spreads(
        parts=dict(zip(PARTS, sizes[:parts].tolist(), strict=True)),
        rest=float(sizes[parts]),
        told=float(sizes[parts]),
        facts=dict(zip(FACTS, sizes[parts + 1 : -1].tolist(), strict=True)),
        alone=(1.0, 1.0),
        measured=(1.0, 1.0),
        published={
            kind: (len(lineages), len(set.union(*lineages.values()))) for kind, lineages in sorted(published.items())
        },
        runs=len({item.run.id for batch in batches for item in batch if item.error is not None}),
        lineages=len({lineage_of(item.run.family) for item in batches[0] if item.error is not None}),
    )


def _sources(
    batch: Sequence[Scored], published: Mapping[str, Mapping[str, set[str]]], keep: Callable[[str], bool]
) -> Iterator[Source]:
    """A batch's sources, where their lineages count."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for item in batch:
        if item.error is not None and item.scenario is not None and keep(lineage_left_out(item)):
            groups.setdefault((item.run.source, item.scenario.profile.gpu), []).append(item)
    for items in groups.values():
        sample = items[:: -(-len(items) // MOST)]
        doubts = [doubt_left_out(item, published) for item in sample]
        yield Source(
            np.array([[doubt.shares.get(part, 0.0) for part in PARTS] for doubt in doubts]),
            np.array(
                [[*(fact in d.facts for fact in FACTS), i.fitted] for d, i in zip(doubts, sample, strict=True)], float
            ),
            np.array([size_of(item) for item in sample]),
            len(sample) ** -0.5,
        )


def _surprise(x: np.ndarray, source: Source, parts: int) -> tuple[float, np.ndarray]:
    """Negative logarithm of a source's likelihood, and its slope along every value."""
    scale, count = np.exp(source.facts @ x[parts + 1 :]), len(source.sizes)
    loads = source.shares * np.exp(x[:parts]) * scale[:, None]
    rest = np.exp(x[parts]) * scale
    covariance = loads @ loads.T + np.diag(rest**2)
    inverse = np.linalg.inv(covariance)
    pulled = inverse @ source.sizes
    far = float(source.sizes @ pulled)
    bent = (FREEDOM + count) / (FREEDOM + far)  # how much a Student t minds, over a normal
    along = np.concatenate([
        ((inverse @ loads) * loads).sum(axis=0) - bent * (loads.T @ pulled) ** 2,
        [float(np.diag(inverse) @ rest**2 - bent * (rest * pulled) @ (rest * pulled))],
        source.facts.T @ (1.0 - bent * source.sizes * pulled),
    ])  # fmt: skip
    constant = lgamma((FREEDOM + count) / 2) - lgamma(FREEDOM / 2) - count / 2 * log(FREEDOM / 2)
    value = np.linalg.slogdet(covariance)[1] / 2 + (FREEDOM + count) / 2 * np.log1p(far / FREEDOM) - constant
    return float(value), along


class Hit(NamedTuple):
    """A run, the reach that the others' errors alone give it, and whether its own lies within."""

    item: Scored
    reach: tuple[float, float]
    inside: bool

    @property
    def width(self) -> float:
        """Half of the interval, as a logarithm."""
        return sum(self.reach) / 2


Batches = Sequence[Sequence[Scored]]


def left_out(batches: Batches, after: Batches = ()) -> tuple[Spreads, list[list[Hit]]]:
    """The table, and every run of every batch with the interval that the other lineages alone would have given.

    Parameters
    ----------
    batches : as `learn`
    after : runs predicted once some of their source were measured.

    Notes
    -----
    Spreads are learnt on three quarters of the lineages and tried on the rest, and so is how many of them an interval
    reaches: the shortest that holds nine in ten.
    """
    published = published_by_kind(batches[0])
    lineages = sorted({lineage_left_out(item) for batch in batches for item in batch if item.scenario is not None})
    fold = {lineage: place % FOLDS for place, lineage in enumerate(lineages)}
    tables = [learn(batches, lambda lineage, left=left: fold[lineage] != left) for left in range(FOLDS)]

    before = _tried(batches, tables, fold, published)
    later = [_tried(after, [table._replace(told=told) for table in tables], fold, published) for told in TOLD]
    told = int(np.argmin([_score(every) for every in later])) if after else 0
    alone, measured = (_reaches(every, fold) for every in (before, later[told] if after else before))
    whole = learn(batches)
    whole = whole._replace(alone=alone[WHOLE], measured=measured[WHOLE], told=TOLD[told] if after else whole.told)
    hits = [[_hit(each, alone[fold[lineage_left_out(each.item)]]) for each in batch] for batch in before]
    hits += [[_hit(each, measured[fold[lineage_left_out(each.item)]]) for each in batch] for batch in later[told]]
    return whole, hits


TOLD = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
"""What is tried of `Spreads.told`: that whose intervals score best (Gneiting and Raftery 2007, eq. 43)."""
WHOLE = -1
"""The fold that leaves nothing out."""


def _reaches(tried: Sequence[Sequence[_Tried]], fold: Mapping[str, int]) -> dict[int, tuple[float, float]]:
    """How many spreads an interval reaches down and up, by the fold that is left out."""
    every = [each for batch in tried for each in batch]
    return {
        left: _shortest([each for each in every if fold[lineage_left_out(each.item)] != left])
        for left in (WHOLE, *range(FOLDS))
    }


class _Tried(NamedTuple):
    """A run, and one standard deviation of its error by the other lineages' table."""

    item: Scored
    spread: float


def _tried(
    batches: Batches,
    tables: Sequence[Spreads],
    fold: Mapping[str, int],
    published: Mapping[str, Mapping[str, set[str]]],
) -> list[list[_Tried]]:
    def one(item: Scored) -> _Tried:
        assert item.scenario is not None
        table, measured = tables[fold[lineage_left_out(item)]], measured_doubts(item.scenario)
        return _Tried(item, spread_of(doubt_left_out(item, published), measured, table))

    return [[one(item) for item in batch if item.error is not None] for batch in batches]


def _score(tried: Sequence[Sequence[_Tried]]) -> float:
    """The interval score: the width, and 2/α times how far a run lies beyond it; lineages weigh as in `_shortest`."""
    every = [each for batch in tried for each in batch]
    (down, up), weights = _shortest(every), _weights(every)
    sizes, spreads = (np.array(column) for column in zip(*((size_of(t.item), t.spread) for t in every), strict=True))
    beyond = np.maximum(0.0, -down * spreads - sizes) + np.maximum(0.0, sizes - up * spreads)
    return float(np.average((down + up) * spreads + 2.0 / (1.0 - LEVEL) * beyond, weights=weights))


def _hit(tried: _Tried, sides: tuple[float, float]) -> Hit:
    reach = sides[0] * tried.spread, sides[1] * tried.spread
    return Hit(tried.item, reach, -reach[0] <= size_of(tried.item) <= reach[1])


def _shortest(tried: Sequence[_Tried]) -> tuple[float, float]:
    """The shortest reach down and up, in spreads, that holds LEVEL of the runs."""
    return shortest(sorted((size_of(t.item) / t.spread, w) for t, w in zip(tried, _weights(tried), strict=True)))


def _weights(tried: Sequence[_Tried]) -> list[float]:
    """A lineage of many runs counts as the square root of their number."""
    counts = Counter(lineage_left_out(each.item) for each in tried)
    return [counts[lineage_left_out(each.item)] ** -0.5 for each in tried]


def shortest(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How far down and up from zero the shortest stretch reaches that holds LEVEL of the weight.

    Parameters
    ----------
    pairs : sequence of (value, weight)
        Sorted.
    """
    wanted = LEVEL * sum(weight for _, weight in pairs) * (1.0 - 1e-12)
    best, last, held = (max(0.0, -pairs[0][0]), max(0.0, pairs[-1][0])), 0, 0.0
    for value, weight in pairs:  # the stretch from each first value on
        while last < len(pairs) and held < wanted:
            held += pairs[last][1]
            last += 1
        if held < wanted:
            break
        best = min(best, (max(0.0, -value), max(0.0, pairs[last - 1][0])), key=sum)
        held -= weight
    return best


def write_intervals(spreads: Spreads, path: Path | None = None) -> None:
    """Rewrite `sim/presets/intervals.yaml`."""
    lines = [
        "# How far step times are off, as standard deviations of logarithms; flopcast validate --update-intervals",
        "parts:  # of the seconds of what a step is made of",
        *(f"  {name}: {size:.3f}" for name, size in spreads.parts.items()),
        f"rest: {spreads.rest:.4f}  # of what each run has of its own",
        f"told: {spreads.told:.4f}  # the same beside measured runs",
        "facts:  # factors on both",
        *(f"  {name}: {factor:.3f}" for name, factor in spreads.facts.items()),
        "# how many of them the interval reaches down and up, without and with measured runs of one's own",
        *(
            f"{name}: [{low:.3f}, {high:.3f}]"
            for name, (low, high) in (("alone", spreads.alone), ("measured", spreads.measured))
        ),
        "published:  # lineages and runs by GPU, sharding and precision",
        *(f'  "{kind}": [{lineages}, {runs}]' for kind, (lineages, runs) in spreads.published.items()),
        f"runs: {spreads.runs}",
        f"lineages: {spreads.lineages}",
    ]
    write_text(path or sim.uncertainty.TABLE, "\n".join(lines) + "\n")


def left_out_coverage(scored: Sequence[Scored]) -> float:
    """Share of runs inside the interval that the other lineages alone would have given; NaN of fewer than two."""
    known = [item for item in scored if item.error is not None and item.scenario is not None]
    if len({lineage_left_out(item) for item in known}) < FOLDS:
        return float("nan")
    _, (hits,) = left_out([known])
    return sum(hit.inside for hit in hits) / len(hits)
