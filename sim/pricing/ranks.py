"""What pipeline ranks do once a step: gradient reduction, weight gather, update; and the tied embedding's sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Floats, KindPlanFloats, Number, PlanFloats
from sim.costs.collectives import Fabric, all_gather, all_reduce, reduce_scatter
from sim.costs.compute import ComputeModel
from sim.costs.host import Host
from sim.network.placement import Group
from sim.pricing.batch import Batch, Layouts
from sim.pricing.cost_model import CostModel
from sim.pricing.replicas import (
    Params,
    Replicas,
    block_params,
    over_groups,
    params_of,
    put_together,
    reduced_to_shards,
    replicas_of,
    summed_over,
)
from sim.specs import StackSpec, TrainingSpec
from sim.work.operations import Phase
from sim.work.optimizer import GRADIENT_WIDTH, host_update, optimizer_work, orthogonalisation
from sim.work.stages import ModelPart
from sim.work.sums import held_blocks, orthogonalised


@dataclass(frozen=True, slots=True)
class RankKind:
    """A kind of pipeline ranks: what they hold, and how many of the ranks are of it.

    part : numbers, or arrays over layouts.
    first_block : the block that is first on its first stage, as a place on the axis over blocks (`blocks_of`), or an
        array of them over layouts: its gradients are complete last.
    count : number, or array over layouts; of kinds that a layout does not have, 0.
    """

    part: ModelPart
    first_block: Number
    count: Number

    def key(self) -> tuple[Any, ...]:
        """What tells kinds apart."""
        numbers = (*self.part.counts, self.part.shared_tables, self.first_block, self.count)
        return tuple(each.tobytes() if isinstance(each, np.ndarray) else each for each in numbers)


@dataclass(frozen=True, slots=True)
class OnceAStep:
    """Of every kind of rank: seconds of a whole step, (kinds of ranks, plans). [s]

    reduce, tail : gradient reduction, and the part of it that no backward can hide.
    gather : ZeRO's weight gather after the update. update : the optimizer, `offload` of which on the host or on the
    way there and back.
    held : by one GPU.
    hidden_share : of data-parallel communication that compute overlaps, the share that is really hidden; (plans).
    """

    reduce: KindPlanFloats
    tail: KindPlanFloats
    gather: KindPlanFloats
    update: KindPlanFloats
    offload: KindPlanFloats
    held: Params
    hidden_share: PlanFloats

    def take(self, kinds: slice) -> OnceAStep:
        """Some of the kinds of ranks."""
        parts = (self.reduce, self.tail, self.gather, self.update, self.offload)
        reduce, tail, gather, update, offload = (each[kinds] for each in parts)
        return OnceAStep(reduce, tail, gather, update, offload, self.held.of_kinds(kinds), self.hidden_share)


def once_a_step(batch: Batch, kinds: Sequence[RankKind], copies: int = 1) -> OnceAStep:
    """What ranks do once a step, and what of it compute hides.

    Parameters
    ----------
    copies : int
        Pipelines, each with a model of its own, that run through the ranks: they sum their gradients too, over ranks
        that lie apart, and every copy updates all its weights.
    """
    zero, layouts = batch.moving_stage, batch.layouts
    # Stage 1 between groups comes on top of 3 within them, or of 1 where that keeps what it gathers: a fifth way.
    zero = np.where((zero == 1) & (batch.zero_stage == 3) & bool(batch.outer_zero_stage), _OUTER, zero)
    adapters = bool(batch.costs.training.adapter_rank)
    of_ranks = np.zeros((11 if adapters else 8, len(kinds), 1 + _OUTER, len(layouts)))
    shares = np.zeros((1 + _OUTER, len(layouts)))
    for zero_stage in np.flatnonzero(np.bincount(zero.ravel())).tolist():
        of_ranks[:, :, zero_stage], shares[zero_stage] = _over_layouts(batch, kinds, zero_stage, copies)
    reduce, tail, gather, update, offload, *numbers = of_ranks[:, :, zero, batch.layout]
    held = Params(numbers[0], numbers[1], numbers[2], Params(*numbers[3:]) if adapters else None)
    return OnceAStep(reduce, tail, gather, update, offload, held, shares[zero, batch.layout])


_OUTER = 4
"""Where stage 1 within groups and between them stands beside ZeRO's own stages."""


