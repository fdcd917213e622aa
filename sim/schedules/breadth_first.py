"""Looped breadth-first: every micro-batch goes through a chunk before the next chunk is begun."""

from collections.abc import Iterator

from sim.schedules.actions import Action, Kind
from sim.schedules.registry import schedule


@schedule("breadth_first", interleaves=True)
def breadth_first(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """All micro-batches through one chunk, then the next; weights are gathered and gradients reduced once a chunk.

    Lamy-Poirier 2022, arXiv:2211.05953, section 4; with one layer a chunk it is the modular pipeline with layered
    gradient accumulation of Lamy-Poirier 2021, arXiv:2106.02679. Bubble (p − 1)(t_F + t_B)/v when there are at least p
    micro-batches; each chunk keeps all of them alive.
    """
    for chunk in range(num_chunks):
        for microbatch in range(num_microbatches):
            yield Action(chunk * num_ranks + rank, Kind.F, microbatch)
    for chunk in reversed(range(num_chunks)):
        for microbatch in range(num_microbatches):
            yield Action(chunk * num_ranks + rank, Kind.B, microbatch)
