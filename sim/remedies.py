"""What would help a plan that does not fit in memory: its neighbours, tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sim.errors import FlopcastError
from sim.specs import Scenario
from sim.units import show


def memory_remedies(scenario: Scenario, part: str, needed: float, estimate: Callable[[Scenario], Any]) -> list[str]:
    """What to change when a plan does not fit: plans that keep every rule and need less, the leanest first.

    Parameters
    ----------
    part : str
        Of the fullest rank's memory, the largest, as in `sim.work.memory.MemoryUse`.
    needed : float
        By the fullest rank. [bytes]
    estimate : callable
        `sim.estimate.estimate`, by which the plans are tried.
    """
    plan = scenario.plan
    wishes: list[dict[str, Any]] = [{"schedule": "1f1b"}] if plan.schedule == "gpipe" else []
    if part in ("activations", "logits", "working"):
        lighter = "selective" if plan.recompute == "none" and scenario.stack.attention == "math" else "full"
        wishes += [{"recompute": lighter}] if plan.recompute != "full" else []
        wishes += [{"sequence_parallel": True}] if plan.tp > 1 and not plan.sequence_parallel else []
        wishes += [{"microbatch_size": plan.microbatch_size // 2}] if plan.microbatch_size > 1 else []
    if part in ("optimizer", "gradients", "weights") and plan.num_replicas > 1:
        level = {"optimizer": 1, "gradients": 2, "weights": 3}[part]
        wishes += [{"zero_stage": level}] if plan.zero_stage < level else []
    wider = math.gcd(scenario.model.num_experts, plan.tp * plan.cp * plan.dp // plan.etp)
    wishes += [{"ep": wider}] if wider > plan.ep else []
    if plan.dp % 2 == 0:
        wishes.append({"pp": plan.pp * 2, "dp": plan.dp // 2})
        if plan.tp < scenario.cluster.nvlink_domain_gpus:
            wishes.append({"tp": plan.tp * 2, "dp": plan.dp // 2})
    tried = []
    for wish in wishes:
        try:
            answer = estimate(scenario.replace(plan=plan.replace(**wish)))
        except FlopcastError:
            continue
        if answer.largest.total < 0.98 * needed:
            tried.append((answer.largest.total, answer.fits, wish))
    remedies = []
    for total, fits, wish in sorted(tried, key=lambda item: item[0]):
        change = " with ".join(f"plan.{name}={str(value).lower()}" for name, value in wish.items())
        remedies.append(f"{change} ({show(total, 'B')}, {'fits' if fits else 'not yet enough'})")
    return remedies or ["more GPUs (a larger plan.tp or plan.pp)"]
