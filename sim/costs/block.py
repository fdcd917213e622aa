"""Seconds of one block (a layer, the embedding, the head) and one micro-batch, by what they are spent on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Number
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all, all_to_all_bytes
from sim.costs.compute import ComputeModel
from sim.network.placement import Group
from sim.work.operations import BlockWork, Cause, Collective, Phase

Groups = dict[str, Group]
"""Group of every kind of collective inside a layer: tp, cp, ep."""

EXPERTS = "experts"
BEHIND_SYNC = ("moe_dispatch", EXPERTS, "moe_act", "moe_residual")
"""Modules that the host launches when it knows how many tokens come to its experts."""


FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD, AT_PEAK = range(5)
"""Places on the axis over passes. BACKWARD is recomputation, input and weight gradient. INPUT_GRAD and WEIGHT_GRAD are
its halves, each by itself, for schedules that split the backward; what is recomputed belongs to the first. AT_PEAK is
no pass, but what the executed FLOPs of forward and backward, recomputation aside, would take at the GPU's peak."""


class BlockCosts(NamedTuple):
    """Seconds of one block and micro-batch; floats, or arrays over cuts. [s]

    passes : of each place on the axis over passes, by cause.
    card : what collectives of forward and backward put on a network card, at its best rate, compute beside them or not.
    """

    passes: tuple[dict[Cause, Number], ...]
    card: tuple[Number, Number]


def block_costs(works: Sequence[BlockWork], compute: ComputeModel, groups: Groups, fabric: Fabric) -> list[BlockCosts]:
    """Seconds of one block under one or several ways to recompute; what these share is priced once.

    A collective that may overlap hides behind the block's gradient multiplies, and lengthens the backward only by what
    is left over and what it takes from the kernels that it overlaps: never by more than doing one after the other.
    Where kernels and collectives of a pass are shorter than their launches the GPU waits for the host. Launches run
    ahead of the GPU within a pass, and what is recomputed and the gradients, which follow it at once, count as one; but
    not past a wait: for the slowest host of a tensor-parallel group, or for the GPU's word how many tokens come to each
    expert. Halves of a backward are passes of their own, so that neither grows when the other becomes faster.
    Broadcasts over the numbers of the cut and over groups.

    Parameters
    ----------
    works : sequence of BlockWork
        As `sim.work.sums.block_works` gives them: they differ in what they run again only.
    """
    work, talk = works[0], {name: np.asarray(each.size) > 1 for name, each in groups.items()}
    compute = compute.at_its_clock((work.forward, work.input_grad, work.weight_grad))
    forward, inputs = compute.phase_time(work.forward), compute.phase_time(work.input_grad)
    weights = compute.phase_time(work.weight_grad)
    for seconds, phase in ((forward, work.forward), (inputs, work.input_grad), (weights, work.weight_grad)):
        _add_collectives(seconds, phase, compute, groups, fabric)
    _add_exposed_tokens((forward, inputs), work, compute, groups, fabric)
    gradients, of_weights, multiplies = _sum(inputs, weights), sum(weights.values()), inputs.get(Cause.MATMUL, 0.0)
    # An input gradient by itself has no weight gradient beside its collectives.
    for seconds, hides in ((inputs, multiplies), (gradients, of_weights + multiplies)):
        exposed = _exposed_tensor_parallel(work.input_grad, compute, groups["tp"], fabric, hides)
        seconds[Cause.TENSOR_PARALLEL] = seconds.get(Cause.TENSOR_PARALLEL, 0.0) + exposed
    launches = [compute.host_time((each,), talk, backward=True) for each in (work.input_grad, work.weight_grad)]
    passes = _Passes(
        forward,
        (inputs, launches[0]),
        (gradients, sum(launches)),
        _waiting(weights, launches[1] - of_weights),
        _peak_seconds(work, compute),
        compute.host_time((work.forward,), talk),
        _after_sync(work.forward, compute, groups, fabric, talk),
        ~talk["tp"] & (not work.forward.waits),
        tuple(_card_seconds(each, groups, fabric) for each in (work.forward, work.input_grad + work.weight_grad)),
    )
    keys = [_again(each) for each in works]  # a layer without experts runs the same again, whatever of experts is named
    distinct = dict(zip(keys, works, strict=True))
    priced = {}
    for key, each in distinct.items():
        again = None if each.recompute is work.forward else compute.phase_time(each.recompute)
        if again is not None:
            _add_collectives(again, each.recompute, compute, groups, fabric)
            _add_waiting_tokens(again, each.recompute, groups, fabric)
        card = 0.0 if again is None else _card_seconds(each.recompute, groups, fabric)
        counted: Number = 0.0
        if any(item.module == EXPERTS for item in each.recompute.operations):
            waiting = replace(each.recompute, waits=work.forward.waits)
            counted = passes.synced if again is None else _after_sync(waiting, compute, groups, fabric, talk)
        priced[key] = passes.with_recomputation(each.recompute, again, compute, talk, card, counted)
    return [priced[key] for key in keys]


