"""The table of 90 % intervals, learnt from published runs: how far the parts of a step are off.

What differs between frameworks and organisations is what a run of one's own differs by, so sources count, not runs: the
runs of one source on one GPU err together, as a multivariate Student t, and count as the square root of their number.
They err together the less, the less they resemble each other, which is learnt as well. Families that set a value of a
profile or stack are predicted better than a run of one's own will be: how much better is learnt beside the rest, and no
answer takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import lgamma, log
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from flopcast_validation.runs.scored import Scored, modelled
from sim.report.terminal import grouped
from sim.specs.values import doublings
from sim.uncertainty import (
    FACTS,
    FREEDOM,
    NORMAL,
    PARTS,
    REST,
    WIDEST,
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
APART = ("model size", "sequence length", "GPUs", "bits", "experts", "adapters")
"""What runs of a source may differ in (`sim.specs.values.place_of`)."""
START, RATE = 0.15, 0.03
"""Where the spread of a part's seconds and the rate by which runs differ start, as logarithms."""
RIDGE = (0.1, 0.5)
"""What it costs to move the logarithms of spreads and rates and of facts' factors, squared: what few runs tell of
stays."""
FOLDS = 4
"""Parts of the lineages that are left out in turn."""
Batches = Sequence[Sequence[Scored]]


class Source(NamedTuple):
    """Runs of one source on one GPU, as `learn` takes them.

    shares : of their steps, (runs, parts); facts : which hold, and whether their family set a value, (runs, facts + 1).
    apart : doublings between them in what they differ in, (runs, runs, APART).
    sizes : logarithm of the measured step times over the predicted ones, (runs,).
    weight : how much each run counts.
    """

    shares: np.ndarray
    facts: np.ndarray
    apart: np.ndarray
    sizes: np.ndarray
    weight: float


def lineage_left_out(item: Scored) -> str:
    """What is left out together: framework and organisation; of GPUs known by their datasheets a family of GPUs."""
    if item.scenario.profile.provenance.of_datasheet:
        return item.run.choices[0].profile.gpu
    return item.lineage


def known_only(scored: Sequence[Scored]) -> list[Scored]:
    """Predicted runs whose framework is known."""
    return [item for item in scored if item.scenario is not None and not is_unknown(item.scenario.stack)]


def published_by_kind(scored: Sequence[Scored]) -> dict[str, dict[str, set[str]]]:
    """Return the ids of runs of known frameworks on measured GPUs, by kind and lineage."""
    known = (item for item in known_only(modelled(scored)) if not item.scenario.profile.provenance.of_datasheet)
    kinds = grouped((kind_of(item.scenario), (item.lineage, item.run.id)) for item in known)
    return {kind: {name: set(ids) for name, ids in grouped(pairs).items()} for kind, pairs in kinds.items()}


def doubt_left_out(item: Scored, published: Mapping[str, Mapping[str, set[str]]]) -> Doubt:
    """What the interval of a run needs, as if runs of its lineage were not published."""
    others = set(published.get(kind_of(item.scenario), ())) - {item.lineage}
    return item.doubt._replace(facts=facts_of(item.scenario, len(others)))


