"""Step times of every plan of several batches, by number of GPUs, where a shortest run is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import gcd, inf
from typing import Any

import numpy as np

from sim.arrays import Ints
from sim.errors import InfeasiblePlan
from sim.estimate import Estimate, estimate
from sim.scaling.goal import Goal
from sim.scaling.run import TrainingRun
from sim.search import SearchResult, search
from sim.search.best_first import Found, best_first, in_order
from sim.search.layered import layered_plans
from sim.specs import ParallelPlan, Scenario
from sim.specs.profile import LinkParams

CONFIRMED = 40
"""Most plans of one size with a closed form that the exact engine runs, until no later one can be faster."""

Fastest = dict[int, float]
"""Number of GPUs -> step time of the fastest plan on exactly so many, by GPUs. [s]"""


def fastest_of_sizes(plans: SearchResult, any_memory: bool = False) -> Fastest:
    """Return the step time of the fastest plan of every number of GPUs, in their order, of those that fit or of all."""
    some = plans.prices.take(plans.fits | any_memory)
    num_gpus, seconds = plans.space.gpus_of(some.row), some.step_time_s
    order = np.lexsort((seconds, num_gpus))
    sizes, first = np.unique(num_gpus[order], return_index=True)
    return dict(zip(sizes.tolist(), seconds[order][first].tolist(), strict=True))


@dataclass(slots=True)
class PricedBatch:
    """Every plan of one batch.

    plans : those of schedules with a closed form, then layered ones by their bounds.
    fitting, any_memory : of schedules with a closed form, that fit in memory, and of all.
    layered : by their bounds.
    """

    plans: list[SearchResult] = field(default_factory=list)
    fitting: Fastest = field(default_factory=Fastest)
    any_memory: Fastest = field(default_factory=Fastest)
    layered: Fastest = field(default_factory=Fastest)

    @property
    def fastest(self) -> Fastest:
        """The fastest plans that fit."""
        sizes = sorted({*self.fitting, *self.layered})
        return {size: min(self.fitting.get(size, inf), self.layered.get(size, inf)) for size in sizes}


Prices = dict[int, PricedBatch]
"""Sequences of a batch -> its plans, of batches that have any."""


def price_batches(
    scenario: Scenario,
    batches: Sequence[int],
    gpus: tuple[int, int],
    layered: bool,
    progress: Callable[[float], object],
) -> tuple[Prices, int]:
    """Price every plan of every batch on a range of sizes, and count them.

    progress : called with the batches done, and the share of the one at work.
    """
    found: Prices = {}
    plans = 0
    refusal = InfeasiblePlan("there is no batch to price")
    for number, batch in enumerate(batches):
        training = scenario.training.replace(global_batch_size=batch)
        given = scenario.replace(training=training, plan=ParallelPlan(placement=scenario.plan.placement))
        among: dict[str, Any] = {"gpus": gpus, "context": (1,), "experts": (expert_degree(scenario, batch),)}
        priced = PricedBatch()

        def searched(done: int, size: int, number: int = number) -> None:
            progress(number + done / max(1, size) / 2)

        try:
            # How fast it could be trained at all: whichever framework can run the plan.
            usual = search(
                given, **among, top=1, confirm=1, layouts=False, any_framework=True,
                progress=searched,
            )  # fmt: skip
        except InfeasiblePlan as error:
            refusal = error
        else:
            priced.plans.append(usual)
            priced.fitting, priced.any_memory = fastest_of_sizes(usual), fastest_of_sizes(usual, any_memory=True)
        progress(number + 0.5)
        if layered:
            priced.plans.append(layered_plans(given, **among, progress=partial(progress, number + 0.5)))
            priced.layered = fastest_of_sizes(priced.plans[-1])
        plans += sum(each.plans_priced for each in priced.plans)
        if priced.fastest:
            found[batch] = priced
        progress(number + 1)
    if not found:
        raise refusal
    return found, plans


def expert_degree(scenario: Scenario, batch: int) -> int:
    """GPUs over which experts are dealt: as many of the scenario's, or of an NVLink domain's, as divide the batch."""
    model, ep = scenario.model, scenario.plan.ep
    if model.num_experts and ep == 1:
        ep = gcd(model.num_experts, scenario.cluster.nvlink_domain_gpus)
    return gcd(ep, batch)


def confirm(priced: PricedBatch, num_gpus: int) -> tuple[Estimate | None, int]:
    """The fastest plan of the batch on so many GPUs by the exact engine, None if none fits; and how many plans it ran.

    No price or bound is above the exact time: once the best is below that of a plan, none after it is faster.
    """
    found = Found[Estimate](most=CONFIRMED)
    for plans in priced.plans:
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
    answer: Estimate, run: TrainingRun, goal: Goal, prices: Prices, steps: Mapping[int, float]
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
    scenario, length = answer.scenario, answer.scenario.training.sequence_length
    here = {size: each.fastest.get(run.num_gpus, inf) for size, each in prices.items()}
    now = min(steps[size] * seconds for size, seconds in here.items())
    patient = min(goal.min_tokens / (size * length) * seconds for size, seconds in here.items())
    roomy = min(steps[size] * each.any_memory.get(run.num_gpus, inf) for size, each in prices.items())
    step = answer.step_time_s
    saved = {
        "batch": 1.0 - patient / now,
        "memory": 1.0 - roomy / now,
        "bubble": answer.bubble_fraction,
        "network": 1.0 - estimate(with_endless_links(scenario)).step_time_s / step,
        "latency": 1.0 - estimate(without_latency(scenario)).step_time_s / step,
        "failures": 1.0 - run.goodput.useful,
    }
    return dict(
        sorted(((cause, max(round(share, 9), 0.0)) for cause, share in saved.items()), key=lambda item: -item[1])
    )


def limit_of(losses: Mapping[str, float], gain_of_more: float) -> str:
    """ "GPUs" where more of them still speed the run up nearly as much as they could, else the largest loss.

    gain_of_more : share of a doubled speed that doubling the GPUs brings.
    """
    return "GPUs" if gain_of_more >= STILL_HELPS else next(iter(losses))


def use_of_more(walls: Mapping[int, float], num_gpus: int) -> float:
    """How much of a doubling of the GPUs is a doubling of the speed, from 0 to 1; looking back from the largest.

    walls : shortest wall-clock time on each number of GPUs, by number. [s]
    """
    sizes, times = np.log(list(walls)), np.log(list(walls.values()))
    one, two = np.exp(np.interp(np.log([num_gpus, 2.0 * num_gpus]), sizes, times))
    return float(np.log2(one / two))


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
