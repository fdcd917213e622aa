"""Words for a search none of whose plans fits: by how much memory rules them out, and what would help."""

from __future__ import annotations

import math

import numpy as np

from sim.search.plans.layouts import expert_degrees
from sim.search.result import SearchResult
from sim.units import show


def nothing_fits(result: SearchResult) -> str:
    """That memory is what rules all plans out, by how much, and whether the limit or the GPU is too small."""
    lowest, place, begin = np.inf, 0, 0
    for block in result.blocks():
        here = int(np.argmin(block.memory_bytes))
        if block.memory_bytes[here] < lowest:
            lowest, place = float(block.memory_bytes[here]), begin + here
        begin += len(block)
    plan, gpu = result.scenario_at(place).plan, result.space.scenario.cluster.gpu
    partly = "" if result.finished else f" (interrupted after {result.plans_priced:,} of {result.space.num_plans:,})"
    limited = result.memory_limit_bytes < gpu.memory_bytes
    named = "--memory-limit" if limited else f"the memory of one {gpu.name}"
    enough = f"{math.ceil(lowest / 1e9)} GB"
    remedy = f"raise --memory-limit to {enough}, or " if limited and lowest < gpu.memory_bytes else ""
    scenario, experts, dealt = result.space.scenario, "", ""
    if scenario.model.num_experts:
        experts = f", ep {plan.ep}"
        wider = _wider_degrees(result)
        if wider:
            dealt = (
                f"deal the {scenario.model.num_experts} experts over more GPUs (--ep {','.join(map(str, wider))}; "
                "without --ep all degrees are searched), "
            )
    return (
        f"none of {result.plans_priced:,} plans fits{partly}: memory rules them all out; the leanest needs "
        f"{show(lowest, 'B')}, {named} is {show(result.memory_limit_bytes, 'B')} (tp {plan.tp}, cp {plan.cp}, pp "
        f"{plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, {plan.schedule}, recompute {plan.recompute}, "
        f"ZeRO {plan.zero_stage}{experts}); {remedy}{dealt}use more GPUs (--gpus, --max-gpus) or GPUs with more memory"
    )


def _wider_degrees(result: SearchResult, few: int = 4) -> list[int]:
    """The next larger numbers of GPUs over which the experts could be dealt, at most all that hold the same layers."""
    layouts = result.space.layouts
    most, widest = int((layouts[:, 0] * layouts[:, 1] * layouts[:, 3]).max()), int(layouts[:, 4].max())
    return [each for each in expert_degrees(result.space.scenario) if widest < each <= most][:few]
