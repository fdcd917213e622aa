"""The formula: ideal time of the slowest rank plus fill and drain."""

from __future__ import annotations

import numpy as np

from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step
from sim.errors import SpecError
from sim.work.operations import Number

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def pipeline_time(num_microbatches: Number, slowest: Number, total: Number, num_chunks: Number) -> Number:
    """Seconds of a pipeline whose slowest rank takes `slowest` a micro-batch and all ranks together `total`.  [s]

    Takes arrays. See `run` for the formula.
    """
    return num_microbatches * slowest + (total - slowest) / num_chunks


def run(program: Program) -> Timeline:
    """Step time of GPipe, 1F1B and interleaved 1F1B by formula.

    With m micro-batches, w_r the seconds of one micro-batch on rank r and v chunks a rank, the pipeline takes
    m · max(w) + (Σ w − max(w)) / v [1]_. Exact for uniform ranks without sends, and for 1F1B and GPipe where the last
    rank is the slowest (the usual case: it holds the head). Elsewhere an approximation: for uneven 1F1B with blocking
    sends an upper bound, for uneven GPipe a lower one, and with sends beside compute too low by the round trips that
    1F1B waits for; uneven interleaved pipelines may lie on either side. Use the exact engine to decide.

    Raises
    ------
    SpecError
        A schedule the formula does not describe.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2: bubble (p − 1)(t_F + t_B) / v.
    """
    order, costs = program.order, program.costs
    if order.schedule not in SCHEDULES:
        raise SpecError(
            f"the closed form knows {', '.join(SCHEDULES)}, not {order.schedule!r}; use engine dag, which is exact"
        )
    chunks = order.num_stages // order.num_ranks  # the three deal their stages in turn
    per_stage = costs.forward_s + costs.backward_s
    if costs.p2p_blocks:
        per_stage = per_stage + costs.send_forward + costs.send_backward
    per_rank = per_stage.reshape(chunks, order.num_ranks).sum(axis=0)
    pipeline = pipeline_time(order.num_microbatches, per_rank.max(), per_rank.sum(), chunks)
    if not costs.p2p_blocks:  # the fill passes every boundary once each way
        pipeline += (costs.send_forward.sum() + costs.send_backward.sum()) / chunks
    # Rank r drains before rank 0 by what the ranks before it still do in the last micro-batch.
    ends = pipeline - np.concatenate([[0.0], np.cumsum(costs.backward_s[: order.num_ranks - 1])])
    return finish_step(program, "closed_form", None, None, ends)
