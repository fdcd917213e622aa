"""What the actions of one order take in many plans: a table of seconds by kind of action and of stage, and sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.network.placement import hop_crosses_domains
from sim.schedules import Order
from sim.schedules.actions import B, F, I
from sim.search.plans.columns import PlanTable
from sim.search.schedules.order_facts import OrderFacts
from sim.search.schedules.split_passes import Field, SplitPasses

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class ActionSeconds:
    """What plans that have one order take, over codes or stages, and plans. [s]

    table : of every code of `OrderFacts.code`.
    forward, backward : a send from each stage to the next, and to the one before.
    blocks : whether sends keep the sender.
    times : repetitions that are left out.
    """

    table: Array
    forward: Array
    backward: Array
    blocks: Array
    times: Array

    def take(self, plans: Array) -> ActionSeconds:
        """Some of the plans."""
        return ActionSeconds(*(getattr(self, name)[..., plans] for name in ActionSeconds.__slots__))

    def leaving_out(self, times: int) -> ActionSeconds:
        """With another number of repetitions left out."""
        return ActionSeconds(self.table, self.forward, self.backward, self.blocks, np.full(len(self.times), times))

    def sends(self, order: Order) -> Array:
        """Of every action. [s]"""
        seconds = np.zeros((len(order), len(self.times)))
        for chosen, each in ((order.kind == F, self.forward), ((order.kind == B) | (order.kind == I), self.backward)):
            seconds[chosen] = each[order.stage[chosen]]
        return seconds

    def seconds(self, facts: OrderFacts) -> tuple[Array, Array]:
        """Of every action how long it occupies its rank, and when its result arrives, as of Program. [s]"""
        order = facts.order
        compute = self.table[facts.code]
        release = compute + self.sends(order)
        occupy = np.where(self.blocks, release, compute)
        if order.pair_needs is not None:  # what both of a pair give is there when both are done
            pairs = np.flatnonzero(order.pair_needs >= 0)
            release[pairs] += compute[pairs + 1]
        return occupy, release

    def block_seconds(self, facts: OrderFacts) -> Array:
        """What the rank with the least to do in a block that is left out is busy for. [s]"""
        order = facts.order
        assert order.fold is not None
        busy = facts.block_counts @ self.table
        here = order.fold.block(0)
        np.add.at(busy, order.rank[here], self.sends(order)[here] * self.blocks)
        return np.asarray(busy.min(axis=0))


def codes_table(passes: SplitPasses) -> Array:
    """Seconds of every code of `OrderFacts.code`, over plans; updates take none. [s]"""
    forward, backward, weight = passes.forward, passes.backward, passes.weight
    return np.concatenate([forward, backward, backward - weight, weight, np.zeros_like(forward)])


def sends_by_stage(field: Field, order: Order, plans: Array, passes: SplitPasses) -> tuple[Array, Array]:
    """Seconds of a send from each stage to the next, and to the one before; over plans. [s]"""
    forward, backward = np.zeros((2, order.num_stages, len(plans)))
    if order.num_ranks == 1:
        return forward, backward
    columns, cluster = field.variant.columns, field.scenario.cluster
    row = field.row[plans]
    width = np.minimum(columns.tp[row] * columns.cp[row] * columns.dp[row], cluster.nvlink_domain_gpus)
    widths, which = np.unique(width, return_inverse=True)
    here, there = order.rank_of_stage[:-1], order.rank_of_stage[1:]
    within = (np.arange(1, order.num_stages) % (order.num_stages // order.copies) != 0) & (here != there)
    crosses = np.stack(
        [hop_crosses_domains(here, there, PlanTable(False, False, dp=int(each), pp=order.num_ranks), cluster)  # type: ignore[arg-type]
         for each in widths], axis=1
    )  # fmt: skip
    seconds = np.where(crosses[:, which.ravel()], passes.far, passes.near) * within[:, np.newaxis]
    forward[:-1], backward[1:] = seconds, seconds
    return forward, backward