def _over_layouts(batch: Batch, kinds: Sequence[RankKind], zero_stage: int, copies: int) -> tuple[Floats, Floats]:
    """Over layouts: reduce, tail, gather, update, offload; params, experts', moments of every kind, and with adapters
    the same of these; and the hidden share.

    They are remembered.
    """
    costs, layouts, offloaded = batch.costs, batch.layouts, batch.optimizer_offload
    outer = zero_stage == _OUTER or (zero_stage == 3 and bool(batch.outer_zero_stage))
    zero_stage = 1 if zero_stage == _OUTER else zero_stage
    key = ("once", layouts.key, tuple(kind.key() for kind in kinds), zero_stage, copies, offloaded, outer)
    if key in costs.known:
        known: tuple[Floats, Floats] = costs.known[key]
        return known
    held, blocks = params_of([kind.part for kind in kinds], costs, layouts), block_params(costs, layouts)
    own = np.arange(len(layouts))
    first = np.stack([blocks.trained.total[kind.first_block, own] for kind in kinds])
    replicas = replicas_of(layouts)
    work = OnceAStepWork(costs.stack, costs.training, zero_stage, offloaded, outer)
    summed, rates = replicas.of_copies(copies), (costs.compute, costs.fabric, costs.host)
    parts = list(work.seconds(held.trained, first, replicas, summed, *rates))
    if costs.training.optimizer == "muon" and held.adapters is None:
        whose = replicas if outer else replicas.inside
        parts[3] = parts[3] + muon_seconds([kind.part for kind in kinds], costs, layouts, whose, zero_stage > 0)
    numbers = (*parts, *held.numbers, *(held.adapters.numbers if held.adapters else ()))
    found = np.empty((len(numbers), *held.total.shape))
    for place, part in enumerate(numbers):
        found[place] = part
    counts = np.stack([np.broadcast_to(kind.count, len(layouts)) for kind in kinds])
    found[2:5] *= counts > 0  # nothing waits for a rank that is not there
    # An all-reduce sends gradients twice, one between sharding groups what a shard has of them.
    passed = (2.0 if zero_stage == 0 else 1.0) * held.trained.total * (zero_stage < 3 or not outer)
    if zero_stage and replicas.between_shards is not None:
        twice = 1.0 if outer else 2.0
        passed = passed + twice * replicas.shard_of(held.trained) * (replicas.between_shards.size > 1)
    reduce, params = (
        (np.broadcast_to(each, counts.shape) * counts).sum(axis=0) / counts.sum(axis=0) for each in (parts[0], passed)
    )
    sent = params * GRADIENT_WIDTH[costs.stack.gradient_precision]
    share = np.array(np.broadcast_to(costs.fabric.hidden_share(replicas.data, sent, reduce), len(layouts)))
    costs.remember(key, (found, share))
    return found, share


@dataclass(frozen=True, slots=True)
class OnceAStepWork:
    """What data parallelism does once a step under a ZeRO stage.

    offloaded : share of the optimizer's state in host memory.
    outer : sharding groups shard the optimizer's state among each other.
    """

    stack: StackSpec
    training: TrainingSpec
    zero_stage: int
    offloaded: float = 0.0
    outer: bool = False

    def seconds(
        self,
        held: Params,
        first: Number,
        replicas: Replicas,
        summed: Replicas,
        compute: ComputeModel,
        fabric: Fabric,
        host: Host,
    ) -> tuple[Number, Number, Number, Number, Number]:
        """Gradient reduction, its unhideable tail, weight gather and update of ranks, and what of that is the host's.
        Takes arrays.  [s]

        Parameters
        ----------
        held, first : what a rank's GPU holds, and how much of it comes first. [parameters]
        replicas, summed : GPUs that shard, and those that sum gradients.
        """
        zero, width = self.zero_stage, GRADIENT_WIDTH[self.stack.gradient_precision]
        reduction, gather, shard = np.zeros(1), np.zeros(1), held.total
        if zero == 0:
            reduction = summed_over(all_reduce, held, width, summed, fabric)
        elif zero == 1:  # 2 and 3 reduce whenever a rank turns to a stage
            reduction = reduced_to_shards(held, width, summed.inside if self.outer else summed, fabric)
        if zero in (1, 2):
            gather = summed_over(all_gather, held, self.training.activation_bytes, replicas.sharding, fabric)
        if zero:
            shard = replicas.shard_of(held)
        if self.outer and replicas.between_shards is not None:
            reduction = reduction + over_groups(reduce_scatter, held, width, summed, fabric)
            gather = gather + over_groups(all_gather, held, self.training.activation_bytes, replicas, fabric)
            shard = shard / replicas.between_shards.size
        moments = held.moments * shard / np.maximum(held.total, 1e-30)
        elsewhere = self.offloaded if self.stack.updates_on_host else 0.0
        work = optimizer_work(shard, moments, self.stack, self.training, elsewhere)
        update = sum(compute.phase_time(Phase(work)).values())
        away = self.offload_s(shard, moments, host) if self.offloaded else np.zeros(1)
        tail = reduction * np.minimum(1.0, first / np.maximum(held.total, 1e-30))
        return reduction, tail, gather, update + away, away

    def offload_s(self, params: Number, moments: Number, host: Host) -> Number:
        """Time in which the host updates its share of parameters and moments, after the GPU has its own.  [s]

        Gradients go out, the CPU updates, weights come back: one after the other, or beside each other tensor by
        tensor, when the longest of the three counts. State that only waits on the host comes before the GPU's update
        and goes back after it.
        """
        there, share = self.offloaded, self.stack.cpu_update_share
        work = host_update(params * there, moments * there, self.stack, self.training)
        copies = (host.out_s(work.out), host.back_s(work.back))
        if not self.stack.updates_on_host:
            return sum(copies)
        parts = (*copies, host.update_s(work.memory, share))
        return np.maximum.reduce(parts) if self.stack.overlap_optimizer_offload else sum(parts)


