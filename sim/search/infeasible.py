"""Why no plan fits, in a sentence, and what would make one fit."""

from __future__ import annotations

import math
from dataclasses import replace

from sim.search.confirm import run_best
from sim.search.fields import Fields
from sim.search.layouts import expert_degrees
from sim.search.result import SearchResult
from sim.search.space import Space
from sim.units import show


def nothing_fits(result: SearchResult, fields: Fields | None = None) -> str:
    """The sentence that no plan, or none with some fields, fits, and by how much; of all plans what would help, too."""
    chosen, space = result.select(fields or {}, 1), result.space
    if chosen.leanest is None:
        fixed = " and ".join(f"plan.{name} = {value}" for name, value in space.fixed_saving.items())
        return f"no plan of this search has {fixed}; leave it out and the search chooses it, or ask flopcast estimate"
    lowest, plan = result.prices.memory_bytes[chosen.leanest], result.scenario_at(chosen.leanest).plan
    gpu, experts = space.scenario.cluster.gpu, space.scenario.model.num_experts
    needed, limit = show(lowest, "B"), show(result.memory_limit_bytes, "B")
    leanest = (
        f"tp {plan.tp}, cp {plan.cp}, pp {plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, {plan.schedule}, "
        f"recompute {plan.recompute}, ZeRO {plan.zero_stage}{f', ep {plan.ep}' if experts else ''}"
    )
    if fields is not None:
        return f"none of the {chosen.priced:,} such plans fits in {limit}: the leanest needs {needed} ({leanest})"
    limited = result.memory_limit_bytes < gpu.usable_bytes
    named = "--memory-limit" if limited else f"the memory of one {gpu.name}"
    raised = f"raise --memory-limit to {math.ceil(lowest / 1e9)} GB, or "
    remedy = raised if limited and lowest < gpu.usable_bytes else ""
    wider = ",".join(map(str, _wider_degrees(space))) if experts else ""
    if wider:
        remedy += (
            f"deal the {experts} experts over more GPUs (-s plan.ep=[{wider}]; without it all degrees are searched), "
        )
    return (
        f"none of {result.plans_priced:,} plans fits: memory rules them all out. The leanest needs {needed}, {named} "
        f"is {limit} ({leanest}). To go on, {remedy}{_hosted(result)}use more GPUs (--gpus) or GPUs with more memory"
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
