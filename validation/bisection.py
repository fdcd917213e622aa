"""Effective bisection bandwidth of a plan's traffic: what crosses the middle of every group that talks, and how fast.

Papers that quote such a figure seldom define it. Here every group (the ranks of a pipeline, each ring that sums
gradients) is cut into halves, and what crosses the cuts, both directions together, is divided by the time the traffic
takes by the cost model. The traffic's own time counts, not the step's: compute in between is not the network's.

With scatter/gather a send ends when the receivers have gathered the tensor over NVLink: Megatron-LM's timers stand
around both (NVIDIA/Megatron-LM:megatron/p2p_communication.py, 2021, `_communicate`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.collectives import all_reduce, reduce_scatter, send
from sim.network.placement import hops_of, place_group, send_share
from sim.pricing.cells import plans_of, send_seconds, sent_bytes
from sim.pricing.deal import HELD, params_of
from sim.pricing.layouts import cost_model, cut_of
from sim.specs import Scenario
from sim.work.layers import deal_stages
from sim.work.optimizer import GRADIENT_WIDTH


@dataclass(frozen=True, slots=True)
class CutTraffic:
    """What crosses the middle of all groups of one kind.

    senders : GPUs that send across, each direction counted.
    nbytes : that cross in one exchange, both directions together. [bytes]
    bytes_per_s : while they do, both directions together. [bytes/s]
    """

    senders: int
    nbytes: float
    bytes_per_s: float


def pipeline_cut(scenario: Scenario, *, gathered: bool = True) -> CutTraffic:
    """Activations and their gradients between the two halves of all pipelines.

    The GPUs of the two middle ranks send at once: an activation forward and a gradient back, as in the steady state of
    1F1B. With scatter/gather or sequence parallelism each tensor-parallel rank sends its share, else all of it. With
    `gathered` the time goes on until the receivers have gathered what was scattered; else until it has left the
    network.
    """
    plan = scenario.plan
    if plan.pp == 1:
        return CutTraffic(0, 0.0, 0.0)
    costs, cut = cost_model(scenario), cut_of(scenario)
    share, shared = sent_bytes(costs, cut), send_share(plan, scenario.cluster)
    crosses = bool(hops_of(plan, scenario.cluster).cross(plan.pp // 2 - 1, plan.pp // 2))
    charged = send_seconds(costs, cut, place_group("tp", plan, scenario.cluster), shared)[crosses]
    seconds = float(charged if gathered else send(share, crosses, costs.fabric, shared))
    senders = 2 * plan.tp * plan.num_replicas
    return CutTraffic(senders, senders * share, senders * share / seconds)


def data_parallel_cut(scenario: Scenario) -> CutTraffic:
    """Gradients between the two halves of every data-parallel group.

    A ring crosses a cut twice, once each way, and carries 2 (n−1)/n of the gradients over every hop of an all-reduce,
    half of that in a reduce-scatter (ZeRO). Groups of different pipeline ranks reduce at once, each at its own rate.
    Experts' gradients, summed over fewer GPUs, are left out.
    """
    plan, model = scenario.plan, scenario.model
    n = plan.num_replicas
    if n == 1:
        return CutTraffic(0, 0.0, 0.0)
    plans = plans_of(scenario)
    group = place_group("shards", plan, scenario.cluster)
    collective, passes = (all_reduce, 2) if plan.zero_stage == 0 else (reduce_scatter, 1)
    stages = deal_stages(model, plan)
    nbytes, rate = 0.0, 0.0
    for rank in range(plan.pp):
        part = sum(each.part for each in stages if each.index % plan.pp == rank)
        grads = (
            params_of(np.array([part]), plans.layouts)[HELD][0].item()
            * GRADIENT_WIDTH[scenario.stack.gradient_precision]
        )
        crossing = 2 * plan.tp * passes * (n - 1) / n * grads
        nbytes += crossing
        rate += crossing / float(collective(grads, group, plans.costs.fabric))
    return CutTraffic(2 * plan.tp * plan.pp, nbytes, rate)
