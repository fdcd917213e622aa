"""What a step puts on every link, how far links are used, and where messages' time goes, from messages played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.engines.network import ROWS, collectives
from sim.engines.timeline import Timeline
from sim.engines.wire import Message, alone_rates, runs, shared_links
from sim.network.routing import link_name
from sim.schedules import Order
from sim.schedules.actions import B, F, I
from sim.schedules.passes import visits_of
from sim.traffic.streams import Traffic


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


BINS = 400
BUSIEST, BUSIEST_OF_LEVEL = 8, 6
"""Links that are named: of all, and of each level in a step's history."""
CAUSES = ("latency", "transfer", "own flows", "others", "queue", "behind")
"""Where a message's time goes: latency before the links; transfer at full speed; slowed by flows of its own that
share a link, or by others; queueing behind messages of its stream; and work of the receivers behind it."""
KINDS = {
    "forward": "sends forward",
    "backward": "sends backward",
    "gradients": "gradient reduction",
    "weights": "weight gather",
    "tensor": "tensor parallel",
    "context": "context parallel",
    "tokens": "expert parallel",
    "sharded": "ZeRO within layers",
}


@dataclass(frozen=True, slots=True)
class LinkHistory:
    """Use of links over a step.

    edges_s : the bins of time. [s]
    levels : of every level of links, the use of the average link that is used at all, and of the busiest, by bin.
    links : the busiest links of every level, of those alike one with the number of the others, and their use by bin.
    kinds : of every kind of message, seconds a step of the average stream by cause, as in CAUSES, messages and bytes.
    """

    edges_s: Array
    levels: dict[str, tuple[Array, Array]]
    links: dict[str, Array]
    kinds: tuple[dict[str, Any], ...]


def link_history(messages: Sequence[Message], traffic: Traffic, step_time_s: float, *, bins: int = BINS) -> LinkHistory:
    """Follow the links through a step.

    messages : of the whole step; what leads beyond its end is left out.
    bins : of time.
    """
    edges = np.linspace(0.0, step_time_s, bins + 1)
    activity = _activity(messages, traffic, edges)
    groups = _alike_links(traffic)
    left = traffic.topology.capacity * traffic.health
    use = np.array([nbytes @ activity[who] / (left[link] * np.diff(edges)) for link, _, who, nbytes in groups])
    counts = np.array([count for _, count, *_ in groups])
    names = [traffic.topology.classes[int(traffic.topology.class_of_link[link])] for link, *_ in groups]
    levels = {}
    for name in dict.fromkeys(links.name.removesuffix(" trunk") for links in traffic.topology.classes):
        here = np.array([links.name.removesuffix(" trunk") == name for links in names], dtype=bool)
        if here.any():
            levels[name] = (np.average(use[here], axis=0, weights=counts[here]), use[here].max(axis=0))
    labels = np.array([links.name.removesuffix(" trunk") for links in names])
    ranked = np.argsort(-np.round(use.mean(axis=1), 12), kind="stable") if groups else np.zeros(0, dtype=int)
    busiest = [place for name in levels for place in ranked[labels[ranked] == name][:BUSIEST_OF_LEVEL].tolist()]
    links = {}
    for place in busiest:
        link, count, *_ = groups[place]
        alike = f" (+{count - 1:,} alike)" if count > 1 else ""
        links[link_name(traffic.topology, link) + alike] = use[place]
    return LinkHistory(edges, levels, links, _kinds(messages, traffic))


