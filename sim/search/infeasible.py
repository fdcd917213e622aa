"""Why no plan fits, in a sentence, and what would make one fit."""

from __future__ import annotations

import math
from dataclasses import replace

from sim.search.confirm import run_best
from sim.search.layouts import expert_degrees
from sim.search.result import SearchResult, Selection
from sim.search.space import Space
from sim.units import show


def none_fits(result: SearchResult, selection: Selection) -> str:
    """The sentence that none of some plans fits in memory, and what the leanest of them needs."""
    assert selection.leanest is not None
    needed = result.prices.memory_bytes[selection.leanest]
    plan = result.scenario_at(selection.leanest).plan
    experts = f"ep {plan.ep}, " if result.space.scenario.model.num_experts else ""
    return (
        f"none of the {selection.priced:,} such plans fits in {show(result.memory_limit_bytes, 'B')}: the leanest "
        f"needs {show(needed, 'B')} (recompute {plan.recompute}, ZeRO {plan.zero_stage}, dp {plan.dp}, {experts}"
        f"micro-batch {plan.microbatch_size})"
    )


def nothing_fits(result: SearchResult) -> str:
    """The sentence that no plan fits, by how much, and whether the limit or the GPU is too small."""
    everything = result.select({}, 1)
    if everything.leanest is None:
        fixed = " and ".join(f"plan.{name} = {value}" for name, value in result.space.fixed_saving.items())
        return f"no plan of this search has {fixed}; leave it out and the search chooses it, or ask flopcast estimate"
    lowest = result.prices.memory_bytes[everything.leanest]
    plan, scenario = result.scenario_at(everything.leanest).plan, result.space.scenario
    gpu = scenario.cluster.gpu
    limited = result.memory_limit_bytes < gpu.usable_bytes
    named = "--memory-limit" if limited else f"the memory of one {gpu.name}"
    raised = f"raise --memory-limit to {math.ceil(lowest / 1e9)} GB, or "
    remedy = raised if limited and lowest < gpu.usable_bytes else ""
    experts, dealt = "", ""
    if scenario.model.num_experts:
        experts = f", ep {plan.ep}"
        wider = _wider_degrees(result.space)
        if wider:
            dealt = (
                f"deal the {scenario.model.num_experts} experts over more GPUs (-s "
                f"plan.ep=[{','.join(map(str, wider))}]; without it all degrees are searched), "
            )
    return (
        f"none of {result.plans_priced:,} plans fits: memory rules them all out. The leanest needs "
        f"{show(lowest, 'B')}, {named} is {show(result.memory_limit_bytes, 'B')} (tp {plan.tp}, cp {plan.cp}, pp "
        f"{plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, {plan.schedule}, recompute "
        f"{plan.recompute}, ZeRO {plan.zero_stage}{experts}). To go on, {remedy}{dealt}{_hosted(result)}"
        "use more GPUs (--gpus) or GPUs with more memory"
    )


def _hosted(result: SearchResult) -> str:
    """The sentence that some plan fits only with states in host memory; empty if none does."""
    if "offload" in result.room:
        return ""
    able, found = run_best(replace(result, room=(*result.room, "offload")), {}, 1, 1)
    if not found.best:
        return ""
    plan = found.best[0].scenario.plan
    kept = [f"{plan.optimizer_offload:.0%} of the optimizer's state"] if plan.optimizer_offload else []
    kept += [f"activations of {plan.offloaded_layers} layers"] if plan.offloaded_layers else []
    return (
        f"with {' and '.join(kept)} in host memory one fits (tp {plan.tp}, pp {plan.pp}, dp {plan.dp}): search "
        f"with --room {','.join(able.room)}, or "
    )


def _wider_degrees(space: Space, few: int = 4) -> list[int]:
    """The next larger numbers of GPUs to deal experts over, at most all that hold the same layers."""
    tp, cp, _, dp, ep = space.layouts.T
    most, widest = int((tp * cp * dp).max()), int(ep.max())
    return [each for each in expert_degrees(space.scenario) if widest < each <= most][:few]
