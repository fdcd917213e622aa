"""PipeDream-2BW's planner: equal stages, as many replicas of each, every width and depth tried.

w replicas of d stages, micro-batches of b samples, m of them a batch and replica. Per micro-batch of a replica,

    t = max over stages of  max( c T_comp + sum of its sends,  all-reduce of its gradients over w / m )

with c = 4/3 where activations are recomputed, and w b / t samples a second. A worker keeps

    2 |W|/d + |A|/d · d            without recomputation: d micro-batches of its layers' activations
    2 |W|/d + |A|/d + d |A_in|     with it: one of them, and the inputs of d

besides gradients and optimizer state [1]_. A batch has at least as many micro-batches as stages, or two versions of the
weights are too few. The cut is the one whose slowest stage is fastest, which of alike layers is the even one.

.. [1] Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", arXiv:2006.09503, section 3.3.
   Gradients and optimizer state are added here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import InfeasiblePlan, SpecError, require_positive
from sim.planners.layers import LayerProfile
from sim.planners.pipeline_plan import Level, num_workers
from sim.search.layout import cut_evenly
from sim.units import show

RECOMPUTED = 4.0 / 3.0
"""Compute with a second forward over that without, where a backward is twice a forward."""


@dataclass(frozen=True, slots=True)
class TwoBufferedPlan:
    """One width and depth.

    num_microbatches : of a batch and replica. ends : where each stage's layers end.
    period_s : per micro-batch of a replica. [s]
    compute_s, reduce_s : of the slowest stage: with its sends; and its all-reduce, per micro-batch. [s]
    memory_bytes : of the fullest worker. [bytes]
    """

    width: int
    depth: int
    microbatch_size: int
    num_microbatches: int
    recompute: bool
    ends: tuple[int, ...]
    period_s: float
    compute_s: float
    reduce_s: float
    memory_bytes: float

    @property
    def samples_per_s(self) -> float:
        """Samples a second over all replicas."""
        return self.width * self.microbatch_size / self.period_s

    @property
    def step_time_s(self) -> float:
        """Time from batch to batch. [s]"""
        return self.num_microbatches * self.period_s

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON."""
        return {
            "width": self.width,
            "depth": self.depth,
            "microbatch_size": self.microbatch_size,
            "num_microbatches": self.num_microbatches,
            "recompute": self.recompute,
            "ends": list(self.ends),
            "step_time_s": self.step_time_s,
            "samples_per_s": self.samples_per_s,
            "compute_s": self.compute_s,
            "reduce_s": self.reduce_s,
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class TwoBufferedPlans:
    """All plans that fit, the fastest first; and how many were tried."""

    plans: tuple[TwoBufferedPlan, ...]
    tried: int

    @property
    def best(self) -> TwoBufferedPlan:
        """The fastest."""
        return self.plans[0]


def plan_two_buffered(
    profiles: Mapping[int, LayerProfile],
    levels: Sequence[Level],
    batch: int,
    memory_bytes: float,
    *,
    recompute: Sequence[bool] = (False, True),
) -> TwoBufferedPlans:
    """Try every width, depth, micro-batch and recomputation.

    Replicas of a stage stand next to each other, as in Megatron's order of ranks, so that sends between stages leave a
    part of the machine where the replicas fill it.

    profiles : of each micro-batch to try, what the layers take without recomputation.
    levels : from the innermost out, of one or two.
    batch : samples between two updates, over all replicas.
    memory_bytes : of a worker. [bytes]
    """
    require_positive(batch=batch, memory_bytes=memory_bytes)
    levels = tuple(levels)
    if not profiles or len(levels) not in (1, 2):
        raise SpecError(f"give profiles of one micro-batch or more, and one or two levels, not {len(levels)}")
    workers = num_workers(levels)
    found: list[TwoBufferedPlan] = []
    for size, profile in sorted(profiles.items()):
        for depth in range(1, min(workers, len(profile)) + 1):
            width = workers // depth
            count, rest = divmod(batch, width * size)
            if workers % depth or rest or count < depth:
                continue
            found += [_priced(profile, levels, size, width, depth, count, again) for again in recompute]
    if not found:
        raise SpecError(
            f"no width · depth = {workers} workers with micro-batches of {', '.join(map(str, sorted(profiles)))} makes "
            f"batches of {batch:,} samples of at least as many micro-batches as stages. Take a larger batch, or "
            f"one with more divisors of {workers}"
        )
    fitting = sorted((plan for plan in found if plan.memory_bytes <= memory_bytes), key=_slowness)
    if not fitting:
        least = min(found, key=lambda plan: plan.memory_bytes)
        raise InfeasiblePlan(
            f"none of {len(found)} plans fits in {show(memory_bytes, 'B')}: the smallest, width {least.width}, depth "
            f"{least.depth}, micro-batches of {least.microbatch_size}{', recomputation' if least.recompute else ''}, "
            f"needs {show(least.memory_bytes, 'B')}; take more workers, or more memory each"
        )
    return TwoBufferedPlans(tuple(fitting), len(found))


def _slowness(plan: TwoBufferedPlan) -> tuple[float, float]:
    return -plan.samples_per_s, plan.memory_bytes


def _priced(
    profile: LayerProfile, levels: tuple[Level, ...], size: int, width: int, depth: int, count: int, recompute: bool
) -> TwoBufferedPlan:
    """One plan by 2BW's cost model and memory."""
    each = np.array([layer.forward_s + layer.backward_s for layer in profile.layers])
    ends = cut_evenly(each, depth)
    firsts = np.array((0, *ends[:-1]))
    last = np.array(ends)
    sums = {name: profile.before(name) for name in ("gradients_bytes", "weights_bytes", "state_bytes", "kept_bytes")}
    of_stage = {name: before[last] - before[firsts] for name, before in sums.items()}
    seconds = np.concatenate([[0.0], np.cumsum(each)])
    compute = (RECOMPUTED if recompute else 1.0) * (seconds[last] - seconds[firsts])
    sent = profile.sent_bytes
    arrives = sent[firsts] * (firsts > 0)  # activations from the stage before
    returns = sent[last] * (last < len(profile))  # gradients from the stage after
    ahead, back = _hop_rates(levels, width, depth)
    working = compute + arrives / ahead + returns / back
    inside, outside = levels[0], levels[-1]
    rate = (inside if width <= inside.count else outside).bandwidth_bytes_per_s
    reduce = 2.0 * (width - 1) / width * of_stage["gradients_bytes"] / rate / count
    in_flight = depth - np.arange(depth)
    inputs = np.where(firsts > 0, sent[firsts], profile.input_bytes)
    kept = of_stage["kept_bytes"] + in_flight * inputs if recompute else in_flight * of_stage["kept_bytes"]
    memory = 2.0 * of_stage["weights_bytes"] + of_stage["state_bytes"] + kept
    per_stage = np.maximum(working, reduce)
    worst = int(per_stage.argmax())
    return TwoBufferedPlan(
        width,
        depth,
        size,
        count,
        recompute,
        tuple(int(end) for end in ends),
        float(per_stage.max()),
        float(working[worst]),
        float(reduce[worst]),
        float(memory.max()),
    )


def _hop_rates(levels: tuple[Level, ...], width: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Bandwidth of a worker to the stage before, and from the one after, by stage.  [bytes/s]

    A send that leaves its part of the machine has its worker's share of the part's bandwidth.
    """
    inside, outside = levels[0], levels[-1]
    share = outside.bandwidth_bytes_per_s / (inside.count if len(levels) > 1 else 1)
    stage = np.arange(depth + 1) * width
    # The last replica of a stage is the one whose neighbour is furthest along.
    crosses = np.array(
        [any((at - width + r) // inside.count != (at + r) // inside.count for r in range(width)) for at in stage]
    )
    crosses &= len(levels) > 1
    rate = np.where(crosses, share, inside.bandwidth_bytes_per_s)
    return rate[:-1], rate[1:]