def all_messages(messages: Sequence[Message], timeline: Timeline, traffic: Traffic) -> list[Message]:
    """All messages of a step: the simulated ones, those that share no link, and the weights gathered after the update.

    If weights are gathered beside the next step's forward, their messages stand at the beginning of this step.
    """
    program, order = timeline.program, timeline.program.order
    _, loads = shared_links(traffic.streams, traffic.health)
    free = ~(loads > 0).any(axis=0) & (alone_rates(traffic.streams, traffic.health) == 1.0)
    found = list(messages)
    for within, begin in zip(
        collectives(order, traffic, lambda stream: bool(free[stream])), timeline.start, strict=True
    ):
        now = float(begin)
        for each in within:
            found.append(Message(each.stream, now, now, now + each.seconds, each.seconds))
            now += 0.0 if each.beside else each.seconds
    took = program.costs.gather_s
    begin = (
        0.0 if program.hide_gather else timeline.step_time_s - program.costs.step_setup_s - float(took.max(initial=0.0))
    )
    for rank in np.flatnonzero(traffic.gather >= 0).tolist():
        stream = int(traffic.gather[rank])
        end, full = begin + float(took[rank]), traffic.streams[stream].transfer_s
        found.append(Message(stream, begin, begin, end, full))
    return found


def _activity(messages: Sequence[Message], traffic: Traffic, edges: Array) -> Array:
    """How many messages of each stream are moved in each bin; array (streams, bins)."""
    activity = np.zeros((len(traffic.streams), len(edges) - 1))
    pieces = [
        (each.stream, begin, end, share * each.full_s)
        for each in messages
        for begin, end, share in each.pieces or ((each.begin_s, each.end_s, 1.0),)
    ]
    table = np.array(pieces, dtype=float).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    for here in runs(table[:, 0]):
        rows = table[here]
        stream = int(rows[0, 0])
        begin, end, full = rows[:, 1:].T
        moved = np.clip((edges[:, np.newaxis] - begin) / np.maximum(end - begin, 1e-300), 0.0, 1.0)
        activity[stream] = np.diff(moved @ (full / traffic.streams[stream].transfer_s))
    return activity


def _alike_links(traffic: Traffic) -> list[tuple[int, int, Array, Array]]:
    """Links that carry the same bytes of the same streams: the first of them, how many, the streams and the bytes."""
    stream = np.repeat(np.arange(len(traffic.streams)), [len(each.link) for each in traffic.streams])
    link = np.concatenate([np.zeros(0, dtype=int), *(each.link for each in traffic.streams)])
    nbytes = np.concatenate([np.zeros(0), *(each.link_bytes for each in traffic.streams)])
    order = np.lexsort((stream, link))
    stream, link, nbytes = stream[order], link[order], nbytes[order]
    kind = traffic.topology.class_of_link
    found: dict[tuple[int, bytes, bytes], list[slice]] = {}
    for here in runs(link):
        key = int(kind[link[here.start]]), stream[here].tobytes(), np.round(nbytes[here], 3).tobytes()
        found.setdefault(key, []).append(here)
    return [
        (int(link[first.start]), 1 + len(others), stream[first], nbytes[first]) for first, *others in found.values()
    ]


def _kinds(messages: Sequence[Message], traffic: Traffic) -> tuple[dict[str, Any], ...]:
    """Where messages' time goes, kind by kind."""
    rows = []
    table = np.array([each[:5] for each in messages], dtype=float).reshape(-1, 5)
    who = table[:, 0].astype(int)
    kinds = np.array([each.kind for each in traffic.streams])
    fixed = np.array([[each.before_s, each.after_s] for each in traffic.streams]).reshape(-1, 2)
    rates = alone_rates(traffic.streams, traffic.health)
    speed = np.array([each.nbytes / each.transfer_s for each in traffic.streams])
    for kind, label in KINDS.items():
        here = kinds[who] == kind
        streams = int((kinds == kind).sum())
        if not here.any():
            continue
        which = who[here]
        _, queued, begin, end, full = table[here].T
        alone = full / rates[which]
        latency, behind = fixed[which].T
        parts = (latency, full, alone - full, np.maximum(end - begin - alone, 0.0), begin - queued, behind)
        rows.append(
            {
                "kind": label,
                "streams": streams,
                "messages": int(here.sum()),
                "bytes": float((speed[which] * full).sum() / streams),
                "seconds": {cause: float(part.sum() / streams) for cause, part in zip(CAUSES, parts, strict=True)},
            }
        )
    return tuple(rows)
