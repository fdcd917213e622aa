"""Parts of a model, such as its stages and what ranks hold, as counts of the model's blocks.

Counts are arrays (parts, blocks + 1, …): how often each part has each block (`sim.work.stages.blocks_of`), and behind
the blocks how many of the vocabulary's tables it holds once for two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.arrays import Floats
from sim.work.stages import ModelPart


def counts_of(parts: Sequence[ModelPart], shape: tuple[int, ...] = ()) -> Floats:
    """Return the counts of parts, whose numbers may be arrays that broadcast to a shape."""
    counts = np.zeros((len(parts), len(parts[0].counts) + 1, *shape))
    for number, part in enumerate(parts):
        for block, count in enumerate((*part.counts, part.shared_tables)):
            counts[number, block] = count
    return counts


def put_together(counts: Floats, blocks: Floats) -> Floats:
    """Return what parts have of what each block has: (parts, …) from (blocks, …), or (blocks + 1, …) with tables."""
    counts = counts[:, : len(blocks)]
    if counts.ndim == 2:
        whole = counts @ blocks.reshape(len(blocks), -1)
        return whole.reshape(len(counts), *blocks.shape[1:])
    found = []
    for of_part in counts:
        terms = [count * block for count, block in zip(of_part, blocks, strict=True) if count.any()]
        shape = np.broadcast_shapes(of_part.shape[1:], blocks.shape[1:])
        found.append(np.broadcast_to(sum(terms) if terms else 0.0, shape))
    return np.stack(found)
