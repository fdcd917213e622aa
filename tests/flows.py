"""Flows that start at known times and share links max-min fairly: what the wire of the event engine is held against."""

import numpy as np

from sim.engines.wire import Flows, max_min_rates

IDEAL = {
    "efficiency": 1.0, "p2p_efficiency": 1.0, "base_latency_s": 0.0, "hop_latency_s": 0.0, "half_volume_bytes": 0.0,
    "shared_efficiency": None, "job_efficiency": None,
}  # fmt: skip
"""Values of links without latency or loss."""


def flows_on(paths):
    """One flow for each row of `paths` (link numbers, padded with -1), as `sim.network.routing.route` gives."""
    flow, place = np.nonzero(paths >= 0)
    return Flows(len(paths), flow, paths[flow, place], np.ones(len(flow)), np.ones(len(paths)))


def finish_times(capacity, flows, starts_s, nbytes, *, done_share=1e-9):
    """When flows are done; rates are computed anew whenever a flow comes or goes.  [s]

    A flow counts as done with `done_share` of its bytes left, so that flows alike end together.
    """
    starts, sizes = (np.broadcast_to(np.asarray(x, dtype=float), flows.num_flows) for x in (starts_s, nbytes))
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
        now = arrival if step == arrival - now else now + step
        moved = left[running]
        np.multiply(rates, step, out=moved, where=wait > step)
        left[running] = np.maximum(left[running] - moved, 0.0)
        finish[running[left[running] <= done_share * sizes[running]]] = now
    return finish


def _some(flows, ids):
    """Some of the flows, numbered anew."""
    number = np.full(flows.num_flows, -1)
    number[ids] = np.arange(len(ids))
    kept = number[flows.flow] >= 0
    return Flows(len(ids), number[flows.flow[kept]], flows.link[kept], flows.load[kept], flows.share[ids])
