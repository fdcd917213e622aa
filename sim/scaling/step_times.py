"""Step times of every plan of several batches, by number of GPUs, where a shortest run is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd, inf
from typing import Any

import numpy as np
import pandas as pd

from sim.arrays import Bools, Ints
from sim.errors import InfeasiblePlan
from sim.estimate import Estimate, estimate
from sim.scaling.goal import Goal
from sim.scaling.run import TrainingRun
from sim.search import SearchResult, search
from sim.search.best_first import Found, best_first, in_order
from sim.search.by_schedule import layered_plans
from sim.specs import ParallelPlan, Scenario
from sim.specs.profile import LinkParams

CONFIRMED = 40
"""Most plans of one size with a closed form that the exact engine runs, until no later one can be faster."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Step times of the fastest plans: a row a number of GPUs, a column a batch; infinite where there is none. [s]

    plans : by batch, those of schedules with a closed form, then layered ones by their bounds.
    usual, any_memory : of schedules with a closed form, that fit in memory, and of all.
    layered : by their bounds.
    """

    plans: dict[int, list[SearchResult]]
    usual: pd.DataFrame
    layered: pd.DataFrame
    any_memory: pd.DataFrame

    @property
    def count(self) -> int:
        """How many plans were priced."""
        return sum(each.plans_priced for some in self.plans.values() for each in some)

    @property
    def fastest(self) -> pd.DataFrame:
        """The fastest plans that fit."""
        return self.usual.where(self.usual < self.layered, self.layered)


def price_batches(
    scenario: Scenario, batches: Sequence[int], gpus: tuple[int, int], layered: bool, done: Callable[[], object]
) -> Prices:
    """Price every plan of every batch on a range of sizes.

    done : called after each batch.
    """
    plans: dict[int, list[SearchResult]] = {}
    times: dict[str, dict[int, pd.Series[float]]] = {"usual": {}, "layered": {}, "any_memory": {}}
    refusal = InfeasiblePlan("there is no batch to price")
    for batch in batches:
        training = scenario.training.replace(global_batch_size=batch)
        given = scenario.replace(training=training, plan=ParallelPlan(placement=scenario.plan.placement))
        among: dict[str, Any] = {"gpus": gpus, "fixed": {"cp": 1, "ep": expert_degree(scenario, batch)}}
        found = plans[batch] = []
        try:  # how fast it could be trained at all: whichever framework can run the plan
            found.append(search(given, **among, top=1, confirm=1, layouts=False, any_framework=True))
            times["usual"][batch] = _fastest(found[-1], found[-1].fits)
            times["any_memory"][batch] = _fastest(found[-1], np.ones_like(found[-1].fits))
        except InfeasiblePlan as error:
            refusal = error
        if layered:
            found.append(layered_plans(given, **among))
            times["layered"][batch] = _fastest(found[-1], found[-1].fits)
        done()
    sizes = sorted({size for kind in ("usual", "layered") for each in times[kind].values() for size in each.index})
    if not sizes:
        raise refusal
    columns = [*batches]
    tables = {
        kind: pd.DataFrame(each).reindex(index=sizes, columns=columns).fillna(inf) for kind, each in times.items()
    }
    return Prices(plans, **tables)


def _fastest(plans: SearchResult, some: Bools) -> pd.Series[float]:
    """Step time of the fastest of some plans by number of GPUs. [s]"""
    prices = plans.prices.take(some)
    return pd.Series(prices.step_time_s).groupby(plans.space.columns.num_gpus[prices.row]).min()


def work_time(times: pd.DataFrame, steps: pd.Series[float], num_gpus: int) -> float:
    """Time of all steps at the best batch on so many GPUs, from step times as of `Prices`. [s]"""
    return float((times * steps).min(axis=1)[num_gpus])


def expert_degree(scenario: Scenario, batch: int) -> int:
    """GPUs over which experts are dealt: as many of the scenario's, or of an NVLink domain's, as divide the batch."""
    model, ep = scenario.model, scenario.plan.ep
    if model.num_experts and ep == 1:
        ep = gcd(model.num_experts, scenario.cluster.nvlink_domain_gpus)
    return gcd(ep, batch)


def confirm(priced: Sequence[SearchResult], num_gpus: int) -> tuple[Estimate | None, int]:
    """The fastest of a batch's plans on so many GPUs by the exact engine, None if none fits; how many plans it ran.

    No price or bound is above the exact time: once the best is below that of a plan, none after it is faster.
    """
    found = Found[Estimate](most=CONFIRMED)
    for plans in priced:
        here = plans.having({"num_gpus": num_gpus}, fitting=True)
        here = here[np.argsort(plans.prices.step_time_s[here], kind="stable")]
        best_first(in_order(plans.prices.step_time_s[here], partial(_visit, plans, here)), found)
        found.most = inf
    return next(iter(found.best), None), found.runs


def _visit(plans: SearchResult, places: Ints, number: int, found: Found[Estimate]) -> None:
    answer = estimate(plans.scenario_at(int(places[number])))
    found.record((answer.step_time_s, answer) if answer.fits else None)


STILL_HELPS = 0.8
"""Share of a doubled speed that doubling the GPUs must bring for them to be what a run lacks."""
ENDLESS = 1e6
"""Times the bandwidth, for a link that takes no time."""


def losses_of(
    answer: Estimate, run: TrainingRun, goal: Goal, prices: Prices, steps: pd.Series[float]
) -> dict[str, float]:
    """Share of the run that would be saved if a cause were gone, the largest first.

    batch : a batch of any size needed only the least data.
    memory : plans need not fit.
    bubble : ranks never waited for each other.
    network : links took no time but their latency.
    latency : launches and messages took none.
    failures : no checkpoints, nothing lost, no restarts.

    Each is what curing it alone would bring; causes overlap, so that they do not sum to anything. Batch and memory let
    batch and plan change, on as many GPUs and by priced times; the others keep the plan.
    """
    scenario, step = answer.scenario, answer.step_time_s
    length = scenario.training.sequence_length
    least = pd.Series({batch: goal.min_tokens / (batch * length) for batch in steps.index})
    now = work_time(prices.fastest, steps, run.num_gpus)
    saved = {
        "batch": 1.0 - work_time(prices.fastest, least, run.num_gpus) / now,
        "memory": 1.0 - work_time(prices.any_memory, steps, run.num_gpus) / now,
        "bubble": answer.bubble_fraction,
        "network": 1.0 - estimate(with_endless_links(scenario)).step_time_s / step,
        "latency": 1.0 - estimate(without_latency(scenario)).step_time_s / step,
        "failures": 1.0 - run.goodput.useful,
    }
    return dict(
        sorted(((cause, max(round(share, 9), 0.0)) for cause, share in saved.items()), key=lambda item: -item[1])
    )


def limit_of(losses: Mapping[str, float], walls: Mapping[int, float], num_gpus: int) -> str:
    """ "GPUs" where doubling them would nearly double the speed, else the largest loss.

    walls : shortest wall-clock time on each number of GPUs, by number. [s]
    """
    sizes, times = np.log(list(walls)), np.log(list(walls.values()))
    one, two = np.interp(np.log([num_gpus, 2.0 * num_gpus]), sizes, times)
    return "GPUs" if one - two >= STILL_HELPS * np.log(2.0) else next(iter(losses))


def with_endless_links(scenario: Scenario) -> Scenario:
    """The scenario with NVLink and a network of no end of bandwidth."""
    cluster = scenario.cluster
    node = cluster.node.replace(nvlink_bandwidth_bytes_per_s=ENDLESS * cluster.node.nvlink_bandwidth_bytes_per_s)
    endless = ENDLESS * cluster.inter_node_bandwidth_bytes_per_s
    return scenario.replace(cluster=cluster.replace(node=node, inter_node_bandwidth_bytes_per_s=endless))


def without_latency(scenario: Scenario) -> Scenario:
    """The scenario with kernels launched, and messages on their way, in no time."""
    stack = scenario.stack.replace(
        kernel_launch_s=0.0, backward_launch_s=0.0, collective_launch_s=0.0, step_setup_s=0.0, forward_setup_s=0.0
    )
    profile = scenario.profile
    instant = profile.replace(
        nvlink=_instant(profile.nvlink),
        network=_instant(profile.network),
        gemm=profile.gemm.replace(kernel_floor_s=0.0),
        host=profile.host.replace(kernel_launch_s=None),
    )
    return scenario.replace(stack=stack, profile=instant)


def _instant(link: LinkParams) -> LinkParams:
    none = {"base_latency_s": 0.0, "hop_latency_s": 0.0}
    operations = {name: params.replace(**none) for name, params in link.operations.items()}
    return link.replace(**none, operations=operations)
