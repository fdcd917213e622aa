"""How fast could it be trained at all? The shortest run over cluster size, batch and plan, and what limits it.

Every plan of every batch is priced at once (`sim.search`), layered ones by a bound (`sim.search.layered`); a batch
takes as many steps as the goal says of it; the sizes that no smaller cluster beats are run on the exact engine, with
failures and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate
from sim.reliability.state import state_of
from sim.reliability.storing import data_loading, even_storing, storing_of
from sim.scaling.goal import Goal
from sim.scaling.run import Terms, TrainingRun, training_run, unknown_energy
from sim.scaling.step_times import (
    Prices,
    confirm,
    expert_degree,
    limit_of,
    losses_of,
    price_batches,
    use_of_more,
)
from sim.search.candidate import facts_of
from sim.specs import ParallelPlan, Scenario
from sim.specs.framework_plans import broken_rules, framework_words, plan_rules, rules_of_scenario
from sim.specs.plan import LAYERED
from sim.specs.presets import preset_names
from sim.units import show_time

Progress = Callable[[int, int], None]
MOST_POINTS = 14
"""Sizes of a frontier that the exact engine runs."""
PARTS = 10
"""Parts of a batch's pricing, of which the progress tells: as much work as one size that the exact engine runs."""
NEAR_FASTEST = 4
"""Points of the frontier that are the largest sizes, next to each other, where the time is shortest."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The fastest run on so many GPUs.

    batch_tokens : [tokens]
    losses : share of the time that would be saved if each cause were gone, largest first.
    limit : what keeps the run from being faster: "GPUs" where more of them still help, else the largest loss.
    """

    answer: Estimate
    batch_tokens: float
    run: TrainingRun
    losses: Mapping[str, float]
    limit: str

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
    terms: Terms
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
    progress: Progress | None = None,
) -> Frontier:
    """The frontier of shortest runs over numbers of GPUs.

    scenario : model, cluster, training and stack are kept; plan and batch are searched.
    goal : what the run has to reach.
    gpus : fewest and most.
    batches : in sequences. Default: `default_batches`.
    terms : failures, storage, prices.
    layered : also breadth-first orders and modular pipelines.
    progress : called with (work done, work in all).
    """
    terms = (terms or Terms()).priced(scenario.cluster.gpu)
    begun = time.perf_counter()
    length = scenario.training.sequence_length
    wanted = tuple(batches) if batches is not None else default_batches(goal, length)
    work = PARTS * len(wanted) + MOST_POINTS
    report = progress or (lambda done, size: None)
    prices, plans = price_batches(scenario, sorted(wanted), gpus, layered, lambda done: report(int(PARTS * done), work))
    steps = {batch: float(goal.steps(batch * length)) for batch in wanted}
    data = {batch: float(goal.tokens(batch * length)) for batch in wanted}
    saved = state_of(scenario.replace(plan=ParallelPlan())).checkpoint_bytes

    def run_of(num_gpus: int, batch: int, seconds: float, answer: Estimate | None = None) -> TrainingRun:
        """The whole run at a batch; without a plan every GPU saves as much."""
        total, tokens, asked = steps[batch], data[batch], scenario
        if answer is None:
            storing = even_storing(saved, num_gpus, scenario.cluster, scenario.profile)
        else:
            storing, asked = storing_of(answer.scenario), answer.scenario
        seconds *= data_loading(asked, tokens / (total * seconds), storing).slowdown
        return training_run(storing, num_gpus, scenario.cluster.node, seconds, total, tokens, terms)

    rough = _rough_frontier(prices, steps, run_of)
    walls = {size: wall for size, (_, wall) in rough.items()}
    points, confirmed = [], 0
    for number, (num_gpus, batch) in enumerate(_thinned(rough)):
        answer, tried = confirm(prices[batch], num_gpus)
        confirmed += tried
        if answer is None:  # only layered plans, whose memory was taken a little too small
            continue
        run = run_of(num_gpus, batch, answer.step_time_s, answer)
        losses = losses_of(answer, run, goal, prices, steps)
        limit = limit_of(losses, use_of_more(walls, num_gpus))
        points.append(FrontierPoint(answer, float(batch * length), run, losses, limit))
        report(PARTS * len(wanted) + number + 1, work)
    front = _undominated(points)
    stated = (*_of_layered_order(front, prices, steps, length), *_assumptions(scenario, wanted, layered))
    return Frontier(
        goal,
        terms,
        front,
        wanted,
        plans,
        confirmed,
        time.perf_counter() - begun,
        (*_of_the_framework(front), *goal.notes, *terms.assumptions, *_of_the_machine(scenario, front), *stated),
    )


