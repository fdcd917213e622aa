"""Collectives within actions, for an engine in which they may take longer than alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sim.schedules import Order
from sim.schedules.actions import B, F, I, W
from sim.traffic.exchanges import FORWARD, INPUT_GRAD, WEIGHT_GRAD
from sim.traffic.streams import Traffic

ROWS = {F: [FORWARD], B: [INPUT_GRAD, WEIGHT_GRAD], I: [INPUT_GRAD], W: [WEIGHT_GRAD]}
"""Rows of an `Exchange` that belong to each kind of action."""


class RunningCollective(NamedTuple):
    """What one kind of group moves within an action. [s]"""

    stream: int
    beside: bool
    seconds: float
    budget: float
    hidden_share: float

    def late(self, took: float) -> float:
        """How much longer the action is because this took longer than alone, slack in its budget used up first."""
        slack = max(min(took, self.budget) - self.seconds, 0.0)  # what the compute that may hide it has room for
        return took - self.seconds - self.hidden_share * slack


def collectives(order: Order, traffic: Traffic, can_meet: Callable[[int], bool]) -> list[tuple[RunningCollective, ...]]:
    """Collectives within each action that could meet other traffic."""
    found: dict[tuple[int, int], tuple[RunningCollective, ...]] = {}
    for kind, which in ROWS.items():
        for stage, rank in enumerate(order.rank_of_stage.tolist()):
            each = []
            for inside in traffic.inside:
                exchange, stream = inside.exchange, int(inside.stream[rank])
                alone = exchange.seconds[which, stage]
                seconds, budget = float(alone.sum()), float(exchange.budget[which, stage].sum())
                if seconds > 0 and can_meet(stream):
                    share = float(alone @ exchange.hidden_share[which, stage]) / seconds
                    each.append(RunningCollective(stream, exchange.beside, seconds, budget, share))
            found[kind, stage] = tuple(each)
    return [found.get(key, ()) for key in zip(order.kind.tolist(), order.stage.tolist(), strict=True)]