def _again(work: BlockWork) -> tuple[Any, ...]:
    """What tells apart works of a block that differ in what runs again: the operations and collectives that do."""
    again = work.recompute
    return again is work.forward, *map(id, (*again.operations, *again.collectives))


def _peak_seconds(work: BlockWork, compute: ComputeModel) -> dict[Cause, Number]:
    """What the FLOPs of a block, recomputation aside, take at the GPU's peak, by cause.  [s]"""
    at_peak: dict[Cause, Number] = {}
    for item in (*work.forward.operations, *work.input_grad.operations, *work.weight_grad.operations):
        at_peak[item.cause] = at_peak.get(item.cause, 0.0) + item.flop / compute.peak(item)
    return at_peak


@dataclass(frozen=True, slots=True)
class _Passes:
    """What all ways to recompute a block share. [s]

    forward : by cause, without what the GPU waits for its host.
    inputs, gradients : the input gradient by itself, and both gradients; likewise, with the time of their launches.
    weights : the weight gradient by itself, by cause, with its waits.
    at_peak : FLOPs at the GPU's peak, by cause.
    launches : of the forward's kernels and collectives.
    synced : what the GPU waits at least for the number of tokens.
    ahead : whether launches of the gradients run ahead while the GPU computes again.
    card : what forward and gradients put on a network card.
    """

    forward: dict[Cause, Number]
    inputs: tuple[dict[Cause, Number], Number]
    gradients: tuple[dict[Cause, Number], Number]
    weights: dict[Cause, Number]
    at_peak: dict[Cause, Number]
    launches: Number
    synced: Number
    ahead: Number
    card: tuple[Number, ...]

    def with_recomputation(
        self,
        phase: Phase,
        again: dict[Cause, Number] | None,
        compute: ComputeModel,
        talk: dict[str, Any],
        card: Number,
        synced: Number,
    ) -> BlockCosts:
        """Return the block's costs where a phase runs again that takes so long, on a card too; None: the forward.

        synced : what the GPU waits at least in that phase for the number of tokens. [s]
        """
        first = _waiting(self.forward, np.maximum(self.launches - sum(self.forward.values()), self.synced))
        host = self.launches if again is None else compute.host_time((phase,), talk)
        took = sum((self.forward if again is None else again).values())
        short, setup = host - took, compute.kernel_launch_s * phase.setups
        recompute = took + np.where(self.ahead, 0.0, np.maximum(np.maximum(short, synced), 0.0))
        whole, half = (
            _waiting(seconds, launched + setup - sum(seconds.values()) + self.ahead * short)
            | {Cause.RECOMPUTE: recompute}
            for seconds, launched in (self.gradients, self.inputs)
        )
        cards = self.card[0], self.card[1] + (self.card[0] if again is None else card)
        return BlockCosts((first, whole, half, self.weights, self.at_peak), cards)


