"""Schedules with several chunks a rank: interleaved 1F1B, and looped breadth-first."""

from functools import lru_cache

import numpy as np

from sim.errors import ScheduleError
from sim.schedules.actions import B, F, I, Row, W, in_turns, run
from sim.schedules.registry import microbatch_remedy, schedule


def _requirement(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_ranks == 1:
        return "it needs a pipeline; set plan.pp and plan.num_chunks to 2 or more, or plan.schedule to 1f1b"
    if num_chunks == 1:
        return "it needs num_chunks of 2 or more; set plan.num_chunks to 2, or plan.schedule to 1f1b"
    if num_microbatches % num_ranks:
        nearest_count = max(1, round(num_microbatches / num_ranks)) * num_ranks
        return (
            f"{num_microbatches} micro-batches must be a multiple of plan.pp = {num_ranks}; nearest: {nearest_count}; "
            f"{microbatch_remedy(nearest_count)}"
        )
    return None


@lru_cache(maxsize=8)
def _visits(num_chunks: int, num_microbatches: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """(chunk, micro-batch) of each forward: groups of micro-batches visit every chunk in turn."""
    group = min(group, num_microbatches)
    whole = num_microbatches // group
    rest = np.arange(whole * group, num_microbatches)
    numbers = np.arange(whole * group).reshape(whole, 1, group).repeat(num_chunks, axis=1).ravel()
    chunks = np.tile(np.arange(num_chunks).repeat(group), whole)
    return (
        np.concatenate([chunks, np.arange(num_chunks).repeat(len(rest))]),
        np.concatenate([numbers, np.tile(rest, num_chunks)]),
    )


@schedule("interleaved", chunks="many", requirement=_requirement, period=lambda p, v, group=None: group or p)
def interleaved(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, group: int | None = None) -> Row:
    """1F1B over several chunks a rank: groups of p micro-batches visit every chunk in turn; bubble 1/v of 1F1B's.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; order as in NVIDIA/Megatron-LM
    `forward_backward_pipelining_with_interleaving` and PyTorch (older Megatron-LM ran all forwards first when there
    are as many micro-batches as ranks). Bubble (p − 1)(t_F + t_B)/v; needs m mod p = 0. `group` sets another size of
    the groups, from p (depth first) to all micro-batches (breadth first): Llama 3, arXiv:2407.21783, section 3.3.2,
    and Megatron-LM's `microbatch_group_size_per_vp_stage`; larger ones give sends more time and keep more activations.
    """
    group = group or num_ranks
    if group < num_ranks:
        raise ScheduleError(
            f"plan.microbatch_group = {group} must be at least plan.pp = {num_ranks}: fewer micro-batches come round "
            "before they have filled the pipeline; raise it, or leave it out for plan.pp"
        )
    chunks, numbers = _visits(num_chunks, num_microbatches, group)
    forwards = run(F, chunks * num_ranks + rank, numbers)
    backwards = run(B, (num_chunks - 1 - chunks) * num_ranks + rank, numbers)
    warmup = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * group
    return in_turns((forwards, -warmup), (backwards, 0))


@schedule("zb_interleaved", chunks="many", requirement=_requirement, period=lambda p, v: p)
def zb_interleaved(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """Interleaved 1F1B with weight gradients put off as in ZB-H1: less of a bubble, fewer activations in flight.

    PyTorch's `ScheduleInterleavedZeroBubble`, after Qi et al. 2023, arXiv:2401.10241.
    """
    chunks, numbers = _visits(num_chunks, num_microbatches, num_ranks)
    back = (num_chunks - 1 - chunks) * num_ranks + rank
    warmup = num_ranks - 1 - rank + (num_chunks - 1) * num_ranks
    return in_turns(
        (run(F, chunks * num_ranks + rank, numbers), -warmup), (run(I, back, numbers), 0), (run(W, back, numbers), rank)
    )


@schedule("breadth_first", chunks="many")
def breadth_first(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """All micro-batches through one chunk, then the next; weights are gathered and gradients reduced once a chunk.

    Lamy-Poirier 2022, arXiv:2211.05953, section 4. Bubble (p − 1)(t_F + t_B)/v when there are at least p
    micro-batches; each chunk keeps all of them in flight.
    """
    return breadth_first_row(rank, num_ranks, num_ranks * num_chunks, num_microbatches)


def breadth_first_row(rank: int, num_ranks: int, num_stages: int, num_microbatches: int) -> Row:
    """A rank's actions: chunk by chunk, and back; backwards begin with the last micro-batch, as PyTorch's do."""
    chunks = np.arange(rank, num_stages, num_ranks)
    stages, numbers = chunks.repeat(num_microbatches), np.tile(np.arange(num_microbatches), len(chunks))
    return in_turns((run(F, stages, numbers), -len(numbers)), (run(B, stages[::-1], numbers[::-1]), 0))


@schedule("modular", chunks="many")
def modular(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, stages: int | None = None) -> Row:
    """Layered gradient accumulation on a modular pipeline: rank i holds layers i, i + p, …; breadth-first by layer.

    Lamy-Poirier 2021, arXiv:2106.02679: every micro-batch finishes a layer before any begins the next, so a layer's
    weights are gathered twice and its gradients reduced once a step, beside the whole backward. Breadth-first order
    with one layer a chunk; on one rank layered accumulation without a pipeline. Bubble p (p − 1)/(m n) of the compute
    for n layers; where p does not divide them the last round is incomplete, and with at least p micro-batches the step
    takes m ⌈n/p⌉ + (n − 1) mod p layers there and back.
    """
    num_stages = num_ranks * num_chunks if stages is None else stages
    return breadth_first_row(rank, num_ranks, num_stages, num_microbatches)
