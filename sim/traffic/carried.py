"""How much each link carries in a step, and how near that comes to what it can."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.arrays import Array
from sim.network.routing import link_name
from sim.schedules import Order
from sim.schedules.actions import B, F, I
from sim.schedules.passes import visits_of
from sim.traffic.exchanges import ROWS
from sim.traffic.streams import Traffic

BUSIEST = 8
"""Links that are named."""


def link_bytes(order: Order, traffic: Traffic) -> Array:
    """Bytes of a whole step on every link.  [bytes]"""
    times = _message_counts(order, traffic)
    carried = np.zeros(len(traffic.health))
    for stream, often in zip(traffic.streams, times.tolist(), strict=True):
        np.add.at(carried, stream.link, often * stream.link_bytes)
    return carried


def _message_counts(order: Order, traffic: Traffic) -> Array:
    """How many messages' worth of bytes each stream moves in a step; array over streams."""
    times = np.zeros(len(traffic.streams))
    for table, kinds in ((traffic.forward, (F,)), (traffic.backward, (B, I))):
        sends = np.isin(order.kind, kinds) & (table[order.stage] >= 0)
        np.add.at(times, table[order.stage[sends]], order.weight[sends])
    for table in (traffic.reduce, traffic.gather):
        times[table[table >= 0]] = 1.0
    for inside in traffic.inside:
        sizes = np.array([each.nbytes for each in traffic.streams])[inside.stream]
        for kind, rows in ROWS.items():
            often = np.bincount(order.stage, (order.kind == kind) * order.weight, minlength=order.num_stages)
            moved = inside.exchange.nbytes[rows].sum(axis=0) * often
            np.add.at(times, inside.stream[order.rank_of_stage], moved / sizes[order.rank_of_stage])
    if traffic.visits is not None and traffic.visit_exchange is not None:
        moved = traffic.visit_exchange.nbytes
        visits, nbytes = visits_of(order), np.zeros(len(order))
        opens, passes = visits.opens, (order.kind != F).astype(np.int64)
        nbytes[opens] += moved[passes[opens], order.stage[opens]]
        nbytes[visits.closes] += moved[2, order.stage[visits.closes]]
        moves = np.flatnonzero(traffic.visits >= 0)
        sizes = np.array([traffic.streams[number].nbytes for number in traffic.visits[moves].tolist()])
        times[traffic.visits[moves]] += np.bincount(order.rank, nbytes * order.weight, order.num_ranks)[moves] / sizes
    return times


def use_by_level(carried: Array, traffic: Traffic, step_time_s: float) -> list[dict[str, Any]]:
    """Bytes that each class of links carries, and its use: the share that they could carry, on average and at most.

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


def busiest_links(carried: Array, traffic: Traffic, step_time_s: float) -> list[dict[str, Any]]:
    """The links that use most of what is left of them, the busiest first; of links alike the first."""
    left = traffic.topology.capacity * traffic.health * step_time_s
    share = np.divide(carried, left, out=np.zeros_like(carried), where=left > 0)
    order = np.argsort(-np.round(share, 12), kind="stable")[:BUSIEST]
    return [
        {
            "link": link_name(traffic.topology, int(link)),
            "bytes": float(carried[link]),
            "utilisation": float(share[link]),
        }
        for link in order
        if carried[link] > 0
    ]