def _sum(one: dict[Cause, Number], other: dict[Cause, Number]) -> dict[Cause, Number]:
    """Seconds by cause."""
    return one | {cause: one.get(cause, 0.0) + seconds for cause, seconds in other.items()}


def _waiting(seconds: dict[Cause, Number], waits: Number) -> dict[Cause, Number]:
    """A pass with what the GPU waits for its host, if anything."""
    if not np.any(np.asarray(waits) > 0.0):
        return dict(seconds)
    return seconds | {Cause.HOST: seconds.get(Cause.HOST, 0.0) + np.maximum(0.0, waits)}


def _after_sync(forward: Phase, compute: ComputeModel, groups: Groups, fabric: Fabric, talk: dict[str, Any]) -> Number:
    """What the GPU waits at least in a forward whose host waits for the numbers of tokens. [s]

    The host has nothing launched when it learns them. What follows (dispatch, experts, combine) then starts when it is
    launched and when what is before it is over, while the kernels of attention and router, which came before, are over
    or wait behind them (NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py,
    _maybe_dtoh_and_synchronize; deepseek-ai/DeepEP:csrc/hybrid_ep/executor/executor.cu, metadata_preprocess_core). A
    grouped multiply starts after all its launches: the host cuts and casts every expert's tokens first
    (NVIDIA/TransformerEngine:transformer_engine/pytorch/module/grouped_linear.py).
    """
    if not forward.waits or chosen(forward, "ep", overlapped=True):
        return 0.0
    behind = forward.of_modules(BEHIND_SYNC)
    there = len(behind.collectives) // 2
    launched: Number = 0.0
    ran: Number = 0.0
    waits: Number = 0.0
    for part in (
        Phase(collectives=behind.collectives[:there]),
        *(Phase((operation,)) for operation in behind.operations),
        Phase(collectives=behind.collectives[there:]),
    ):
        launched = launched + compute.host_time((part,), talk)
        waits = np.maximum(waits, launched - ran)
        seconds = compute.phase_time(part)
        _add_collectives(seconds, part, compute, groups, fabric)
        ran = ran + sum(seconds.values())
    return np.maximum(waits, launched - ran)


def chosen(phase: Phase, group: str, overlapped: bool | None = None) -> list[Collective]:
    """The phase's collectives over a kind of group: those that compute waits for, those it overlaps, or all (None)."""
    return [item for item in phase.collectives if item.group == group and overlapped in (None, item.overlapped)]


def total_time(items: Iterable[Collective], group: Group, fabric: Fabric) -> Number:
    """Time of collectives one after the other.  [s]"""
    seconds: Number = 0.0
    for item in items:
        if item.kind == "all_to_all":
            seconds = seconds + all_to_all(item.nbytes, group, fabric, item.copies, item.limit, item.pace)
        else:
            seconds = seconds + COLLECTIVES[item.kind](item.nbytes, group, fabric)
    return seconds


def _card_seconds(phase: Phase, groups: Groups, fabric: Fabric) -> Number:
    """What collectives of a phase between NVLink domains put on a card, at the best rate that it reaches.  [s]"""
    seconds: Number = 0.0
    for name, group in groups.items():
        if not np.any(np.asarray(group.num_domains) > 1):
            continue
        for item in chosen(phase, name):
            if item.kind == "all_to_all":
                sent = all_to_all_bytes(item.nbytes, group, item.copies, item.limit)[1]
                seconds = seconds + sent / (fabric.best_share * fabric.network_bytes_per_s)
            else:
                seconds = seconds + total_time((item,), group, fabric) * fabric.card_occupied(group)
    return seconds


NCCL_SMS = 24
"""Streaming multiprocessors of NCCL's collectives within NVLink: its channels on eight A100 or H100, by its log."""


