"""What a step puts on every link of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.costs.streams import Traffic
from sim.network.faults import link_name
from sim.schedules import Order
from sim.schedules.actions import B, F, I

Array = np.ndarray


def link_bytes(order: Order, traffic: Traffic) -> Array:
    """Bytes of a whole step on every link: its sends, and its gradient reductions.  [bytes]"""
    times = np.zeros(len(traffic.streams))
    for table, kinds in ((traffic.forward, (F,)), (traffic.backward, (B, I))):
        sends = np.isin(order.kind, kinds) & (table[order.stage] >= 0)
        np.add.at(times, table[order.stage[sends]], order.weight[sends])
    times[traffic.reduce[traffic.reduce >= 0]] = 1.0
    carried = np.zeros(len(traffic.health))
    for stream, often in zip(traffic.streams, times.tolist(), strict=True):
        np.add.at(carried, stream.link, often * stream.link_bytes)
    return carried


def use_by_level(carried: Array, traffic: Traffic, step_time_s: float) -> list[dict[str, Any]]:
    """By class of links: bytes, and the share of what they could have carried in the step, on average and at most.

    Links that carry nothing do not count in the average; trunks stand for their cables.
    """
    topology, rows = traffic.topology, []
    for links in topology.classes:
        here = carried[links.start : links.start + links.count]
        used = here > 0
        if used.any():
            share = here[used] / links.capacity_bytes_per_s / step_time_s
            rows.append(
                {
                    "level": links.name.removesuffix(" trunk"),
                    "direction": links.direction,
                    "links": int(used.sum()),
                    "bytes": float(here.sum()),
                    "mean_utilisation": float(share.mean()),
                    "max_utilisation": float(share.max()),
                }
            )
    return rows


def busiest_links(carried: Array, traffic: Traffic, step_time_s: float, count: int = 8) -> list[dict[str, Any]]:
    """The links that use most of what is left of them, the busiest first; of links alike the first."""
    left = traffic.topology.capacity * traffic.health * step_time_s
    share = np.divide(carried, left, out=np.zeros_like(carried), where=left > 0)
    order = np.argsort(-np.round(share, 12), kind="stable")[:count]
    return [
        {
            "link": link_name(traffic.topology, int(link)),
            "bytes": float(carried[link]),
            "utilisation": float(share[link]),
        }
        for link in order
        if carried[link] > 0
    ]
