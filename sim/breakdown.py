"""Step time by cause; the parts sum to the whole.

Times are averages over the pipeline ranks, so every second of every GPU is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.engines import Timeline, run
from sim.engines.program import classes_of, slowed_at_visits
from sim.schedules.actions import W
from sim.units import show_time
from sim.work.operations import Cause

#: Cause -> what it means, in the order a reader wants them.
CAUSES = {
    "flop_at_peak": "matrix FLOPs at the GPU's peak: the time no software can save",
    "matmul_inefficiency": "matrix multiplies below peak: tiles, waves, launches, clocks",
    "attention_overhead": "attention below peak: softmax and dropout over the scores, small multiplies",
    "memory_bound": "norms, activations, dropout, gradient accumulation: bytes, not FLOPs",
    "host_wait": "the GPU waits for the host: before a forward, and where kernels are shorter than their launches",
    "recompute": "activations computed again in the backward",
    "tensor_parallel_comm": "tensor-parallel collectives that nothing hides",
    "context_parallel_comm": "exchange of keys and values that attention does not hide",
    "expert_parallel_comm": "waiting for tokens on their way to experts and back",
    "beside_expert_comm": "what compute loses beside tokens on their way: multiprocessors and memory",
    "pipeline_comm": "sends between pipeline ranks that occupy them, and the tied embedding's reduction",
    "pipeline_bubble": "waiting while the pipeline fills and drains, and for sends on their way",
    "stage_imbalance": "waiting for the slowest pipeline rank, in the pipeline and after it",
    "data_parallel_comm": "gradient reduction and weight gathers that nothing hides",
    "stragglers": "waiting for the slowest of all GPUs, beyond what the profile was set on",
    "optimizer": "gradient norm and update",
    "offload": "copies to host memory and back that nothing hides, and the update on the CPU",
}

ROUNDING = 1e-12
"""Share of a step that sums of seconds may leave of a part that takes none."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step by cause, as in CAUSES. [s]"""

    seconds: dict[str, float]

    def __repr__(self) -> str:
        """One line: the step, and its largest causes."""
        largest = sorted(self.shares().items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{cause} {share:.1%}" for cause, share in largest)
        return f"<Breakdown of {show_time(self.total)}: {parts}, ...>"

    @property
    def total(self) -> float:
        """The step time. [s]"""
        return sum(self.seconds.values())

    def shares(self) -> dict[str, float]:
        """Share of the step by cause; they sum to one."""
        return {cause: value / self.total for cause, value in self.seconds.items()}


def break_down(timeline: Timeline) -> Breakdown:
    """Account for a step."""
    costs, updates = timeline.program.costs, timeline.updates
    exposed = updates * (float(timeline.exposed_reduce_s.mean()) + float(timeline.exposed_gather_s.mean()))
    seconds = _busy_seconds(timeline, exposed)
    # What remains the average GPU waits: for the slowest rank's pipeline work, then for reductions and updates longer
    # than its own, and the rest of the time for the pipeline to fill and drain.
    idle = timeline.step_time_s - sum(seconds.values())
    per_rank = timeline.program.busy_per_rank()
    seconds["stage_imbalance"] = min(float(per_rank.max() - per_rank.mean()), idle)
    idle -= seconds["stage_imbalance"]
    after = (
        timeline.step_time_s
        - float(timeline.pipeline_end_s.max())
        - exposed
        - updates * float(costs.optimizer_s.mean())
        - costs.step_setup_s
    )
    waiting = min(max(after, 0.0), idle)
    tied = min(waiting, costs.tied_embedding_s)
    seconds["pipeline_comm"] += tied
    seconds["stage_imbalance"] += waiting - tied
    seconds["pipeline_bubble"] = idle - waiting
    least = ROUNDING * timeline.step_time_s
    return Breakdown({cause: value if value > least else 0.0 for cause, value in seconds.items()})


def waiting_for_sends(timeline: Timeline) -> float:
    """Part of the pipeline bubble that would be gone if sends between pipeline ranks took no time.  [s]"""
    costs = timeline.program.costs
    none = np.zeros_like(costs.send_forward_s)
    at_once = run(replace(timeline.program, costs=replace(costs, send_forward_s=none, send_backward_s=none)))
    bubbles = [break_down(each).seconds["pipeline_bubble"] for each in (timeline, at_once)]
    return max(bubbles[0] - bubbles[1], 0.0)


def _busy_seconds(timeline: Timeline, exposed: float) -> dict[str, float]:
    """What the average GPU does in a step, by cause; nothing for the causes of waiting. [s]

    exposed : Reductions and gathers that nothing hides. [s]
    """
    costs, order = timeline.program.costs, timeline.program.order
    ranks, updates = order.num_ranks, timeline.updates
    between = (order.flushes - 1) * float(np.mean(timeline.program.between_flushes_s))
    # Copies of the model share the micro-batches.
    microbatches = order.num_microbatches / order.copies
    forward, backward, inputs, weights, at_peak = costs.passes
    halved = np.bincount(order.stage, (order.kind == W) * order.weight, order.num_stages)
    busy = microbatches * (forward + backward).sum(axis=1) + (inputs + weights - backward) @ halved
    busy, peak = (busy / ranks).tolist(), (microbatches * at_peak.sum(axis=1) / ranks).tolist()
    sends = (
        microbatches * float((costs.send_forward_s + costs.send_backward_s).sum()) / ranks if costs.p2p_blocks else 0.0
    )
    return {
        "flop_at_peak": sum(peak),
        "matmul_inefficiency": busy[Cause.MATMUL] + busy[Cause.LOGITS] - (sum(peak) - peak[Cause.ATTENTION]),
        "attention_overhead": busy[Cause.ATTENTION] - peak[Cause.ATTENTION],
        "memory_bound": busy[Cause.MEMORY_BOUND],
        "host_wait": busy[Cause.HOST] + costs.step_setup_s,
        "recompute": busy[Cause.RECOMPUTE],
        "tensor_parallel_comm": busy[Cause.TENSOR_PARALLEL],
        "context_parallel_comm": busy[Cause.CONTEXT_PARALLEL],
        "expert_parallel_comm": busy[Cause.EXPERT_PARALLEL],
        "beside_expert_comm": busy[Cause.BESIDE_TOKENS],
        "pipeline_comm": sends + busy[Cause.PIPELINE],
        "pipeline_bubble": 0.0,
        "stage_imbalance": 0.0,
        "data_parallel_comm": busy[Cause.DATA_PARALLEL] + exposed + between + _at_visits(timeline),
        "stragglers": busy[Cause.STRAGGLERS],
        "optimizer": updates * float((costs.optimizer_s - costs.offload_s).mean()),
        "offload": busy[Cause.OFFLOAD] + updates * float(costs.offload_s.mean()),
    }


def _at_visits(timeline: Timeline) -> float:
    """Time that the average rank loses to ZeRO's traffic at turns to a chunk, by waiting and by slower compute.  [s]"""
    order, visits = timeline.program.order, timeline.program.costs.visits
    if visits is None:
        return 0.0
    classes = classes_of(order, at_visits=True)
    lost = float((slowed_at_visits(order, classes, visits)[0] * classes.weight).sum())
    waited = 0.0 if timeline.waited_s is None else float(timeline.waited_s.sum())
    return (lost + waited) / order.num_ranks
