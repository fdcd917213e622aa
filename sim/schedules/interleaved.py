"""Interleaved 1F1B: each rank holds several chunks of the model."""

from collections.abc import Iterator

from sim.schedules.actions import Action, Kind
from sim.schedules.registry import schedule


def _requirement(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_chunks == 1:
        return "it needs num_chunks of 2 or more; set plan.num_chunks, or plan.schedule to 1f1b"
    if num_ranks == 1:
        return "it needs a pipeline; set plan.pp above 1"
    if num_microbatches % num_ranks:
        nearest_count = max(1, round(num_microbatches / num_ranks)) * num_ranks
        return (
            f"{num_microbatches} micro-batches must be a multiple of plan.pp = {num_ranks}; nearest: {nearest_count} "
            "(change training.global_batch_size, plan.dp or plan.microbatch_size)"
        )
    return None


@schedule("interleaved", interleaves=True, requirement=_requirement)
def interleaved(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """1F1B over several chunks a rank: groups of p micro-batches visit every chunk in turn; bubble 1/v of 1F1B's.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; order as in NVIDIA/Megatron-LM
    `forward_backward_pipelining_with_interleaving` and PyTorch (older Megatron-LM ran all forwards first when there
    are as many micro-batches as ranks). Bubble (p − 1)(t_F + t_B)/v; needs m mod p = 0.
    """
    total = num_chunks * num_microbatches
    group = num_ranks * num_chunks

    def unit(index: int, forward: bool) -> Action:
        round_, inside = divmod(index, group)
        chunk, member = divmod(inside, num_ranks)
        chunk = chunk if forward else num_chunks - 1 - chunk
        return Action(chunk * num_ranks + rank, Kind.F if forward else Kind.B, round_ * num_ranks + member)

    warmup = min(2 * (num_ranks - 1 - rank) + (num_chunks - 1) * num_ranks, total)
    for index in range(warmup):
        yield unit(index, True)
    for index in range(total - warmup):
        yield unit(warmup + index, True)
        yield unit(index, False)
    for index in range(total - warmup, total):
        yield unit(index, False)
