"""Everything that takes time in a step, by stage and by rank: of columns of plans, and of one plan with its order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import Floats, Ints, Number, PlanFloats, RankFloats, StageFloats, StagePlanFloats
from sim.costs.block import AT_PEAK, BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from sim.costs.collectives import all_reduce
from sim.network.placement import Group
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import (
    HELD,
    MOMENTS,
    TRAINED,
    Deal,
    RankKinds,
    block_params,
    deal_of,
    params_of,
    put_together,
)
from sim.pricing.layouts import CostModel, Layouts
from sim.pricing.zero import (
    VisitSeconds,
    gathered,
    lengthened_passes,
    move_seconds,
    moved_at_visits,
    moved_once,
    price_visits,
)
from sim.specs import Scenario
from sim.specs.plan import UPDATES_EACH_MICROBATCH
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD, Stage
from sim.work.operations import Cause, Phase, adapters_of
from sim.work.optimizer import host_update, optimizer_work, orthogonalisation
from sim.work.pieces import accumulation
from sim.work.sums import held_blocks, matrices, num_tensors

_NONE = np.empty(0)
_ONCE = ("reduce_s", "reduce_tail_s", "gather_s", "optimizer_s", "offload_s", "params")


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Everything that takes time in a step: per pass, per visit and once a step. [s]

    Arrays have axes (stages, plans) or (ranks, plans). Of columns of plans these are kinds of stages and of ranks; of
    plans whose order is known they are its virtual stages and its pipeline ranks. Of one plan there is no axis over
    plans. What was not asked for is empty.

    passes : of one micro-batch; (passes, causes, stages), with the passes of `sim.costs.block`. Where causes were not
        asked for, there is one that stands for all.
    visits : what a visit to every stage moves, of ranks with several chunks; None: nothing.
    stages : what each holds.
    send_forward_s, send_backward_s : to the next and to the previous stage; zero where there is none.
    p2p_blocks : sends occupy the rank that sends (compute overlaps them otherwise).
    reduce_s, reduce_tail_s : gradient reduction of each rank, and the part of it that no backward can hide.
    reduce_share : share that each stage has in its rank's gradients.
    gather_s : ZeRO's weight gather of each rank after the update.
    optimizer_s : the update on each rank, of which offload_s on the host or on the way there and back.
    params : that one GPU of each rank holds.
    tied_embedding_s : reduction of the tied embedding's gradient between the ranks of the first and the last stage.
    step_setup_s : host time once a step while the GPUs wait.
    hidden_share : of data-parallel communication that compute overlaps, the share of its time that is really hidden.
    notes : what was extrapolated.
    """

    passes: Floats = field(default_factory=_NONE.copy)
    visits: VisitSeconds | None = None
    stages: tuple[Stage, ...] = ()
    send_forward_s: StageFloats = field(default_factory=_NONE.copy)
    send_backward_s: StageFloats = field(default_factory=_NONE.copy)
    p2p_blocks: Any = False
    reduce_s: RankFloats = field(default_factory=_NONE.copy)
    reduce_tail_s: RankFloats = field(default_factory=_NONE.copy)
    reduce_share: StageFloats = field(default_factory=_NONE.copy)
    gather_s: RankFloats = field(default_factory=_NONE.copy)
    optimizer_s: RankFloats = field(default_factory=_NONE.copy)
    offload_s: RankFloats = field(default_factory=_NONE.copy)
    params: RankFloats = field(default_factory=_NONE.copy)
    tied_embedding_s: Number = 0.0
    step_setup_s: float = 0.0
    hidden_share: Number = 1.0
    notes: frozenset[str] = frozenset()

    @classmethod
    def of_compute(
        cls,
        stages: tuple[Stage, ...],
        num_ranks: int,
        forward: StageFloats,
        backward: StageFloats,
        weight_grad_s: StageFloats | None = None,
        **more: Floats,
    ) -> StageSeconds:
        """Return stages of given seconds, with nothing sent, reduced or done once a step but what is named. [s]"""
        given: dict[str, Any] = {name: np.zeros(len(stages)) for name in ("send_forward_s", "send_backward_s")}
        given |= {name: np.zeros(num_ranks) for name in _ONCE}
        given |= {"reduce_share": np.full(len(stages), num_ranks / len(stages)), **more}
        weights = np.zeros(len(stages)) if weight_grad_s is None else weight_grad_s
        passes = np.zeros((AT_PEAK + 1, len(Cause), len(stages)))
        passes[:AT_PEAK, Cause.MATMUL] = forward, backward, backward - weights, weights
        return cls(passes, stages=stages, **given)

    @property
    def forward_s(self) -> StageFloats:
        """Forward of one micro-batch, by stage. [s]"""
        return np.asarray(self.passes[FORWARD].sum(axis=0))

    @property
    def backward_s(self) -> StageFloats:
        """Backward of one micro-batch, by stage. [s]"""
        return np.asarray(self.passes[BACKWARD].sum(axis=0))

    @property
    def input_grad_s(self) -> StageFloats:
        """Input gradient of one micro-batch by itself, with what is recomputed, by stage. [s]"""
        return np.asarray(self.passes[INPUT_GRAD].sum(axis=0))

    @property
    def weight_grad_s(self) -> StageFloats:
        """Weight gradient of one micro-batch by itself, by stage. [s]"""
        return np.asarray(self.passes[WEIGHT_GRAD].sum(axis=0))

    @property
    def typical_send(self) -> float:
        """The longest send between two stages. [s]"""
        return float(max(self.send_forward_s.max(initial=0.0), self.send_backward_s.max(initial=0.0)))

    def take(self, plans: Any) -> StageSeconds:
        """Return the seconds of some plans, the last axis of all arrays; or of one, without it."""
        some: dict[str, Any] = {}
        for name in self.__slots__:
            array = getattr(self, name)
            if isinstance(array, np.ndarray) and array.size:
                some[name] = array[..., plans] if array.ndim > 1 or np.ndim(plans) else array[plans].item()
        return replace(self, **some, visits=None if self.visits is None else self.visits.take(plans))

    def of_ranks(self, kinds: Any) -> StageSeconds:
        """Return the seconds that ranks of these kinds take once a step."""
        once: dict[str, Any] = {name: getattr(self, name)[kinds] for name in _ONCE}
        return replace(self, **once)


