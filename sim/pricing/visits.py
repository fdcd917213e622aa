"""What a rank with several chunks moves whenever it turns to one: ZeRO's gathers and reductions, of a whole chunk.

They are no part of any micro-batch: they happen once a visit, however many micro-batches it has, on a stream of their
own beside compute (Lamy-Poirier 2021, arXiv:2106.02679, section 4; 2022, arXiv:2211.05953, section 4.2). Engines say
when (`sim.engines.visits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, KindPlanFloats
from sim.pricing.batch import Batch
from sim.pricing.parts import put_together
from sim.pricing.zero import Moved


@dataclass(frozen=True, slots=True)
class VisitSeconds:
    """Seconds of one visit to each kind of stage; arrays (kinds of stages, plans), with two passes on the axis before
    where there are, forward and backward. [s]

    gather : the weights, before a visit's first micro-batch needs them: one block after the other.
    early : of the gather, what that first micro-batch's pass through the blocks before hides by itself; a third pass is
        a backward's input-gradient half.
    reduce : the gradients, when the last micro-batch of a backward visit gives them: one block after the other.
    tail : of the reduction, what is left when that backward is over, at least.
    gather_slows, reduce_slows : what compute loses beside them.
    ahead : whether the weights of visits to come are gathered while a rank computes; else it waits. Arrays (plans).
    beside : the same of gradients that are reduced.
    prefetched : visits whose weights may be gathered ahead of the one at work: one, as frameworks have it.
    """

    gather: Floats
    early: Floats
    reduce: KindPlanFloats
    tail: KindPlanFloats
    gather_slows: Floats
    reduce_slows: KindPlanFloats
    ahead: Bools
    beside: Bools
    prefetched: int = 1

    def take(self, plans: Any) -> VisitSeconds:
        """Of some plans, the last axis; or of one, without it."""
        some: dict[str, Any] = {name: getattr(self, name)[..., plans] for name in _OVER_PLANS}
        return replace(self, **some)

    def rows(self) -> Iterator[Floats]:
        """All arrays over plans, one after the other."""
        for name in _OVER_PLANS:
            whole = getattr(self, name)
            yield from whole.reshape(-1, whole.shape[-1])

    def of_stages(self, kind_of_stage: Ints) -> VisitSeconds:
        """With stages in the place of their kinds."""
        names = ("gather", "early", "reduce", "tail", "gather_slows", "reduce_slows")
        changed: dict[str, Any] = {name: getattr(self, name)[..., kind_of_stage, :] for name in names}
        return replace(self, **changed)


_OVER_PLANS = tuple(each.name for each in fields(VisitSeconds) if each.name != "prefetched")


def price_visits(
    batch: Batch, moved: Moved | None, parts: Floats, passes: Sequence[KindPlanFloats]
) -> VisitSeconds | None:
    """What visits to kinds of stages move; None where no plan moves anything so.

    Parameters
    ----------
    parts : array
        How often each kind of stage has each block (`sim.pricing.parts`).
    passes : arrays (kinds of stages, plans)
        Forward, backward and input gradient of one micro-batch. [s]

    Notes
    -----
    The blocks of a stage are taken for alike: b of them, each gathered in G/b and passed in C/b, let the first
    micro-batch begin when all but min(G, C) (b − 1)/b of the gather is done. Where a stack gathers a layer in several
    pieces, these are the blocks.
    """
    several, group, fabric = batch.num_chunks > 1, batch.layouts.data.take(batch.layout), batch.costs.fabric
    if moved is None or not several.any():
        return None
    ahead, beside = np.asarray(batch.overlap_param_gather), np.asarray(batch.overlap_grad_reduce)
    num_blocks = len(moved.gather_s)
    gather, regather, reduce = (each * several for each in (moved.gather_s, moved.regather_s, moved.reduce_s))
    slows = (1.0 - fabric.hidden_share(group, moved.weight_bytes, gather)) * ahead
    reduce_slows = reduce * (1.0 - fabric.hidden_share(group, moved.gradient_bytes, reduce)) * beside
    of_gather, gather_slows = (
        np.stack([put_together(parts, each) for each in both])
        for both in ((gather, regather), (gather * slows, regather * slows))
    )
    of_reduce, of_slows = put_together(parts, reduce), put_together(parts, reduce_slows)
    first = 1.0 / np.maximum(put_together(parts, np.ones((num_blocks, *[1] * (gather.ndim - 1)))), 1.0)
    hidden = [np.minimum(each, passed) for each, passed in zip(of_gather[[0, 1, 1]], passes, strict=True)]
    return VisitSeconds(
        gather=of_gather,
        early=np.stack(hidden) * (1.0 - first / batch.costs.stack.gathers_per_layer) * ahead,
        reduce=of_reduce,
        tail=np.minimum(of_reduce * first, of_reduce - of_slows),
        gather_slows=gather_slows,
        reduce_slows=of_slows,
        ahead=ahead,
        beside=beside,
    )