def learn(batches: Batches, keep: Callable[[str], bool] = lambda lineage: True) -> Spreads:
    """The spreads under which the errors of these runs are likeliest.

    It is the maximum posterior of a multivariate Student t by source, its covariance that of
    `sim.uncertainty.spread_of`.

    batches : runs as they are stated, the same taken for unknown frameworks, and with their GPUs known by datasheets;
        the first batch says what is published.
    keep : whether the runs of a lineage count.
    """
    published = published_by_kind(batches[0])
    sources = [source for batch in batches for source in _sources(batch, published, keep)]
    sizes = (len(PARTS), len(FACTS) + 1, len(APART))
    start = np.repeat([log(START), 0.0, log(RATE)], sizes)
    ridge = np.repeat([RIDGE[0], RIDGE[1], RIDGE[0]], sizes)
    bounds = np.repeat([[log(0.01), 0.0], [0.0, 1.5], [log(1e-4), 1.0]], sizes, axis=0)
    bounds[-len(APART) - 1] = [-1.5, 0.0]  # less known is never better known, and a family that set a value is

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = float(ridge @ (x - start) ** 2), 2.0 * ridge * (x - start)
        for source in sources:
            own, along = _surprise(x, source)
            value, slope = value + source.weight * own, slope + source.weight * along
        return value, slope

    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    parts, facts, apart = (each.tolist() for each in np.split(np.exp(found), np.cumsum(sizes)[:-1]))
    return Spreads(
        parts=dict(zip(PARTS, parts, strict=True)),
        facts=dict(zip(FACTS, facts[:-1], strict=True)),
        apart=dict(zip(APART, apart, strict=True)),
        reach=(1.0, 1.0),
        published={
            kind: (len(lineages), len(set.union(*lineages.values()))) for kind, lineages in sorted(published.items())
        },
        runs=len({item.run.id for batch in batches for item in modelled(batch)}),
        lineages=len({item.lineage for item in modelled(batches[0])}),
    )


