"""A scenario as a program: the order of its schedule (some choose it by the costs), what it costs, both together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sim.engines import Program
from sim.engines.program import between_flushes, last_backward, waited_reduction
from sim.errors import ScheduleError
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import Deal, deal_of
from sim.pricing.stages import StageSeconds, price_plan
from sim.schedules import Order, build_order, get_schedule
from sim.specs import Scenario
from sim.specs.plan import num_stages_of


def priced_order(scenario: Scenario, *, fold: bool = True) -> tuple[Order, StageSeconds]:
    """What each rank does, and what it costs.

    fold : Leave out what repeats; the engines time it nevertheless.
    """
    return price_order(scenario, plans_of(scenario), fold=fold)[:2]


def price_order(scenario: Scenario, plans: Plans, *, fold: bool = True) -> tuple[Order, StageSeconds, Deal]:
    """What each rank does, what it costs, and how stages are dealt."""
    plan, chosen = scenario.plan, get_schedule(scenario.plan.schedule)
    if plan.sequence_slices > 1 and "slices" not in chosen.options:
        raise ScheduleError(
            f"schedule {plan.schedule!r} does not cut sequences; set plan.schedule to seq1f1b or plan.sequence_slices "
            "to 1"
        )
    options: dict[str, Any] = {"group": plan.microbatch_group, "per_flush": plan.microbatches_per_flush}
    if "slices" in chosen.options:
        options["slices"] = plan.sequence_slices
    stages = num_stages_of(scenario.model.num_layers, plan)
    if stages < plan.num_stages:
        options["stages"] = stages

    size = (plan.schedule, plan.pp, plan.num_chunks, scenario.num_microbatches)

    by_times = "times" in chosen.options
    # If it chooses its order by what things take, any of its candidates tells that first.
    given: dict[str, Any] = {"candidate": 0} if by_times and chosen.candidates else {}
    while True:
        order = build_order(*size, fold=fold, **(options | given))
        deal = deal_of(scenario.model, plan, order.rank_of_stage, order.copies)
        costs = price_plan(plans, deal)
        if not by_times:
            return order, costs, deal
        by_times, given = False, {"times": typical_times(costs)}


def typical_times(costs: StageSeconds) -> tuple[float, float, float, float]:
    """Forward, input gradient, weight gradient and send of the average stage, in forwards to three digits."""
    passes = (costs.forward_s, costs.input_grad_s, costs.weight_grad_s)
    seconds = (*(float(each.mean()) for each in passes), costs.typical_send)
    forward, inputs, weights, send = (round(value / seconds[0], 3) for value in seconds)
    return forward, inputs, weights, send


def program_of(scenario: Scenario, order: Order, costs: StageSeconds) -> Program:
    """Return the program that engines run for a scenario."""
    plan, stack = scenario.plan, scenario.stack
    beside = stack.overlap_grad_reduce
    if beside and stack.reduce_waited_for and get_schedule(order.schedule).asynchronous:
        waited = waited_reduction(costs.reduce_s, costs.reduce_tail_s, last_backward(order, costs), costs.hidden_share)
        costs, beside = replace(costs, reduce_s=waited), False  # what is left of it is a part of the update
    return Program(
        order,
        costs,
        between_flushes_s=between_flushes(order, costs, stack, sharded=plan.zero_stage == 3),
        hide_grad_reduce=beside,
        hide_gather=stack.overlap_param_gather,
    )


def cores_assumed(scenario: Scenario) -> Iterator[str]:
    """Note that ranks which really share cores are given one each, where they are."""
    node, ranks = scenario.cluster.node, scenario.plan.num_gpus
    if node.cores is not None and ranks > node.cores:
        yield (
            f"each of {ranks} ranks is given a core of its own, but node {node.name!r} has {node.cores:g}: ranks that "
            "take turns on them are slower"
        )
