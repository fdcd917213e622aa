"""How fast could it be trained at all? The shortest run over cluster size, batch and plan, and what limits it.

Every plan of every batch is priced at once (`sim.search`), layered ones by a bound (`sim.search.by_schedule`); a batch
takes as many steps as the goal says of it; the sizes that no smaller cluster beats are run on the exact engine, with
failures and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, isfinite
from typing import Any

import numpy as np
import pandas as pd

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate
from sim.reliability.state import state_of
from sim.reliability.storing import data_loading, even_storing, storing_of
from sim.scaling.goal import Goal
from sim.scaling.run import Terms, TrainingRun, training_run, unknown_energy
from sim.scaling.step_times import Prices, confirm, expert_degree, limit_of, losses_of, price_batches, work_time
from sim.search.candidate import facts_of
from sim.specs import ParallelPlan, Scenario, framework_plans
from sim.specs.plan import LAYERED
from sim.units import show_time

MOST_POINTS = 14
"""Sizes of a frontier that the exact engine runs."""
NEAR_FASTEST = 4
"""Points of the frontier that are the largest sizes, next to each other, where the time is shortest."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The fastest run on so many GPUs.

    losses : share of the time that would be saved if each cause were gone, largest first.
    limit : what keeps the run from being faster: "GPUs" where more of them still help, else the largest loss.
    """

    answer: Estimate
    run: TrainingRun
    losses: Mapping[str, float]
    limit: str

    @property
    def batch_tokens(self) -> int:
        """Size of the batch. [tokens]"""
        return self.answer.scenario.training.tokens_per_step

    @property
    def days_interval(self) -> tuple[float, float]:
        """90 % interval of the days, from that of the step time."""
        low, high = self.answer.step_time_interval_s
        return self.run.days * low / self.answer.step_time_s, self.run.days * high / self.answer.step_time_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            **self.run.to_dict(),
            "days_interval": list(self.days_interval),
            "batch_tokens": self.batch_tokens,
            **facts_of(self.answer, "plan", "mfu", "memory_bytes"),
            "limit": self.limit,
            "losses": dict(self.losses),
        }


@dataclass(frozen=True, slots=True)
class Frontier:
    """Runs that none on fewer GPUs beats, by GPUs.

    plans : that were priced, over all batches.
    confirmed : that the exact engine ran.
    """

    goal: Goal
    points: tuple[FrontierPoint, ...]
    batches: tuple[int, ...]
    plans: int
    confirmed: int
    elapsed_s: float
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        """One line."""
        return f"<Frontier of {len(self.points)} runs, the shortest {self.fastest.run!r}>"

    @property
    def fastest(self) -> FrontierPoint:
        """The shortest run."""
        return min(self.points, key=lambda point: point.run.wall_s)

    @property
    def cheapest(self) -> FrontierPoint:
        """The run of fewest GPU-hours, and so of least money and energy."""
        return min(self.points, key=lambda point: point.run.gpu_hours)

    def cheapest_within(self, wall_s: float) -> FrontierPoint:
        """The cheapest run that ends in time."""
        best = self.fastest.run
        if best.wall_s > wall_s:
            raise SpecError(
                f"no run ends within {show_time(wall_s)}: the shortest takes {show_time(best.wall_s)} on "
                f"{best.num_gpus:,} GPUs, and is limited by {self.fastest.limit}; allow that long, or ask for less"
            )
        return min((each for each in self.points if each.run.wall_s <= wall_s), key=lambda each: each.run.gpu_hours)

    def fastest_for(self, cost: float) -> FrontierPoint:
        """The shortest run that costs no more."""
        best = self.cheapest.run
        if best.cost > cost:
            raise SpecError(
                f"{cost:,.0f} {best.currency} are too few: the cheapest run takes {best.cost:,.0f} "
                f"({best.gpu_hours:,.0f} GPU-hours, {show_time(best.wall_s)} on {best.num_gpus:,} GPUs)"
            )
        return min((each for each in self.points if each.run.cost <= cost), key=lambda each: each.run.wall_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "params": self.goal.params,
            "min_tokens": self.goal.min_tokens,
            "critical_batch_tokens": self.goal.critical_batch,
            "loss": self.goal.loss,
            "plans_priced": self.plans,
            "confirmed": self.confirmed,
            "elapsed_s": self.elapsed_s,
            "fastest": self.fastest.to_dict(),
            "cheapest": self.cheapest.to_dict(),
            "frontier": [point.to_dict() for point in self.points],
            "assumptions": list(self.assumptions),
        }


def other_runs(
    frontier: Frontier, *, within_s: float | None = None, budget: float | None = None
) -> dict[str, FrontierPoint]:
    """What else is asked of a frontier, by name.

    within_s : Also show the cheapest run that ends in this time: '60 d'.
    budget : Also show the shortest run for this much money: 50M.
    """
    found = {} if within_s is None else {"within": frontier.cheapest_within(within_s)}
    return found if budget is None else {**found, "budget": frontier.fastest_for(budget)}


def default_batches(goal: Goal, sequence_length: int) -> tuple[int, ...]:
    """Powers of two from a thirty-second of the critical batch to eight times it.  [sequences]"""
    middle = goal.critical_batch / sequence_length
    least, most = max(1.0, middle / 32), max(8.0, middle * 8)
    return tuple(2**power for power in range(40) if least <= 2**power <= most)


def shortest(
    scenario: Scenario,
    goal: Goal,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    terms: Terms | None = None,
    layered: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Frontier:
    """The frontier of shortest runs over numbers of GPUs.

    scenario : model, cluster, training and stack are kept; plan and batch are searched.
    goal : what the run has to reach.
    gpus : fewest and most.
    batches : in sequences. Default: `default_batches`.
    terms : failures, storage, prices.
    layered : also breadth-first orders and modular pipelines.
    progress : called with (batches priced and sizes run, and how many there are).
    """
    terms = (terms or Terms()).priced(scenario.cluster.gpu)
    begun, length = time.perf_counter(), scenario.training.sequence_length
    wanted = sorted(batches if batches is not None else default_batches(goal, length))
    work = count(1)

    def done() -> None:
        if progress is not None:
            progress(next(work), len(wanted) + MOST_POINTS)

    prices = price_batches(scenario, wanted, gpus, layered, done)
    steps = pd.Series({batch: float(goal.steps(batch * length)) for batch in wanted})
    saved = state_of(scenario.replace(plan=ParallelPlan())).checkpoint_bytes

    def run_of(num_gpus: int, batch: int, seconds: float, answer: Estimate | None = None) -> TrainingRun:
        """The whole run at a batch; without a plan every GPU saves as much."""
        total, tokens, asked = steps[batch], steps[batch] * batch * length, scenario
        if answer is None:
            storing = even_storing(saved, num_gpus, scenario.cluster, scenario.profile)
        else:
            storing, asked = storing_of(answer.scenario), answer.scenario
        seconds *= data_loading(asked, tokens / (total * seconds), storing).slowdown
        return training_run(storing, num_gpus, scenario.cluster.node, seconds, total, tokens, terms)

    rough = _rough_frontier(prices.fastest * steps, steps, run_of)
    walls = {size: wall for size, (_, wall) in rough.items()}
    points, confirmed = list[FrontierPoint](), 0
    for num_gpus, batch in _thinned(rough):
        answer, tried = confirm(prices.plans[batch], num_gpus)
        confirmed += tried
        done()
        if answer is None:  # only layered plans, whose memory was taken a little too small
            continue
        run = run_of(num_gpus, batch, answer.step_time_s, answer)
        if not points or run.wall_s < points[-1].run.wall_s:
            losses = losses_of(answer, run, goal, prices, steps)
            points.append(FrontierPoint(answer, run, losses, limit_of(losses, walls, num_gpus)))
    if not points:
        raise InfeasiblePlan("no plan that was priced fits when it is run; allow more GPUs")
    cannot = [f"the shortest run's plan: {line}" for line in framework_plans.assumed(points[-1].answer.scenario)]
    said = _assumptions(scenario, wanted, layered, points, prices, steps)
    return Frontier(
        goal, tuple(points), tuple(wanted), prices.count, confirmed, time.perf_counter() - begun,
        (*cannot, *goal.notes, *terms.assumptions, *said),
    )  # fmt: skip


def _rough_frontier(
    useful: pd.DataFrame, steps: pd.Series[float], run_of: Callable[[int, int, float], TrainingRun]
) -> Rough:
    """The best batch of every size that no smaller one beats, by priced times of all steps."""
    front: Rough = {}
    shortest_yet = inf
    best = (useful.index, useful.idxmin(axis=1), useful.min(axis=1))
    for num_gpus, batch, seconds in zip(*(each.tolist() for each in best), strict=True):
        if seconds >= shortest_yet:  # failures and checkpoints only cost more on more GPUs
            continue
        try:
            wall = run_of(num_gpus, batch, seconds / steps[batch]).wall_s
        except SpecError:  # so many GPUs that no work gets done between failures
            continue
        if wall < shortest_yet:
            front[num_gpus], shortest_yet = (batch, wall), wall
    if not front:
        raise InfeasiblePlan("no run gets anywhere: failures come faster than checkpoints on every number of GPUs")
    return front


Rough = dict[int, tuple[int, float]]
"""Number of GPUs -> (batch, wall-clock seconds), by GPUs; each faster than all before."""


def _thinned(front: Rough) -> list[tuple[int, int]]:
    """Some of the sizes, evenly over the logarithm and each the cheapest near, with the least and the fastest."""
    sizes = np.array(list(front))
    chosen = {*sizes[-NEAR_FASTEST:].tolist(), min(front, key=lambda size: size * front[size][1])}
    even = np.geomspace(sizes[0], sizes[-1], MOST_POINTS - len(chosen))
    reach = np.log(sizes[-1] / sizes[0]) / (2 * max(1, len(even) - 1))
    cost = sizes * np.array([front[size][1] for size in sizes.tolist()])
    for size in even:
        away = np.abs(np.log(sizes / size))
        near = np.flatnonzero(away <= max(reach, away.min()))
        chosen.add(int(sizes[near[np.argmin(cost[near])]]))
    return [(size, front[size][0]) for size in sorted(chosen)]


def _assumptions(
    scenario: Scenario,
    batches: Sequence[int],
    layered: bool,
    front: Sequence[FrontierPoint],
    prices: Prices,
    steps: pd.Series[float],
) -> Iterator[str]:
    """Yield what is not known of storage and power, what was tried, and what the fastest run's order gives it."""
    yield from front[-1].run.storing.notes
    if scenario.cluster.node.power_per_gpu_w is None:
        yield unknown_energy(scenario.cluster.node)
    answer = front[-1].answer
    if answer.scenario.plan.schedule in LAYERED:
        layered_s = steps[answer.scenario.training.global_batch_size] * answer.step_time_s
        more = work_time(prices.usual, steps, answer.num_gpus) / layered_s - 1
        yield (
            f"the fastest run's order is layered; 1f1b or interleaved plans (--no-layered) take {more:.0%} longer"
            if isfinite(more)
            else "no 1f1b or interleaved plan fits on the GPUs of the fastest run, whose order is layered"
        )
    yield (
        f"{len(batches)} batches of {batches[0]:,} to {batches[-1]:,} sequences of "
        f"{scenario.training.sequence_length:,} tokens"
    )
    bounded = ", layered schedules by a bound" if layered else ""
    yield f"gpipe, 1f1b, interleaved ranked by the closed form{bounded}; the shown sizes run on the exact engine"
    if scenario.model.num_experts:
        yield f"experts dealt over {expert_degree(scenario, max(batches))} GPUs"
    yield from scenario.assumed
