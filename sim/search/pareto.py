"""The plans that no other beats in everything: step time, memory and GPUs."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def pareto_front(seconds: Array, nbytes: Array, gpus: Array) -> Array:
    """Places of the plans for which no other is as good in all three and better in one, by GPUs, then step time.

    Of plans that are equal in all three the first is kept.

    Parameters
    ----------
    seconds, nbytes, gpus : arrays over plans
        [s], [bytes], [-]
    """
    front: list[int] = []
    kept = np.empty((0, 2))  # (seconds, bytes) of the front so far, all of fewer GPUs or as many
    for size in np.unique(gpus):
        here = np.flatnonzero(gpus == size)
        here = here[np.lexsort((nbytes[here], seconds[here]))]
        # In order of time, only what needs less than everything faster is left.
        least = np.minimum.accumulate(np.concatenate([[np.inf], nbytes[here][:-1]]))
        here = here[nbytes[here] < least]
        beaten = [bool(((kept[:, 0] <= seconds[place]) & (kept[:, 1] <= nbytes[place])).any()) for place in here]
        here = here[~np.array(beaten, dtype=bool)]
        front += here.tolist()
        kept = np.concatenate([kept, np.stack([seconds[here], nbytes[here]], axis=1)])
    return np.array(front, dtype=np.int64)