def _of_layered_order(
    front: Sequence[FrontierPoint], prices: Prices, steps: Mapping[int, float], length: int
) -> tuple[str, ...]:
    """What a layered order gives the fastest run beyond the orders that frameworks use, each at its best batch."""
    if not front or (answer := front[-1].answer).scenario.plan.schedule not in LAYERED:
        return ()
    layered = steps[round(front[-1].batch_tokens / length)] * answer.step_time_s
    usual = min(steps[batch] * each.fitting.get(answer.num_gpus, np.inf) for batch, each in prices.items())
    if not np.isfinite(usual):
        return ("no 1f1b or interleaved plan fits on the GPUs of the fastest run, whose order is layered",)
    return (f"the fastest run's order is layered; 1f1b or interleaved plans take {usual / layered - 1:.0%} longer",)


def _of_the_framework(front: Sequence[FrontierPoint]) -> tuple[str, ...]:
    """Plans that the stack's framework cannot run, and the frameworks that run that of the shortest run, in words."""
    broken: dict[str, list[str]] = {}
    for point in front:
        scenario = point.answer.scenario
        for rule in broken_rules(scenario, rules_of_scenario(scenario)):
            what = rule.refusal(scenario, dict(scenario.plan)).partition(":")[0]
            broken.setdefault(what, []).append(f"{point.run.num_gpus:,}")
    if not broken:
        return ()
    fastest = front[-1].answer.scenario
    words = framework_words(fastest.stack.framework, fastest.stack.version)
    kinds = "; ".join(f"{what} on {', '.join(gpus)} GPUs" for what, gpus in broken.items())
    rules = {name: plan_rules(name) for name in preset_names("frameworks")}
    able = [name for name, asked in rules.items() if asked and not broken_rules(fastest, asked)]
    who = f"{' and '.join(able[:2])} can run" if able else "no framework that flopcast knows can run"
    return (
        f"{words} cannot run some of these plans ({kinds}); {who} the plan of the shortest run. --no-layered leaves "
        "layered orders out, and flopcast search keeps to what the framework can run",
    )


def _of_the_machine(scenario: Scenario, front: Sequence[FrontierPoint]) -> tuple[str, ...]:
    """What is not known of storage and power."""
    notes = front[-1].run.storing.notes if front else ()
    node = scenario.cluster.node
    return notes if node.power_per_gpu_w is not None else (*notes, unknown_energy(node))


Rough = dict[int, tuple[int, float]]
"""Number of GPUs -> (batch, wall-clock seconds), by GPUs; each faster than all before."""


def _rough_frontier(
    prices: Prices, steps: Mapping[int, float], run_of: Callable[[int, int, float], TrainingRun]
) -> Rough:
    """The best batch of every size that no smaller one beats, by priced step times."""
    best: Rough = {}
    for batch, priced in prices.items():
        for num_gpus, seconds in priced.fastest.items():
            if num_gpus not in best or steps[batch] * seconds < best[num_gpus][1]:
                best[num_gpus] = (batch, steps[batch] * seconds)
    front: Rough = {}
    shortest_yet = np.inf
    for num_gpus in sorted(best):
        batch, useful = best[num_gpus]
        if useful >= shortest_yet:  # failures and checkpoints only cost more on more GPUs
            continue
        try:
            wall = run_of(num_gpus, batch, useful / steps[batch]).wall_s
        except SpecError:  # so many GPUs that no work gets done between failures
            continue
        if wall < shortest_yet:
            front[num_gpus], shortest_yet = (batch, wall), wall
    if not front:
        raise InfeasiblePlan("no run gets anywhere: failures come faster than checkpoints on every number of GPUs")
    return front


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


def _undominated(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    kept: list[FrontierPoint] = []
    for point in sorted(points, key=lambda each: each.run.num_gpus):
        if not kept or point.run.wall_s < kept[-1].run.wall_s:
            kept.append(point)
    return tuple(kept)


def _assumptions(scenario: Scenario, batches: Sequence[int], layered: bool) -> tuple[str, ...]:
    stated = [
        f"{len(batches)} batches of {batches[0]:,} to {batches[-1]:,} sequences of "
        f"{scenario.training.sequence_length:,} tokens",
        "gpipe, 1f1b, interleaved ranked by the closed form"
        + (", layered schedules by a bound" if layered else "")
        + "; the shown sizes run on the exact engine",
    ]
    if scenario.model.num_experts:
        ep = expert_degree(scenario, max(batches))
        stated.append(f"experts dealt over {ep} GPUs")
    return (*stated, *scenario.assumed)