def _exposed_tensor_parallel(
    phase: Phase, compute: ComputeModel, group: Group, fabric: Fabric, multiplies_s: Number
) -> Number:
    """What tensor-parallel collectives that may overlap leave over, beside so much of multiplies.  [s]

    Beside user buffers multiplies lose what they lose beside NCCL's kernels, but for the streaming multiprocessors that
    these hold and user buffers do not.
    """
    left: Number = 0.0
    for item in chosen(phase, "tp", overlapped=True):
        took = total_time((item,), group, fabric)
        hidden = fabric.hidden_share(group, item.nbytes, took)
        if item.sms is not None:
            spared = (NCCL_SMS - item.sms) / compute.gpu.num_sms * (np.asarray(group.num_domains) == 1)
            hidden = np.minimum(1.0, hidden + spared)
        beside = np.minimum(took, multiplies_s)
        left, multiplies_s = left + took - hidden * beside, multiplies_s - beside
    return left


def piece_by_piece(item: Collective, multiply_s: Number, compute: ComputeModel, group: Group, fabric: Fabric) -> Number:
    """What a collective lengthens a multiply of `multiply_s` by whose pieces it brings, or hands out, one by one.  [s]

    A GPU multiplies its own piece while the first of the others arrives, and every piece while the next does, so that a
    gather hides behind all but one [1]_. A scatter begins when the first piece is multiplied; its last one, all
    multiplies being over, nothing hides, and it takes streaming multiprocessors from all of them [2]_. Only NVLink does
    it.

    .. [1] NVIDIA/TransformerEngine:transformer_engine/common/comm_gemm_overlap/comm_gemm_overlap.cpp,
       CommOverlapP2PBase::split_overlap_ag; pytorch/pytorch:torch/distributed/_symmetric_memory/__init__.py,
       _pipelined_all_gather_and_consume.
    .. [2] The former's CommOverlapBase::split_overlap_rs, with set_sm_margin; the latter's
       _pipelined_produce_and_all2all.
    """
    whole = total_time((item,), group, fabric)
    if not item.multiply:
        return whole
    pieces = np.asarray(item.pieces, dtype=float)
    hidden = multiply_s * (1.0 - 1.0 / pieces)
    if item.kind == "all_gather":
        exposed = whole - np.minimum(whole, hidden)
    else:
        sms = item.sms or 0
        lost = multiply_s * sms / (compute.gpu.num_sms - sms)
        exposed = np.maximum(whole / pieces, whole - hidden) + lost * (np.asarray(group.size) > 1)
    return np.where(np.asarray(group.num_domains) > 1, whole, exposed)


def _waited_for(phase: Phase, name: str, compute: ComputeModel, groups: Groups, fabric: Fabric) -> Number:
    """What a pass waits for its collectives over a kind of group.  [s]"""
    seconds: Number = 0.0
    for item in chosen(phase, name, overlapped=False):
        multiply: Number = 0.0
        if item.multiply:
            kernels = tuple(each for each in phase.operations if each.name == item.multiply)
            multiply = sum(compute.phase_time(Phase(kernels)).values())
        seconds = seconds + piece_by_piece(item, multiply, compute, groups[name], fabric)
    return seconds


def _add_collectives(
    seconds: dict[Cause, Number], phase: Phase, compute: ComputeModel, groups: Groups, fabric: Fabric
) -> None:
    """Add to a pass what its collectives take that compute waits for."""
    for cause, name in ((Cause.TENSOR_PARALLEL, "tp"), (Cause.EXPERT_PARALLEL, "ep")):
        if chosen(phase, name, overlapped=False):
            seconds[cause] = _waited_for(phase, name, compute, groups, fabric)
    context, group = chosen(phase, "cp"), groups["cp"]
    if context:
        nbytes = sum(item.nbytes for item in context)
        budget = attention_beside(context, group, seconds.get(Cause.ATTENTION, 0.0))
        seconds[Cause.CONTEXT_PARALLEL] = fabric.exposed(group, nbytes, total_time(context, group, fabric), budget)


