"""Flows that share links: max-min fair rates, and when flows are done.

A flow is a stream of bytes over a set of links. Its path is not a sequence here but an incidence: how many bytes each
link carries for one byte of the flow. That is 1 along a path, k for a flow that stands for k alike on the same links,
and whatever a collective puts on each link when the whole collective is one flow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import FlopcastError, SpecError

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

    def __add__(self, other: Flows) -> Flows:
        return Flows(
            self.num_flows + other.num_flows,
            np.concatenate([self.flow, other.flow + self.num_flows]),
            np.concatenate([self.link, other.link]),
            np.concatenate([self.load, other.load]),
            np.concatenate([self.share, other.share]),
        )


def flows_on(paths: IntArray, multiplicity: FloatArray | float = 1.0, share: FloatArray | float = 1.0) -> Flows:
    """Return one flow for each row of `paths` (link numbers, padded with -1).

    Parameters
    ----------
    paths : array of int, (flows, links)
        As `sim.network.routing.route` gives them.
    multiplicity : float or array
        How many flows alike, on these very links, each row stands for; sizes and rates are those of one of them.
    share : float or array
        Fairness weight of one flow.
    """
    paths = np.atleast_2d(paths)
    flow, place = np.nonzero(paths >= 0)
    many, entitled = (np.broadcast_to(np.asarray(x, dtype=float), len(paths)) for x in (multiplicity, share))
    return Flows(len(paths), flow, paths[flow, place], many[flow], entitled.copy())


def max_min_rates(flows: Flows, capacity: FloatArray) -> FloatArray:
    """Rates at which no flow can go faster without slowing one that is no faster (per share).  [bytes/s]

    Progressive filling: all rates rise together, in proportion to the flows' shares, until a link is full; its flows
    are frozen, the others rise on [1]_. Many links are filled at once: one that would be the first to saturate for
    every flow on it does so at that very level, because the level at which a link saturates never falls while flows
    are frozen below it.

    Parameters
    ----------
    flows : Flows
    capacity : array
        Of every link. [bytes/s]

    Returns
    -------
    array
        Infinite for flows that use no link of finite capacity.

    .. [1] Bertsekas, Gallager 1992, "Data Networks", section 6.5.2.
    """
    links, link = np.unique(flows.link, return_inverse=True)
    return fill(Flows(flows.num_flows, flows.flow, link, flows.load, flows.share), capacity[links])


def fill(flows: Flows, free: FloatArray) -> FloatArray:
    """`max_min_rates` where `free` is what is left of every link, and few links are without flows.  [bytes/s]"""
    rates = np.full(flows.num_flows, np.inf)
    finite = np.isfinite(free[flows.link])
    flow, link, load = flows.flow[finite], flows.link[finite], flows.load[finite]
    free = free.astype(float)
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


def finish_times(
    capacity: FloatArray,
    flows: Flows,
    starts_s: FloatArray | float,
    nbytes: FloatArray | float,
    *,
    done_share: float = 1e-9,
) -> FloatArray:
    """When flows are done that start at known times and share links max-min fairly.  [s]

    Rates are computed anew whenever a flow comes or goes. (Messages of a training step go over `sim.engines.wire`,
    which remembers the rates of sets that come back.)

    Parameters
    ----------
    capacity : array
        Of every link. [bytes/s]
    flows : Flows
    starts_s, nbytes : float or array
        When each flow starts and what it moves. [s, bytes]
    done_share : float
        Share of a flow's bytes that may be left when it counts as done, so that flows alike end together. A larger one
        (0.01) is quick where thousands of unlike flows would end one by one.

    Raises
    ------
    SpecError
        Negative bytes.
    FlopcastError
        A flow never ends, because a link on its path carries nothing.
    """
    starts, sizes = (np.broadcast_to(np.asarray(x, dtype=float), flows.num_flows) for x in (starts_s, nbytes))
    if not sizes.min(initial=0.0) >= 0:
        raise SpecError(f"a flow of {sizes.min()} bytes: the bytes of a flow cannot be negative")
    left, finish = sizes.copy(), np.full(flows.num_flows, np.nan)
    now = 0.0
    while np.isnan(finish).any():
        running = np.flatnonzero(np.isnan(finish) & (starts <= now))
        rates = max_min_rates(_some(flows, running), capacity)
        wait = np.full(len(running), np.inf)
        np.divide(left[running], rates, out=wait, where=rates > 0)
        wait[left[running] == 0] = 0.0
        arrival = float(starts[starts > now].min(initial=np.inf))
        step = min(float(wait.min(initial=np.inf)), arrival - now)
        if not np.isfinite(step):
            raise FlopcastError(
                f"flow {running[0]} never ends: a link on its path has no capacity; route around it or bring it back"
            )
        now = arrival if step == arrival - now else now + step
        moved = left[running]
        np.multiply(rates, step, out=moved, where=wait > step)
        left[running] = np.maximum(left[running] - moved, 0.0)
        finish[running[left[running] <= done_share * sizes[running]]] = now
    return finish


def _some(flows: Flows, ids: IntArray) -> Flows:
    """Return some of the flows, numbered anew."""
    number = np.full(flows.num_flows, -1)
    number[ids] = np.arange(len(ids))
    kept = number[flows.flow] >= 0
    return Flows(len(ids), number[flows.flow[kept]], flows.link[kept], flows.load[kept], flows.share[ids])
