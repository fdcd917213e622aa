"""What pipeline ranks do once a step: gradient reduction, weight gather, update; and the tied embedding's sum."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Floats, KindPlanFloats, Number, PlanFloats
from sim.costs.collectives import all_gather, all_reduce, reduce_scatter
from sim.network.placement import Group
from sim.pricing.cost_model import CostModel
from sim.pricing.deal import Deal, RankKinds, put_together
from sim.pricing.layouts import Layouts
from sim.pricing.plans import Plans
from sim.pricing.replicas import (
    HELD,
    MOMENTS,
    TRAINED,
    between_groups,
    block_params,
    params_of,
    reduced_to_shards,
    summed_over,
)
from sim.work.adapters import adapters_of
from sim.work.operations import Phase
from sim.work.optimizer import GRADIENT_WIDTH, host_update, optimizer_work, orthogonalisation
from sim.work.sums import held_blocks, num_tensors, orthogonalised


class RankSeconds(NamedTuple):
    """Seconds that every kind of rank takes once a step, (kinds of ranks, plans). [s]

    reduce_s, reduce_tail_s : gradient reduction, and the part of it that no backward can hide.
    gather_s : ZeRO's weight gather after the update.
    optimizer_s, offload_s : the update, and what of it is on the host or on the way there and back.
    params : that one GPU holds.
    hidden_share : of data-parallel communication that compute overlaps, the share that is really hidden; (plans).
    """

    reduce_s: KindPlanFloats
    reduce_tail_s: KindPlanFloats
    gather_s: KindPlanFloats
    optimizer_s: KindPlanFloats
    offload_s: KindPlanFloats
    params: KindPlanFloats
    hidden_share: PlanFloats

    def of_kinds(self, kinds: Any) -> RankSeconds:
        """Return the seconds of some kinds of ranks."""
        return RankSeconds._make([*(each[kinds] for each in self[:6]), self.hidden_share])


def once_a_step(plans: Plans, deal: Deal) -> RankSeconds:
    """Price what ranks do once a step, and what of it compute hides.

    Several copies of a model, each with a pipeline of its own, sum their gradients too, over ranks that lie apart, and
    every copy updates all its weights.
    """
    layouts, kinds = plans.layouts, deal.rank_kinds
    code = 4 * plans.moving_stage + 2 * plans.gathers_in_turns + plans.state_is_spread
    ways = np.flatnonzero(np.bincount(code.ravel())).tolist()
    found = [
        _once_a_step(layouts, kinds, way // 4, way // 2 % 2, way % 2, deal.copies, plans.optimizer_offload)
        for way in ways
    ]
    place = np.searchsorted(ways, code)
    table, shares = (np.stack(each, axis=-2) for each in zip(*found, strict=True))
    return RankSeconds._make([*table[:, :, place, plans.layout], shares[place, plans.layout]])


@lru_cache(maxsize=32)
def _once_a_step(
    layouts: Layouts, kinds: RankKinds, zero_stage: int, in_turns: int, spread: int, copies: int, offloaded: float
) -> tuple[Floats, Floats]:
    """Fields of `RankSeconds` over layouts, (6, kinds, layouts); and the hidden share, (layouts).

    in_turns : whether weights are gathered for every micro-batch, and so not once they are updated.
    spread : whether sharding groups shard the optimizer's state among each other.
    """
    costs, shape = layouts.costs, (len(kinds.counts), len(layouts))
    held, of_blocks = params_of(kinds.counts, layouts), block_params(layouts)[TRAINED].sum(axis=0)
    trained, total = held[TRAINED], np.maximum(held[TRAINED].sum(axis=0), 1e-30)
    reduction, gather, shard = _moved(layouts, trained, zero_stage, spread, copies)
    first = of_blocks[kinds.first_block, np.arange(len(layouts))]
    tail = reduction * np.minimum(1.0, first / total)
    update, offload = _update_s(costs, shard, held[MOMENTS] * shard / total, offloaded)
    if costs.stack.tensor_launches and not zero_stage:
        update = np.maximum(update, _tensor_by_tensor_s(kinds.counts, layouts))
    if costs.training.optimizer == "muon" and adapters_of(costs.training) is None:
        update = update + _muon_s(kinds.counts, layouts if spread else layouts.without_sums_between, zero_stage > 0)
    there = kinds.number > 0  # nothing waits for a rank that is not there
    found = np.empty((6, *shape))
    gather = gather * (there & (not in_turns))
    for place, seconds in enumerate((reduction, tail, gather, update * there, offload * there)):
        found[place] = seconds
    found[5] = held[HELD].sum(axis=0)
    passed = _passed(layouts, trained, zero_stage, spread)
    sent, reduce = ((each * kinds.number).sum(axis=0) / kinds.number.sum(axis=0) for each in (passed, found[0]))
    share = costs.fabric.hidden_share(layouts.data, sent * GRADIENT_WIDTH[costs.stack.gradient_precision], reduce)
    return found, np.broadcast_to(share, len(layouts))


def _moved(
    layouts: Layouts, trained: Floats, zero_stage: int, spread: int, copies: int
) -> tuple[Number, Number, Number]:
    """Gradient reduction and weight gather of ranks that train so much [s]; and what of it a GPU updates.

    2 and 3 reduce gradients whenever a rank turns to a stage, 3 gathers weights then.
    """
    costs, summed, fabric = layouts.costs, layouts.of_copies(copies), layouts.costs.fabric
    gradient, weight = GRADIENT_WIDTH[costs.stack.gradient_precision], costs.training.activation_bytes
    reduction, gather = np.zeros(1), np.zeros(1)
    if zero_stage == 0:
        return summed_over(all_reduce, trained, gradient, summed.replicas, fabric), gather, trained.sum(axis=0)
    if zero_stage == 1:
        inside = summed.without_sums_between if spread else summed
        reduction = reduced_to_shards(trained, gradient, inside, fabric)
    if zero_stage in (1, 2):
        gather = summed_over(all_gather, trained, weight, layouts.sharding, fabric)
    shard = layouts.shard_of(trained)
    if spread and layouts.between_shards is not None:
        reduction = reduction + between_groups(reduce_scatter, trained, gradient, summed, fabric)
        gather = gather + between_groups(all_gather, trained, weight, layouts, fabric)
        shard = shard / layouts.between_shards.size
    return reduction, gather, shard


def _passed(layouts: Layouts, trained: Floats, zero_stage: int, spread: int) -> Number:
    """Parameters whose gradients a GPU sends: an all-reduce sends them twice, one between groups what a shard has."""
    passed = (2.0 if zero_stage == 0 else 1.0) * trained.sum(axis=0) * (zero_stage < 3 or not spread)
    if zero_stage and layouts.between_shards is not None:
        twice = 1.0 if spread else 2.0
        passed = passed + twice * layouts.shard_of(trained) * (layouts.between_shards.size > 1)
    return passed


def _update_s(costs: CostModel, params: Number, moments: Number, offloaded: float) -> tuple[Number, Number]:
    """Update of so many parameters and moments, and what of it the host takes after the GPU has updated its own.  [s]

    Gradients go out, the CPU updates, weights come back: one after the other, or beside each other tensor by tensor,
    when the longest of the three counts. State that only waits on the host comes before the GPU's update and goes back
    after it.

    Parameters
    ----------
    offloaded : float
        Share of the optimizer's state in host memory.
    """
    stack, training, host = costs.stack, costs.training, costs.host
    work = optimizer_work(params, moments, stack, training, offloaded if stack.updates_on_host else 0.0)
    update = sum(costs.compute.phase_time(Phase(work)).values())
    if not offloaded:
        return update, np.zeros(1)
    moved = host_update(params * offloaded, moments * offloaded, stack, training)
    parts = [host.out_s(moved.out), host.back_s(moved.back)]
    if stack.updates_on_host:
        parts.append(host.update_s(moved.memory, stack.cpu_update_share))
    beside = stack.updates_on_host and stack.overlap_optimizer_offload
    away = np.maximum.reduce(parts) if beside else sum(parts)
    return update + away, away


def _tensor_by_tensor_s(counts: Floats, layouts: Layouts) -> Number:
    """What the host takes for an update that it launches for every tensor by itself; (kinds, layouts).  [s]"""
    costs = layouts.costs
    tensors = [float(num_tensors(block.operations)) for block in held_blocks(costs.model)]
    each = np.repeat(np.array(tensors)[:, np.newaxis], len(layouts), axis=1)
    return costs.stack.tensor_launches * costs.compute.kernel_launch_s * put_together(counts, each)


def _muon_s(counts: Floats, layouts: Layouts, sharded: bool) -> Number:
    """What Muon adds to the update of ranks, (parts, layouts): gathers and orthogonalisation.  [s]

    Where data parallelism shards, each GPU takes its share of the matrices, whole, for which the momenta of shards are
    gathered in 16 bits: at most all of them, as is priced (Moonlight [1]_: 1 to 1.25 times what AdamW communicates).
    Without, each takes all.

    .. [1] Liu et al. 2025, arXiv:2502.16982, section 2.3.
    """
    costs, held = layouts.costs, held_blocks(layouts.costs.model, layouts.tp, layouts.ep, layouts.etp)
    seconds, params = np.zeros((2, len(held), 2, len(layouts)))  # of everything but experts, and of experts
    for block, of_block in enumerate(held):
        for each in orthogonalised(of_block.operations):
            place = (block, int(each.of_experts))
            seconds[place] += sum(costs.compute.phase_time(Phase(orthogonalisation(each))).values())
            params[place] += each.params
    took, moved = (put_together(counts, each).swapaxes(0, 1) for each in (seconds, params))
    if not sharded:
        return took.sum(axis=0)
    share = layouts.shard_of(took)
    if layouts.between_shards is not None:
        share = share / layouts.between_shards.size
    gathered = summed_over(all_gather, moved, 2, layouts.sharding, costs.fabric)
    return share + gathered + between_groups(all_gather, moved, 2, layouts, costs.fabric)


def params_of_ranks(plans: Plans, deal: Deal) -> Floats:
    """Return the parameters that one GPU of every rank holds, of one plan whose order is known."""
    return params_of(deal.rank_kinds.counts, plans.layouts)[:, deal.kind_of_rank, 0]


def tied_reduction(plans: Plans, deal: Deal) -> PlanFloats:
    """All-reduce of a tied embedding's gradient between two pipeline ranks; none where they are one.  [s]"""
    layouts, model = plans.layouts, plans.costs.model
    # Multi-token prediction looks tokens up in a copy of the embedding.
    if not model.tied_embeddings and not model.num_mtp_layers:
        return np.zeros(np.shape(plans.layout))
    near_s, far_s = _sums_of_tables(layouts)[:, plans.layout]
    ranks = np.broadcast_to(plans.pp if deal.span is None else deal.span, np.shape(near_s))
    apart = layouts.leaves(plans.layout, 0 * ranks, ranks - 1)
    return np.asarray(np.where(apart, far_s, near_s) * (ranks > 1))


@lru_cache(maxsize=32)
def _sums_of_tables(layouts: Layouts) -> Floats:
    """All-reduce of a table's gradient between two ranks, inside an NVLink domain and across; (2, layouts).  [s]"""
    costs = layouts.costs
    nbytes = costs.model.vocab_size * costs.model.hidden_size / layouts.tp
    nbytes = nbytes * GRADIENT_WIDTH[costs.stack.gradient_precision]
    shared = layouts.tp * layouts.data.size > 1
    near = min(2, costs.cluster.nvlink_domain_gpus)
    pairs = [Group(2, np.full(len(layouts), within), shared) for within in (near, 1)]
    return np.stack([all_reduce(nbytes, pair, costs.fabric) for pair in pairs])