def attention_beside(items: Iterable[Collective], group: Group, attention_s: Number) -> Number:
    """Attention of a pass that its exchange of keys and values runs beside.  [s]

    A ring of n ranks computes on its own block first and sends nothing beside the last one. In a backward gradients
    follow the keys and values one block behind, so that something is on its way beside every block [1]_.

    .. [1] NVIDIA/TransformerEngine:transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
       AttnFuncWithCPAndKVP2P.
    """
    rings = sum(item.overlapped for item in items)
    return attention_s * (group.size - 2 + rings) / group.size if rings else 0.0


def _add_exposed_tokens(
    passes: tuple[dict[Cause, Number], dict[Cause, Number]],
    work: BlockWork,
    compute: ComputeModel,
    groups: Groups,
    fabric: Fabric,
) -> None:
    """What tokens that travel beside another micro-batch's computation add to the forward and to the backward.

    One micro-batch's forward and another one's backward take turns in pieces: while the one computes attention the
    other's tokens come back from experts, while it computes experts the other's go there, and the reverse [1]_ [2]_. A
    piece hides no more than it lasts: what is left it waits for. Kernels that move tokens on streaming multiprocessors
    of their own take these from it, and slow it as the stack says, which is a cause by itself.

    .. [1] DeepSeek-V3, arXiv:2412.19437, section 3.2.1, figure 4.
    .. [2] NVIDIA/Megatron-LM:megatron/core/models/common/model_chunk_schedule_plan.py.
    """
    there, back = work.forward, work.input_grad + work.weight_grad
    if not chosen(there, "ep", overlapped=True):
        return
    own = [_seconds_of_pieces(phase, compute) for phase in (there, back)]
    # Tokens leave in the middle of a pass, while the other computes experts, and come back while it computes attention.
    for seconds, phase, others in ((passes[0], there, own[1]), (passes[1], back, own[0])):
        for item, budget in zip(chosen(phase, "ep", overlapped=True), _beside(phase is there, others), strict=True):
            took = total_time((item,), groups["ep"], fabric)
            exposed = fabric.exposed(groups["ep"], item.nbytes, took, budget)
            if item.sms is not None:
                slowdown = item.slowdown * (np.asarray(groups["ep"].num_domains) > 1)
                hidden = np.maximum(0.0, 1.0 - item.sms / compute.gpu.num_sms - slowdown)
                exposed = took - hidden * np.minimum(took, budget)
            waits = took - np.minimum(took, budget)
            for cause, more in ((Cause.EXPERT_PARALLEL, waits), (Cause.BESIDE_TOKENS, exposed - waits)):
                seconds[cause] = seconds.get(cause, 0.0) + more


def _seconds_of_pieces(phase: Phase, compute: ComputeModel) -> tuple[Number, Number]:
    """Attention with the router, and experts: seconds of a pass before its tokens leave, and of the rest.  [s]"""
    experts = sum(compute.phase_time(phase.of_modules(BEHIND_SYNC)).values())
    return sum(compute.phase_time(phase).values()) - experts, experts


def _beside(forward: bool, others: tuple[Number, Number]) -> tuple[Number, Number]:
    """What the other pass computes beside a pass's two exchanges, in the order in which the pass has them."""
    attention, experts = others
    return (experts, attention) if forward else (attention, experts)


def _add_waiting_tokens(seconds: dict[Cause, Number], again: Phase, groups: Groups, fabric: Fabric) -> None:
    """Tokens that travel once more where experts are computed again: nothing is left to hide them."""
    items = chosen(again, "ep", overlapped=True)
    if items:
        more = total_time(items, groups["ep"], fabric)
        seconds[Cause.EXPERT_PARALLEL] = seconds.get(Cause.EXPERT_PARALLEL, 0.0) + more
