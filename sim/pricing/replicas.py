"""What GPUs hold, and collectives over those that hold the same: experts have groups of their own.

Parameters on a GPU are arrays whose first axis MOMENTS, HELD and TRAINED name. Pairs stand for (everything but experts,
experts): of parameters as of the groups that move them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import Floats, Number
from sim.costs.collectives import Fabric, all_reduce, reduce_scatter
from sim.network.placement import Group
from sim.pricing.cost_model import CostModel
from sim.pricing.deal import put_together
from sim.pricing.layouts import Layouts
from sim.work.adapters import adapters_of
from sim.work.optimizer import MOMENTS as MOMENTS_OF
from sim.work.optimizer import table_moments
from sim.work.sums import adapter_params, held_blocks, moments, stored_params

MOMENTS, HELD, TRAINED = 0, slice(1, 3), slice(-2, None)
"""Places on the first axis of parameters: numbers that the optimizer keeps, whatever their width; a pair of all
parameters, of frozen ones in fewer bits as many as take their memory; and a pair of those with gradients and an
optimizer: all, or behind them adapters where these alone are."""

Collective = Callable[[Number, Group, Fabric], Number]
Groups = tuple[Group, Group]


def params_of(counts: Floats, layouts: Layouts, layout: Any = slice(None)) -> Floats:
    """Return what one GPU holds of parts of the model: parameters (…, parts, layouts), or plans with these layouts."""
    return put_together(counts, block_params(layouts)[..., layout].swapaxes(0, 1)).swapaxes(0, 1)


def block_params(layouts: Layouts) -> Floats:
    """Return what one GPU holds of every block: parameters (…, blocks + 1, layouts).

    Each block has a table of its own; a table that is there once for two of them counts against them.
    """
    return _block_params(layouts.costs, layouts.tp.tobytes(), layouts.ep.tobytes(), layouts.etp.tobytes())


@lru_cache(maxsize=32)
def _block_params(costs: CostModel, *degrees: bytes) -> Floats:
    tp, ep, etp = (np.frombuffer(each, dtype=np.int64) for each in degrees)
    model, adapters, optimizer = costs.model, adapters_of(costs.training), costs.training.optimizer
    blocks = held_blocks(model, tp, ep, etp, adapters)
    held = np.zeros((3 if adapters is None else 5, len(blocks) + 1, len(tp)))
    every, experts = held[HELD]
    for number, block in enumerate(blocks):
        every[number], experts[number] = stored_params(block.operations)
        held[MOMENTS, number] = moments(block.operations, optimizer)
    every[-1], held[MOMENTS, -1] = -model.vocab_size * model.hidden_size / tp, -table_moments(model, optimizer, tp)
    every -= experts
    if adapters is not None:
        trained, experts = held[TRAINED]
        for number, block in enumerate(blocks):
            trained[number], experts[number] = adapter_params(block.operations)
        held[MOMENTS] = MOMENTS_OF[optimizer] * trained
        trained -= experts
        held[HELD] += held[TRAINED]
    return held


def summed_over(
    collective: Collective, params: Floats, width: Number, groups: Groups, fabric: Fabric, pieces: int = 1
) -> Number:
    """Time of a collective over parameters of `width` bytes each: experts after everything else.  [s]

    Parameters
    ----------
    params, groups : pairs
    pieces : int
        Everything else goes in so many collectives, one after the other.
    """
    (others, experts), (all_gpus, of_experts) = params, groups
    seconds = pieces * collective(others * width / pieces, all_gpus, fabric)
    if np.any(experts):
        seconds = seconds + collective(experts * width, of_experts, fabric) * (np.asarray(experts) > 0)
    return seconds


def reduced_to_shards(
    params: Floats,
    width: Number,
    layouts: Layouts,
    fabric: Fabric,
    pieces: int = 1,
    of: Callable[[Collective], Collective] = lambda collective: collective,
) -> Number:
    """Time until every GPU has the sum of its shard's gradients: within sharding groups, then between them.  [s]

    Parameters are those of `summed_over`; `of` makes another function of each collective, such as `on_card`.
    """
    seconds = summed_over(of(reduce_scatter), params, width, layouts.sharding, fabric, pieces)
    between = layouts.between_shards
    if between is not None:
        shards = np.stack([each / group.size for each, group in zip(params, layouts.sharding, strict=True)])
        seconds = seconds + summed_over(of(all_reduce), shards, width, (between, between), fabric, pieces)
    return seconds


def on_card(collective: Collective) -> Collective:
    """Return what a collective puts on a network card, at the best rate that it reaches.  [s]"""
    return lambda nbytes, of, fabric: collective(nbytes, of, fabric) * fabric.card_occupied(of, collective.__name__)


def between_groups(collective: Collective, params: Floats, width: Number, layouts: Layouts, fabric: Fabric) -> Number:
    """Time of a collective between sharding groups, over a GPU's shard, `width` bytes a parameter.  [s]"""
    if layouts.between_shards is None:
        return 0.0
    return collective(layouts.shard_of(params) * width, layouts.between_shards, fabric)