def once_a_step(plans: Plans, deal: Deal) -> StageSeconds:
    """Price what kinds of ranks do once a step, and what of it compute hides.

    Several copies of a model, each with a pipeline of its own, sum their gradients too, over ranks that lie apart, and
    every copy updates all its weights.
    """
    layouts, kinds = plans.layouts, deal.rank_kinds
    code = 2 * plans.moving_stage + plans.gathers_in_turns
    ways = np.flatnonzero(np.bincount(code.ravel())).tolist()
    found, place = list[tuple[Floats, Floats]](), np.searchsorted(ways, code)
    for way in ways:
        found.append(_once_a_step(layouts, kinds, way // 2, way % 2, deal.copies, plans.optimizer_offload))
    table, shares = (np.stack(each, axis=-2) for each in zip(*found, strict=True))
    once: dict[str, Any] = dict(zip(_ONCE, table[:, :, place, plans.layout], strict=True))
    return StageSeconds(**once, hidden_share=shares[place, plans.layout])


@lru_cache(maxsize=32)
def _once_a_step(
    layouts: Layouts, kinds: RankKinds, zero_stage: int, in_turns: int, copies: int, offloaded: float
) -> tuple[Floats, Floats]:
    """The seconds of `_ONCE` over layouts, (6, kinds, layouts); and the hidden share, (layouts).

    in_turns : whether weights are gathered for every micro-batch, and so not once they are updated.
    """
    costs, shape = layouts.costs, (len(kinds.counts), len(layouts))
    held, of_blocks = params_of(kinds.counts, layouts), block_params(*layouts.holds)[TRAINED].sum(axis=0)
    trained, total = held[TRAINED], np.maximum(held[TRAINED].sum(axis=0), 1e-30)
    moves = moved_once(layouts, trained, zero_stage, copies)
    reduction, gather = (move_seconds(each, costs.fabric) for each in moves)
    shard = layouts.shard_of(trained) if zero_stage else trained.sum(axis=0)
    first = of_blocks[kinds.first_block, np.arange(len(layouts))]
    tail = reduction * np.minimum(1.0, first / total)
    update, offload = _update_s(costs, shard, held[MOMENTS] * shard / total, offloaded)
    if costs.stack.tensor_launches and not zero_stage:
        tensors = np.array([[float(num_tensors(block.operations))] for block in held_blocks(costs.model)])
        launches = costs.stack.tensor_launches * put_together(kinds.counts, tensors.repeat(len(layouts), axis=1))
        update = np.maximum(update, costs.compute.kernel_launch_s * launches)
    if costs.training.optimizer == "muon" and adapters_of(costs.training) is None:
        update = update + _muon_s(kinds.counts, layouts, zero_stage > 0)
    there = kinds.number > 0  # nothing waits for a rank that is not there
    found = np.empty((6, *shape))
    once = (reduction, tail, gather * (there & (not in_turns)), update * there, offload * there, held[HELD].sum(axis=0))
    for place, seconds in enumerate(once):
        found[place] = seconds
    # Parameters whose gradients a GPU sends: an all-reduce sends them twice, one between groups what a shard has.
    passed = (2.0 if zero_stage == 0 else 1.0) * trained.sum(axis=0)
    if zero_stage and layouts.between is not None:
        passed = passed + 2.0 * (layouts.between.size > 1) * layouts.shard_of(trained)
    sent, reduce = ((each * kinds.number).sum(axis=0) / kinds.number.sum(axis=0) for each in (passed, found[0]))
    share = costs.fabric.hidden_share(layouts.data, sent * costs.stack.gradient_bytes, reduce)
    return found, np.broadcast_to(share, len(layouts))


def _update_s(costs: CostModel, params: Number, moments: Number, offloaded: float) -> tuple[Number, Number]:
    """Update of so many parameters and moments, and what of it the host takes after the GPU has updated its own.  [s]

    Gradients go out, the CPU updates, weights come back: one after the other, or beside each other tensor by tensor,
    when the longest of the three counts. State that only waits on the host comes before the GPU's update and goes back
    after it.

    offloaded : share of the optimizer's state in host memory.
    """
    stack, training, host = costs.stack, costs.training, costs.host
    work = optimizer_work(params, moments, stack, training, offloaded if stack.updates_on_host else 0.0)
    update = sum(costs.compute.phase_time(Phase(work)).values())
    if not offloaded:
        return update, np.zeros(1)
    out, back, memory = host_update(params * offloaded, moments * offloaded, stack, training)
    parts = [host.out_s(out), host.back_s(back)]
    if stack.updates_on_host:
        parts.append(host.update_s(memory, stack.cpu_update_share))
    beside = stack.updates_on_host and stack.overlap_optimizer_offload
    away = np.maximum.reduce(parts) if beside else sum(parts)
    return update + away, away


def _muon_s(counts: Floats, layouts: Layouts, sharded: bool) -> Number:
    """What Muon adds to the update of ranks, (parts, layouts): gathers and orthogonalisation.  [s]

    Where data parallelism shards, each GPU takes its share of the matrices, whole, for which the momenta of shards are
    gathered in 16 bits: at most all of them, as is priced (Moonlight [1]_: 1 to 1.25 times what AdamW communicates).
    Without, each takes all.

    .. [1] Liu et al. 2025, arXiv:2502.16982, section 2.3.
    """
    costs, held = layouts.costs, held_blocks(layouts.costs.model, layouts.tp, layouts.ep, layouts.etp)
    seconds, params = np.zeros((2, 2, len(held), len(layouts)))  # of everything but experts, and of experts
    for block, of_block in enumerate(held):
        for each in matrices(of_block.operations):
            place = (int(each.of_experts), block)
            seconds[place] += sum(costs.compute.phase_time(Phase(orthogonalisation(each))).values())
            params[place] += each.params
    took, moved = (put_together(counts, each, axis=1) for each in (seconds, params))
    if not sharded:
        return took.sum(axis=0)
    share, moves = layouts.shard_of(took), gathered(moved, 2, layouts)
    return share + move_seconds(moves, costs.fabric)


def params_of_ranks(plans: Plans, deal: Deal) -> Floats:
    """Return the parameters that one GPU of every rank holds, of one plan whose order is known."""
    return params_of(deal.rank_kinds.counts, plans.layouts)[:, deal.kind_of_rank, 0]


def tied_reduction(plans: Plans, deal: Deal) -> PlanFloats:
    """All-reduce of a tied embedding's gradient between two pipeline ranks; none where they are one.  [s]"""
    layouts, model = plans.layouts, plans.costs.model
    # Multi-token prediction looks tokens up in a copy of the embedding.
    alone = not model.tied_embeddings and not model.num_mtp_layers
    if alone or plans.like.vocabulary_over_stages:
        return np.zeros(np.shape(plans.layout))
    near_s, far_s = _sums_of_tables(layouts)[:, plans.layout]
    ranks = np.broadcast_to(plans.pp if deal.span is None else deal.span, np.shape(near_s))
    apart = layouts.leaves(plans.layout, 0 * ranks, ranks - 1)
    return np.asarray(np.where(apart, far_s, near_s) * (ranks > 1))


@lru_cache(maxsize=32)
def _sums_of_tables(layouts: Layouts) -> Floats:
    """All-reduce of a table's gradient between two ranks, inside an NVLink domain and across; (2, layouts).  [s]"""
    costs = layouts.costs
    nbytes = costs.model.vocab_size * costs.model.hidden_size / layouts.tp * costs.stack.gradient_bytes
    shared = layouts.tp * layouts.data.size > 1
    near = min(2, costs.cluster.nvlink_domain_gpus)
    pairs = [Group(2, np.full(len(layouts), within), shared) for within in (near, 1)]
    return np.stack([all_reduce(nbytes, pair, costs.fabric) for pair in pairs])


def stage_costs(scenario: Scenario, rank_of_stage: Ints | None = None) -> StageSeconds:
    """Return the seconds of every stage and rank of a scenario; stages are dealt in turn where nothing else is said."""
    return price_in_order(plans_of(scenario), deal_of(scenario.model, scenario.plan, rank_of_stage)).take(0)


def price_in_order(plans: Plans, deal: Deal) -> StageSeconds:
    """Price every stage and rank of plans that have one order, whose deal is that of this order."""
    of_stage, priced = deal.kind_of_stage, price_stages(plans, deal, by_cause=True)
    once = once_a_step(plans, deal).of_ranks(deal.kind_of_rank)
    of_stages = params_of(deal.stage_kinds, plans.layouts, plans.layout)[HELD].sum(axis=0)[of_stage]
    send_forward, send_backward = sends_by_stage(plans, deal)
    return replace(
        once,
        stages=deal.stages,
        notes=plans.prices.notes,
        passes=priced.passes[:, :, of_stage],
        visits=None if priced.visits is None else priced.visits.of_stages(of_stage),
        send_forward_s=send_forward,
        send_backward_s=send_backward,
        p2p_blocks=~plans.overlap_p2p,
        reduce_share=of_stages / once.params[deal.rank_of_stage],
        tied_embedding_s=tied_reduction(plans, deal),
        step_setup_s=plans.costs.stack.step_setup_s,
    )


def price_stages(plans: Plans, deal: Deal, *, by_cause: bool = False, split: bool = True) -> StageSeconds:
    """Price passes of one micro-batch through kinds of stages, and visits to them.

    by_cause : also by what they are spent on, and what they would take at the GPU's peak.
    split : also the backward's halves.
    """
    passes = _passes_of_blocks(plans, by_cause, split)
    card = plans.prices.card_s[:, :, plans.way, plans.cell]
    moved = moved_at_visits(plans, deal.alone)
    if moved is not None and not plans.at_visits.all():
        passes = _plus(passes, Cause.DATA_PARALLEL, lengthened_passes(plans, moved, passes.sum(axis=2), card))
        card = card + moved.on_card * ~plans.at_visits
    blocks, hidden = passes, _hidden_waits(plans, deal, min(len(passes), AT_PEAK))
    passes = put_together(deal.stage_kinds, blocks, axis=1)
    host = Cause.HOST if by_cause else 0
    passes[FORWARD, :, host] += plans.costs.forward_setup_s
    passes[:AT_PEAK, :, host] -= hidden
    if plans.prices.copies_s is not None:
        passes = _plus(passes, Cause.OFFLOAD, _exposed_copies(plans, deal, blocks.sum(axis=2), hidden))
    if np.any(plans.overlap_p2p & (plans.pp > 1)):
        passes = _plus(passes, Cause.PIPELINE, _card_waits(plans, deal, card, passes.sum(axis=2)))
    passes = passes.swapaxes(1, 2)
    return StageSeconds(passes, price_visits(plans, moved, deal.stage_kinds, passes))


def _passes_of_blocks(plans: Plans, by_cause: bool, split: bool) -> Floats:
    """Passes of every block, as in `price_stages`; (passes, blocks, causes, plans)."""
    prices, here = plans.prices, (slice(None), slice(None), plans.way, plans.cell)
    rows = slice(AT_PEAK + 1 if by_cause else AT_PEAK if split else INPUT_GRAD)
    passes = (prices.passes if by_cause else prices.total_s)[rows][:, *here]
    if prices.waiting_s is not None:
        more = prices.waiting_s[rows] if by_cause else prices.waiting_s[rows].sum(axis=2, keepdims=True)
        passes = passes + plans.alone * more[:, *here]
    if plans.costs.stack.drops_gradients and adapters_of(plans.costs.training) is None:
        passes = _plus(passes, Cause.MEMORY_BOUND, _not_added(plans, len(passes)))
    slower = plans.layouts.slowdown[plans.layout]
    if slower.any():  # all GPUs wait for the slowest
        passes = _plus(passes, Cause.STRAGGLERS, slower * passes[:AT_PEAK].sum(axis=2))
    return passes


def _hidden_waits(plans: Plans, deal: Deal, rows: int) -> Floats:
    """What layers of a stage wait less for the host, which is ahead where others keep the GPU busy.  [s]

    Kernels are queued: a pass takes as long as all of its launches or all of its kernels, not for each layer the
    longer of the two (pytorch/pytorch:docs/source/notes/cuda.rst, asynchronous execution). The head gives no lead: the
    loss is read back between forward and backward, to see whether it is a number (NVIDIA/Megatron-LM:pretrain_gpt.py,
    loss_func). Returns an array (passes, kinds of stages, plans).
    """
    layers = deal.stage_kinds[:, FIRST_KIND:]
    leads = plans.prices.ahead_s[1:, :rows, FIRST_KIND:, plans.way, plans.cell]
    return np.asarray(put_together(layers, leads, axis=2).min(axis=0))


def _not_added(plans: Plans, rows: int) -> Floats:
    """What passes take less, as a mean over micro-batches, where the first after an update adds to no gradients.  [s]

    So it is where they were dropped (pytorch/pytorch:torch/csrc/autograd/functions/accumulate_grad.h). Data-parallel
    GPUs copy them into buffers then, which takes about as long. A pass that waits for its host loses only launches.
    """
    stack, compute = plans.costs.stack, plans.costs.compute
    params = block_params(*plans.layouts.holds)[TRAINED].sum(axis=0)[:-1, plans.layout]
    kernels, rows = accumulation(params, stack, int(compute.width)), min(rows, AT_PEAK)
    spared = sum(each.nbytes for each in kernels) / compute.memory_bandwidth("add")
    launches = compute.backward_launch_s * sum(each.kernels for each in kernels) * (params > 0)
    lead, _, waits = plans.prices.ahead_s[:, :rows, :, plans.way, plans.cell]
    late = waits - lead
    saved = np.maximum(late, 0.0) - np.maximum(late - launches, -spared)
    alone = plans.layouts.data.size[plans.layout] == 1
    first = 1 if plans.schedule in UPDATES_EACH_MICROBATCH else 1 / plans.num_microbatches
    return np.stack([-saved[place] * first * alone * (place in (BACKWARD, WEIGHT_GRAD)) for place in range(rows)])


def _exposed_copies(plans: Plans, deal: Deal, blocks: Floats, hidden: Floats) -> Floats:
    """What copies of activations to and from the host take longer than the layers of their stage.  [s]

    Layers are copied while others compute, so all of a stage's layers hide all of its copies. Copy engines take no SMs;
    that copies share PCIe with the network cards, and the memory's bandwidth with kernels, is left out. A backward that
    is split copies beside both halves, and waits in the first.

    blocks : what passes of blocks take, (passes, blocks, plans); hidden : what layers of a stage wait less, (passes,
        kinds of stages, plans). [s]
    """
    assert plans.prices.copies_s is not None
    both = slice(INPUT_GRAD)
    layers = put_together(deal.stage_kinds[:, FIRST_KIND:], blocks[both, FIRST_KIND:], axis=1) - hidden[both]
    copies = put_together(deal.stage_kinds, plans.prices.copies_s[:, :, plans.way, plans.cell], axis=1)
    waits = np.maximum(copies - layers, 0.0)
    return np.stack([*waits, waits[BACKWARD]][: min(len(blocks), WEIGHT_GRAD)])


def _card_waits(plans: Plans, deal: Deal, card: Floats, passes: Floats) -> Floats:
    """What passes of kinds of stages wait for network cards that sends share with all else that moves.  [s]

    Sends beside compute still need the card for as long as they take: in the steady state of a pipeline no pass is
    shorter than all that its GPUs put on their cards. A stage sends forward unless it has the head, and backward unless
    it has the embedding. An input gradient by itself sends as the whole backward does, and waits as long.

    passes : (passes, kinds of stages, plans). [s]
    """
    there = plans.overlap_p2p & plans.layouts.all_hops_leave[plans.layout]
    fabric = plans.costs.fabric
    occupied = fabric.of_card(fabric.network.p2p_efficiency, plans.layouts.send_share[plans.layout]) / fabric.best_share
    far = near_and_far(plans)[1] * there * occupied
    sends = [np.stack([far * (parts[place] < 1) for parts in deal.stage_kinds]) for place in (HEAD, EMBEDDING)]
    busy = put_together(deal.stage_kinds, card, axis=1) + np.stack(sends)
    waits = [np.maximum(taken - each, 0.0) * (sent > 0) for taken, each, sent in zip(busy, passes, sends, strict=False)]
    return np.stack([*waits, waits[BACKWARD]][: min(len(passes), WEIGHT_GRAD)])


def _plus(passes: Floats, cause: Cause, more: Floats) -> Floats:
    """Passes (passes, blocks or kinds, causes, plans) of which the first take more for one cause."""
    shape = (*passes.shape[:3], *np.broadcast_shapes(more.shape[2:], passes.shape[3:]))
    whole = np.array(np.broadcast_to(passes, shape))
    whole[: len(more), :, cause if passes.shape[2] > 1 else 0] += more
    return whole


def sends_by_stage(plans: Plans, deal: Deal) -> tuple[StagePlanFloats, StagePlanFloats]:
    """Seconds of a send from each stage to the next, and to the one before; none between stages of one rank.  [s]

    deal : that of the order which all plans have.
    """
    rank_of_stage, num_stages = deal.rank_of_stage, len(deal.rank_of_stage)
    near, far = near_and_far(plans)
    forward, backward = np.zeros((2, num_stages, *near.shape))
    here, there = rank_of_stage[:-1], rank_of_stage[1:]
    within = (np.arange(1, num_stages) % (num_stages // deal.copies) != 0) & (here != there)
    if not within.any():
        return forward, backward
    kinds, of_layout = plans.layouts.kinds_of_hops
    hops, which = np.unique(of_layout[plans.layout], return_inverse=True) if len(kinds) > 1 else ([0], 0 * plans.layout)
    crosses = np.stack([kinds[number].cross(here, there) for number in hops], axis=1)
    forward[:-1] = np.where(crosses[:, which.ravel()], far, near) * within[:, np.newaxis]
    backward[1:] = forward[:-1]
    return forward, backward


def near_and_far(plans: Plans) -> tuple[PlanFloats, PlanFloats]:
    """Seconds of a send inside an NVLink domain, and to another; none without a pipeline.  [s]"""
    there = plans.pp > 1
    near, far = plans.prices.sends_s[:, plans.way, plans.cell] * there
    return near, far
