"""Flows with known starts, run to their ends: finish times, and what every link carried when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import FlopcastError
from sim.network.flow_network import FlowNetwork
from sim.network.flows import FloatArray, Flows, IntArray


@dataclass(frozen=True, slots=True)
class FlowRun:
    """What became of flows. [s, bytes]

    finish_s : by flow.
    link_bytes : carried by every link.
    times_s, class_bytes_per_s : from times_s[i] to times_s[i + 1] links of class c carried class_bytes_per_s[i, c];
        empty where no classes were given.
    """

    finish_s: FloatArray
    link_bytes: FloatArray
    times_s: FloatArray
    class_bytes_per_s: FloatArray

    def utilisation(self, capacity: FloatArray) -> FloatArray:
        """Share of what every link could have carried from time 0 to the last finish; 0 for links without a limit."""
        could = capacity * self.finish_s.max(initial=0.0)
        used = np.zeros_like(self.link_bytes)
        np.divide(self.link_bytes, could, out=used, where=could > 0)
        return used


def simulate_flows(
    capacity: FloatArray,
    flows: Flows,
    starts_s: FloatArray | float,
    nbytes: FloatArray | float,
    *,
    link_class: IntArray | None = None,
    done_share: float = 1e-9,
) -> FlowRun:
    """When flows are done that start at known times and share links max-min fairly.

    Parameters
    ----------
    capacity : array
        Of every link. [bytes/s]
    flows : Flows
    starts_s, nbytes : float or array
        When each flow starts and what it moves. [s, bytes]
    link_class : array of int, optional
        Class of every link; gives the bandwidth in use by class over time.
    done_share : float
        As of FlowNetwork.

    Returns
    -------
    FlowRun

    Raises
    ------
    FlopcastError
        A flow never ends, because a link on its path carries nothing.
    """
    starts, sizes = (np.broadcast_to(np.asarray(x, dtype=float), flows.num_flows) for x in (starts_s, nbytes))
    network = FlowNetwork(capacity, done_share)
    finish = np.full(flows.num_flows, np.nan)
    who = np.zeros(0, dtype=int)  # flow of each number in the network
    order = np.argsort(starts, kind="stable")
    bounds = np.searchsorted(flows.flow, np.arange(flows.num_flows + 1))
    arrivals = np.flatnonzero(np.diff(starts[order], prepend=-np.inf))
    pending = [order[a:b] for a, b in zip(arrivals, [*arrivals[1:], len(order)], strict=True)][::-1]
    times, in_use = [0.0], []
    while pending or network.num_flows:
        arrival = starts[pending[-1][0]] if pending else np.inf
        time = min(arrival, network.next_completion())
        if not np.isfinite(time):
            stuck = np.flatnonzero(np.isnan(finish) & (starts <= network.now))
            raise FlopcastError(
                f"flow {stuck[0]} never ends: a link on its path has no capacity; route around it or bring it back"
            )
        if link_class is not None and time > times[-1]:
            in_use.append(np.bincount(link_class, network.link_bytes_per_s))
            times.append(time)
        ended = network.advance(time)
        finish[who[ended]] = network.now
        if time == arrival:
            ids = pending.pop()
            numbers = network.add(_some(flows, ids, bounds), sizes[ids])
            who = np.concatenate([who, np.zeros(max(0, numbers.max(initial=0) + 1 - len(who)), dtype=int)])
            who[numbers] = ids
    return FlowRun(finish, network.link_bytes, np.array(times), np.array(in_use))


def _some(flows: Flows, ids: IntArray, bounds: IntArray) -> Flows:
    """Some of the flows, numbered anew in the order of `ids`."""
    counts = bounds[ids + 1] - bounds[ids]
    entry = np.repeat(bounds[ids] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return Flows(
        len(ids), np.repeat(np.arange(len(ids)), counts), flows.link[entry], flows.load[entry], flows.share[ids]
    )