def muon_seconds(
    parts: Sequence[ModelPart], costs: CostModel, layouts: Layouts, replicas: Replicas, sharded: bool
) -> Number:
    """What Muon adds to the update of ranks, (parts, layouts): gathers and orthogonalisation.  [s]

    Where data parallelism shards, each GPU takes its share of the matrices, whole, for which the momenta of shards are
    gathered in 16 bits: at most all of them, as is priced (Moonlight [1]_: 1 to 1.25 times what AdamW communicates).
    Without, each takes all.

    .. [1] Liu et al. 2025, arXiv:2502.16982, section 2.3.
    """
    kinds = (False, True)  # of experts, or not
    degrees = layouts.tp, layouts.ep, layouts.etp
    blocks = [orthogonalised(block.operations) for block in held_blocks(costs.model, *degrees)]
    seconds, params = np.zeros((2, 2, len(blocks), len(layouts)))
    for block, matrices in enumerate(blocks):
        for each in matrices:
            work = Phase(orthogonalisation(each))
            seconds[int(each.of_experts), block] += sum(costs.compute.phase_time(work).values())
            params[int(each.of_experts), block] += each.params
    others, experts = (put_together(parts, seconds[int(kind)]) for kind in kinds)
    if not sharded:
        return others + experts
    moved, of_experts = (put_together(parts, params[int(kind)]) for kind in kinds)
    held = Params(moved + of_experts, of_experts)
    gathered = summed_over(all_gather, held, 2, replicas.sharding, costs.fabric)
    share = others / replicas.shards.size + experts / replicas.expert_shards.size
    if replicas.between_shards is not None:
        share = share / replicas.between_shards.size
    return share + gathered + over_groups(all_gather, held, 2, replicas, costs.fabric)


def tied_reduction(batch: Batch, span: Number | None = None) -> PlanFloats:
    """All-reduce of a tied embedding's gradient between two pipeline ranks; none where they are one.  [s]

    Parameters
    ----------
    span : array over plans, optional
        Ranks from that of the first stage to that of the last, both counted. Default: all.
    """
    costs, layouts = batch.costs, batch.layouts
    # Multi-token prediction looks tokens up in a copy of the embedding.
    if not costs.model.tied_embeddings and not costs.model.num_mtp_layers:
        return np.zeros(np.shape(batch.layout))
    key = ("tied", layouts.key)
    if key not in costs.known:
        grads = costs.model.vocab_size * costs.model.hidden_size / layouts.tp
        near = min(2, costs.cluster.nvlink_domain_gpus)
        shared = layouts.tp * layouts.data.size > 1
        pairs = (Group(2, np.full(len(layouts), within), shared) for within in (near, 1))
        nbytes = grads * GRADIENT_WIDTH[costs.stack.gradient_precision]
        costs.remember(key, np.stack([all_reduce(nbytes, pair, costs.fabric) for pair in pairs]))
    near_s, far_s = costs.known[key][:, batch.layout]
    ranks = np.broadcast_to(batch.pp if span is None else span, np.shape(near_s))
    apart = layouts.leaves(batch.layout, 0 * ranks, ranks - 1)
    return np.asarray(np.where(apart, far_s, near_s) * (ranks > 1))
