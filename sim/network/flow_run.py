"""Flows with known starts, run to their ends while they share links."""

from __future__ import annotations

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import FlopcastError, SpecError
from sim.network.flows import Flows, max_min_rates


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
    """Some of the flows, numbered anew."""
    number = np.full(flows.num_flows, -1)
    number[ids] = np.arange(len(ids))
    kept = number[flows.flow] >= 0
    return Flows(len(ids), number[flows.flow[kept]], flows.link[kept], flows.load[kept], flows.share[ids])
