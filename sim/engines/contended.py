"""Seconds with links shared, without playing events: how much slower the average message is for meeting others.

For engines that know no links. A message meets each other stream for the share of the step that the other is under way,
its *duty*; what both would take of a link beyond all of it slows them. Those that run at one time, the gradient
reductions of all ranks and the weight gathers of all ranks, meet for certain. `sim.engines.network` plays the same
streams message by message; this is its first order, and knows nothing of who waits for whom.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import Array
from sim.engines.link_use import message_counts
from sim.engines.overlapped import slack
from sim.engines.wire import shared_links
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.actions import U
from sim.schedules.passes import updates_per_rank
from sim.traffic.exchanges import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Exchange
from sim.traffic.streams import Traffic
from sim.work.operations import Cause

_PARTS = {
    "tp": Cause.TENSOR_PARALLEL,
    "cp": Cause.CONTEXT_PARALLEL,
    "ep": Cause.EXPERT_PARALLEL,
    "dp": Cause.DATA_PARALLEL,
}


def stretches(traffic: Traffic, order: Order, costs: StageSeconds, step_time_s: float, *, reduce_beside: bool) -> Array:
    """Of every stream, how many times as long as at full speed its messages are on their links.

    Parameters
    ----------
    costs : StageSeconds
        Of the order, without contention.
    step_time_s : float
        Of the step that the messages are spread over. [s]
    reduce_beside : bool
        Gradients are reduced beside the backward, where they meet other traffic than each other.
    """
    streams = traffic.streams
    alone, loads = shared_links(streams, traffic.health)
    busy = message_counts(order, traffic) * np.array([each.transfer_s for each in streams]) / alone
    duty = np.minimum(busy / step_time_s, 1.0)
    meets = np.broadcast_to(duty, (len(duty), len(duty))).copy()
    if (order.kind == U).any():
        _meet_in_updates(meets, order, costs, traffic, step_time_s, reduce_beside=reduce_beside)
    else:
        _meet_behind_pipelines(meets, np.array([each.kind for each in streams]), reduce_beside=reduce_beside)
    np.fill_diagonal(meets, 0.0)
    worst = np.ones(len(streams))
    for row in loads:
        here = np.flatnonzero(row)
        load, meet = row[here], meets[np.ix_(here, here)]
        average = load + meet @ load
        pairs = 1.0 + (meet * np.maximum(load[:, np.newaxis] + load - 1.0, 0.0)).sum(axis=1)
        worst[here] = np.maximum(worst[here], np.maximum(average, pairs))
    stretched: Array = worst / alone
    return stretched


def _meet_behind_pipelines(meets: Array, kinds: Array, *, reduce_beside: bool) -> None:
    """Of streams that run once a step: how much of the time that one of a row is under way that of a column is too."""
    for kind, alone in (("gradients", not reduce_beside), ("weights", True)):
        these = kinds == kind
        if alone:
            meets[these] = 0.0
            meets[:, these] = 0.0
        meets[np.ix_(these, these)] = 1.0


def _meet_in_updates(
    meets: Array, order: Order, costs: StageSeconds, traffic: Traffic, step_time_s: float, *, reduce_beside: bool
) -> None:
    """The same of reductions and gathers that stand in an order's updates.

    Updates follow the last backward of their batch, which comes to a rank from the one behind it; from there on each
    has its time in the period between two of them.
    """
    period = step_time_s / max(1.0, updates_per_rank(order))
    wave = costs.backward_s[:-1] + costs.send_backward_s[1:]
    begin = np.append(np.cumsum(wave[::-1])[::-1], 0.0)
    gather = begin + costs.optimizer_s + costs.reduce_s * (not reduce_beside)
    number = np.concatenate([traffic.reduce, traffic.gather])
    there = number >= 0
    begins, lasts = np.concatenate([begin, gather])[there], np.concatenate([costs.reduce_s, costs.gather_s])[there]
    lasts = np.minimum(lasts, period)
    later = (begins - begins[:, np.newaxis]) % period  # that of the column begins
    both = np.clip(lasts[:, np.newaxis] - later, 0.0, lasts) + np.clip(
        later + lasts - period, 0.0, lasts[:, np.newaxis]
    )
    meets[np.ix_(number[there], number[there])] = np.minimum(both / lasts[:, np.newaxis], 1.0)


def contended_costs(costs: StageSeconds, rank_of_stage: Array, traffic: Traffic, stretch: Array) -> StageSeconds:
    """The costs with every message as long as meeting others makes it.

    Parameters
    ----------
    rank_of_stage : array
        As of the order.
    stretch : array over streams
        As of `stretches`.
    """
    stretch = np.append(stretch, 1.0)  # of no stream

    def sends(seconds: Array, table: Array) -> Array:
        transfer = np.array([each.transfer_s for each in traffic.streams] + [0.0])
        return np.asarray(seconds + transfer[table] * (stretch[table] - 1.0))

    def once(seconds: Array, table: Array) -> Array:
        return np.asarray(seconds * stretch[table])

    forward, backward, weight = dict(costs.forward), dict(costs.backward), costs.weight_grad_s
    for inside in traffic.inside:
        late = _late(inside.exchange, stretch[inside.stream[rank_of_stage]])
        part = _PARTS[inside.exchange.group]
        forward[part] = forward.get(part, 0.0) + late[FORWARD]
        backward[part] = backward.get(part, 0.0) + late[INPUT_GRAD] + late[WEIGHT_GRAD]
        weight = weight + late[WEIGHT_GRAD]
    visits = costs.visits
    if visits is not None and traffic.visits is not None:
        slower = stretch[traffic.visits[rank_of_stage]]
        changes = {name: getattr(visits, name) * slower for name in ("gather", "reduce", "tail")}
        visits = replace(visits, **changes)
    return replace(
        costs,
        visits=visits,
        forward=forward,
        backward=backward,
        weight_grad_s=weight,
        send_forward_s=sends(costs.send_forward_s, traffic.forward),
        send_backward_s=sends(costs.send_backward_s, traffic.backward),
        reduce_s=once(costs.reduce_s, traffic.reduce),
        reduce_tail_s=once(costs.reduce_tail_s, traffic.reduce),
        gather_s=once(costs.gather_s, traffic.gather),
    )


def _late(exchange: Exchange, stretch: Array) -> Array:
    """How much longer the actions of every stage are, by row.  [s]"""
    late = exchange.seconds * (stretch - 1.0)
    if exchange.beside:
        late = late - exchange.hidden_share * slack(exchange.seconds * stretch, exchange.seconds, exchange.budget)
    return np.asarray(late)
