"""Who sends how much to whom in a library's rings, and the rates of flows that share links.

A flow is a stream of bytes over a set of links. Its path is not a sequence here but an incidence: how many bytes each
link carries for one byte of the flow. A collective runs over a placement: an array of GPUs whose row d holds its
members in NVLink domain d. The many steps of a ring are one set of flows, because in every step each member sends the
same amount over the same links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import SpecError

SLACK = 1e-9
"""Relative difference that rounding may make between a link's capacity and what is asked of it."""
_TIE = 1e-12
"""Relative difference below which two links are taken to saturate together."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows as a sparse matrix: entry e puts `load[e]` bytes on link `link[e]` for every byte of flow `flow[e]`.

    flow : ascending; flows are numbered 0 … num_flows − 1, and one without an entry uses no link.
    load : positive.
    share : what each flow is entitled to relative to the others on a saturated link.
    """

    num_flows: int
    flow: IntArray
    link: IntArray
    load: FloatArray
    share: FloatArray


def max_min_rates(flows: Flows, capacity: FloatArray) -> FloatArray:
    """Rates at which no flow can go faster without slowing one that is no faster (per share).  [bytes/s]

    Progressive filling: all rates rise together, in proportion to the flows' shares, until a link is full; its flows
    are frozen, the others rise on [1]_. Many links are filled at once: one that would be the first to saturate for
    every flow on it does so at that very level, because the level at which a link saturates never falls while flows
    are frozen below it. Rates are infinite for flows that use no link of finite capacity.

    .. [1] Bertsekas, Gallager 1992, "Data Networks", section 6.5.2.
    """
    links, link = np.unique(flows.link, return_inverse=True)
    free, rates = capacity[links].astype(float), np.full(flows.num_flows, np.inf)
    finite = np.isfinite(free[link])
    flow, link, load = flows.flow[finite], link[finite], flows.load[finite]
    while flow.size:
        demand = np.bincount(link, load * flows.share[flow], minlength=len(free))
        saturates = np.full(len(free), np.inf)
        np.divide(free, demand, out=saturates, where=demand > 0)
        first = np.flatnonzero(np.diff(flow, prepend=-1))
        entries = np.diff(first, append=len(flow))
        level = np.minimum.reduceat(saturates[link], first)
        saturates_elsewhere = saturates[link] > np.repeat(level, entries) * (1 + _TIE)
        full = np.bincount(link, saturates_elsewhere, minlength=len(free)) == 0
        frozen = np.maximum.reduceat(full[link], first)
        ids = flow[first[frozen]]
        rates[ids] = level[frozen] * flows.share[ids]
        gone = np.repeat(frozen, entries)
        used = np.bincount(link[gone], load[gone] * rates[flow[gone]], minlength=len(free))
        free = np.maximum(free - used, 0.0)
        flow, link, load = flow[~gone], link[~gone], load[~gone]
    return rates


class Phase(NamedTuple):
    """Flows between GPUs that run together.

    source, target : GPUs.
    nbytes : of each flow, over all steps. [bytes]
    """

    source: IntArray
    target: IntArray
    nbytes: FloatArray


def members_by_domain(gpus: IntArray, domain_gpus: int) -> IntArray:
    """Return the GPUs of a group as an array (domains, members a domain)."""
    gpus = np.asarray(gpus)
    domains, counts = np.unique(gpus // domain_gpus, return_counts=True)
    if len(set(counts.tolist())) > 1:
        raise SpecError(
            f"a group has {counts.min()} to {counts.max()} members in its {len(domains)} NVLink domains; collectives "
            "are laid out for equally many: choose degrees that divide the domain"
        )
    order = np.argsort(gpus // domain_gpus, kind="stable")
    return gpus[order].reshape(len(domains), -1)


def ring(placement: IntArray, nbytes: float, passes: int) -> Phase:
    """Rings that carry (n−1)/n of the buffer `passes` times: 2 an all-reduce, 1 an all-gather or a reduce-scatter.

    Between domains there is one ring for each member of a domain, with its share of the buffer, so that every card is
    used. A ring runs through a domain and leaves over the card of its last member; every second domain is passed
    backwards, so that it stays on one rail (with an odd number of domains, but for its last hop). Each of g members
    uses NVLink in all rings but the one it leaves the domain with, (g−1)/g of what it sends; the formulas of
    `sim.costs.collectives` count all of it, which shows only where g cards are faster than NVLink.
    """
    domains, per_domain = placement.shape
    n = placement.size
    channels = per_domain if domains > 1 else 1
    places = (np.arange(channels)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    order = np.concatenate([row[places if d % 2 == 0 else places[:, ::-1]] for d, row in enumerate(placement)], axis=1)
    volume = passes * (n - 1) / n * nbytes / channels
    return Phase(order.ravel(), np.roll(order, -1, axis=1).ravel(), np.full(order.size, volume))
