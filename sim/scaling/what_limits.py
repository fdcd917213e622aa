"""What keeps a run from being faster: the time that each cause costs it, found by taking the cause away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.estimate import Estimate, estimate
from sim.scaling.goal import Goal
from sim.scaling.run import TrainingRun
from sim.scaling.step_times import PricedBatches
from sim.specs import Scenario
from sim.specs.profile import LinkParams

STILL_HELPS = 0.8
"""Share of a doubled speed that doubling the GPUs must bring for them to be what a run lacks."""
ENDLESS = 1e6
"""Times the bandwidth, for a link that takes no time."""


def losses_of(
    answer: Estimate, run: TrainingRun, goal: Goal, prices: PricedBatches, steps: Mapping[int, float]
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
    priced = {size: prices.of_batch[size] for size in steps if size in prices.of_batch}
    now = min(steps[size] * each.at(run.num_gpus) for size, each in priced.items())
    patient = min(goal.min_tokens / (size * length) * each.at(run.num_gpus) for size, each in priced.items())
    roomy = min(steps[size] * each.any_memory.at(run.num_gpus) for size, each in priced.items())
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