def _sources(
    batch: Sequence[Scored], published: Mapping[str, Mapping[str, set[str]]], keep: Callable[[str], bool]
) -> Iterator[Source]:
    """A batch's sources, where their lineages count."""
    kept = (item for item in modelled(batch) if keep(lineage_left_out(item)))
    for items in grouped(((item.run.source, item.scenario.profile.gpu), item) for item in kept).values():
        sample = items[:: -(-len(items) // MOST)]
        doubts = [doubt_left_out(item, published) for item in sample]
        places = [doubt.place for doubt in doubts]
        facts = [[*(name in each.facts for name in FACTS), i.fitted] for each, i in zip(doubts, sample, strict=True)]
        yield Source(
            np.array([[doubt.shares.get(part, 0.0) for part in PARTS] for doubt in doubts]),
            np.array(facts, float),
            doublings(places, places, APART),
            np.array([item.log_error for item in sample]),
            len(sample) ** -0.5,
        )


def _surprise(x: np.ndarray, source: Source) -> tuple[float, np.ndarray]:
    """Negative logarithm of a source's likelihood, and its slope along every value."""
    parts, facts, count = source.shares.shape[1], source.facts.shape[1], len(source.sizes)
    of_parts, of_facts, of_apart = np.split(x, np.cumsum([parts, facts]))
    scale, rates = np.exp(source.facts @ of_facts), np.exp(of_apart)
    loads = source.shares * np.exp(of_parts) * scale[:, None]
    alike = np.exp(-source.apart @ rates)
    common = loads @ loads.T * alike
    covariance = common + REST**2 * np.eye(count)
    inverse = np.linalg.inv(covariance)
    pulled = inverse @ source.sizes
    far = float(source.sizes @ pulled)
    bent = (FREEDOM + count) / (FREEDOM + far)  # how much a Student t minds, over a normal
    by = inverse - bent * np.outer(pulled, pulled)  # twice the slope along the covariance
    along = np.concatenate([
        ((by * alike) @ loads * loads).sum(axis=0),
        source.facts.T @ (by * common).sum(axis=1),
        -np.einsum("ij,ij,ijk->k", by, common, source.apart) * rates / 2,
    ])  # fmt: skip
    constant = lgamma((FREEDOM + count) / 2) - lgamma(FREEDOM / 2) - count / 2 * log(FREEDOM / 2)
    value = np.linalg.slogdet(covariance)[1] / 2 + (FREEDOM + count) / 2 * np.log1p(far / FREEDOM) - constant
    return float(value), along


class Hit(NamedTuple):
    """A run, one standard deviation of its error, and how many of them its interval reaches down and up.

    All by the other lineages' errors alone.
    """

    item: Scored
    spread: float
    sides: tuple[float, float] = (1.0, 1.0)

    def reaching(self, sides: tuple[float, float]) -> Hit:
        """This run with an interval that reaches so many deviations, unless that is too wide to tell anything."""
        return Hit(self.item, min(self.spread, WIDEST / sides[1]), sides)

    @property
    def width(self) -> float:
        """Half of the interval, as a logarithm."""
        return sum(self.sides) / 2 * self.spread

    @property
    def inside(self) -> bool:
        """Whether the run lies in the interval."""
        down, up = (side * self.spread for side in self.sides)
        return -down <= self.item.log_error <= up


def left_out(
    batches: Batches, after: Callable[[Spreads], Batches] = lambda spreads: ()
) -> tuple[Spreads, list[list[Hit]]]:
    """The table, and every run of every batch with the interval that the other lineages alone would have given.

    `after` gives batches of runs predicted once some of their source were measured, with these spreads. Spreads are
    learnt on three quarters of the lineages and tried on the rest, and so is how many of them an interval reaches.
    """
    published = published_by_kind(batches[0])
    lineages = sorted({lineage_left_out(item) for batch in batches for item in batch if item.scenario is not None})
    fold = {lineage: place % FOLDS for place, lineage in enumerate(lineages)}
    tables = [learn(batches, lambda lineage, left=left: fold[lineage] != left) for left in range(FOLDS)]
    whole = learn(batches)

    def tried(item: Scored) -> Hit:
        table = tables[fold[lineage_left_out(item)]]
        return Hit(item, spread_of(doubt_left_out(item, published), measured_doubts(item.scenario), table))

    hits = [[tried(item) for item in modelled(batch)] for batch in (*batches, *after(whole))]
    every = [hit for batch in hits for hit in batch]
    sides = [_sides([hit for hit in every if fold[lineage_left_out(hit.item)] != left]) for left in range(FOLDS)]
    hits = [[hit.reaching(sides[fold[lineage_left_out(hit.item)]]) for hit in batch] for batch in hits]
    return whole._replace(reach=_sides(every)), hits


NORMAL_SIZES = np.array([NORMAL.inv_cdf((k + 0.5) / 100) for k in range(100)])
"""What errors are before any is seen, in spreads. They count as a lineage of nine runs, since few lineages may have
next to no errors to one side."""


def _sides(hits: Sequence[Hit]) -> tuple[float, float]:
    """How many spreads down and up hold LEVEL of the runs on either side, of families that set no value.

    A user's run is none of those that did, which are predicted better. They count where there are no others. A lineage
    of many runs counts as the square root of their number.
    """
    own = [hit for hit in hits if not hit.item.fitted] or hits
    counts = Counter(lineage_left_out(each.item) for each in own)
    sizes = np.array([*NORMAL_SIZES, *(each.item.log_error / each.spread for each in own)])
    of_normal = [3.0 / len(NORMAL_SIZES)] * len(NORMAL_SIZES)
    weights = np.array([*of_normal, *(counts[lineage_left_out(each.item)] ** -0.5 for each in own)])
    return reached(-sizes, weights), reached(sizes, weights)


def reached(sizes: np.ndarray, weights: np.ndarray) -> float:
    """What LEVEL of the positive ones among weighted sizes stay at or below."""
    order = np.argsort(sizes)[np.sum(sizes <= 0.0) :]
    held = np.cumsum(weights[order])
    return float(sizes[order][np.searchsorted(held, LEVEL * held[-1])])


def left_out_coverage(scored: Sequence[Scored]) -> float:
    """Share of runs inside the interval that the other lineages alone would have given; NaN of fewer than two."""
    if len({lineage_left_out(item) for item in modelled(scored)}) < FOLDS:
        return float("nan")
    _, (hits,) = left_out([modelled(scored)])
    return sum(hit.inside for hit in hits) / len(hits)
