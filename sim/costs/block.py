"""Seconds of one block (a layer, the embedding, the head) and one micro-batch, by what they are spent on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Number
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all
from sim.costs.compute import ComputeModel
from sim.network.placement import Group
from sim.work.operations import BlockWork, Cause, Collective, Phase

Groups = dict[str, Group]
"""Group of every kind of collective inside a layer: tp, cp, ep."""

EXPERTS = "experts"
BEHIND_SYNC = ("moe_dispatch", EXPERTS, "moe_act", "moe_residual")
"""Modules that the host launches when it knows how many tokens come to its experts."""


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Seconds of one block by cause, of one micro-batch; floats, or arrays over cuts. [s]

    forward, backward : `backward` is recomputation, input and weight gradient.
    at_peak : what the executed FLOPs of forward and backward, recomputation aside, would take at the GPU's peak.
    weight_grad : the weight-gradient share of the backward, for schedules that split it.
    """

    forward: dict[Cause, Number]
    backward: dict[Cause, Number]
    at_peak: dict[Cause, Number]
    weight_grad: Number

    @property
    def forward_s(self) -> Number:
        """Forward of one micro-batch. [s]"""
        return sum(self.forward.values())

    @property
    def backward_s(self) -> Number:
        """Backward of one micro-batch. [s]"""
        return sum(self.backward.values())


def block_costs(works: Sequence[BlockWork], compute: ComputeModel, groups: Groups, fabric: Fabric) -> list[BlockCosts]:
    """Seconds of one block under one or several ways to recompute; what these share is priced once.

    A collective that may overlap hides behind the block's gradient multiplies, and lengthens the backward only by what
    is left over and what it takes from the kernels that it overlaps: never by more than doing one after the other.
    Broadcasts over the numbers of the cut and over groups.

    Parameters
    ----------
    works : sequence of BlockWork
        As `sim.work.layers.layer_works` gives them: they differ in what they run again only.
    """
    work = works[0]
    forward = compute.phase_time(work.forward)
    _add_collectives(forward, work.forward, groups, fabric)
    gradients, weight_grad = compute.phase_time(work.input_grad), compute.phase_time(work.weight_grad)
    _add_collectives(gradients, work.input_grad, groups, fabric)
    _add_collectives(weight_grad, work.weight_grad, groups, fabric)
    of_weights = sum(weight_grad.values())
    hides = of_weights + gradients.get(Cause.MATMUL, 0.0)
    for cause, seconds in weight_grad.items():
        gradients[cause] = gradients.get(cause, 0.0) + seconds
    overlapped = chosen(work.input_grad, "tp", overlapped=True)
    seconds, nbytes = total_time(overlapped, groups["tp"], fabric), sum(item.nbytes for item in overlapped)
    exposed = fabric.exposed(groups["tp"], nbytes, seconds, hides)
    gradients[Cause.TENSOR_PARALLEL] = gradients.get(Cause.TENSOR_PARALLEL, 0.0) + exposed
    _add_exposed_tokens((forward, gradients), work, compute, groups, fabric)
    talk = {name: np.asarray(group.size) > 1 for name, group in groups.items()}
    # Launches run ahead of the GPU, but not past a wait: for the slowest host of a tensor-parallel group, or for the
    # GPU's word how many tokens come to each expert.
    ahead = ~talk["tp"] & (not work.forward.waits)
    of_forward = compute.host_time((work.forward,), talk)
    synced = _after_sync(work.forward, compute, groups, fabric, talk)
    of_gradients = compute.host_time((work.input_grad, work.weight_grad), talk, backward=True)
    weight_share = compute.host_time((work.weight_grad,), talk, backward=True) / np.maximum(of_gradients, 1e-30)
    at_peak: dict[Cause, Number] = {}
    for operation in (*work.forward.operations, *work.input_grad.operations, *work.weight_grad.operations):
        at_peak[operation.cause] = at_peak.get(operation.cause, 0.0) + operation.flop / compute.peak(operation)
    answers = []
    for each in works:
        first, second = dict(forward), dict(gradients)
        again, host, synced_again = dict(forward), of_forward, synced
        if each.recompute is not work.forward:
            again, host = compute.phase_time(each.recompute), compute.host_time((each.recompute,), talk)
            _add_collectives(again, each.recompute, groups, fabric)
            _add_waiting_tokens(again, each.recompute, groups, fabric)
            synced_again = synced if any(item.module == EXPERTS for item in each.recompute.operations) else 0.0
        waited = _wait_for_host(
            (first, again, second), (of_forward, host, of_gradients), ahead, (synced, synced_again, 0.0)
        )[-1]
        second[Cause.RECOMPUTE] = sum(again.values())
        answers.append(BlockCosts(first, second, at_peak, of_weights + weight_share * waited))
    return answers


def _after_sync(forward: Phase, compute: ComputeModel, groups: Groups, fabric: Fabric, talk: dict[str, Any]) -> Number:
    """What the GPU waits at least in a forward whose host waits for the numbers of tokens. [s]

    The host has nothing launched when it learns them. Launches of what follows (dispatch, experts, combine) then run
    beside those kernels alone, while the kernels of attention and router, which came before, are over or wait behind
    them (NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, _maybe_dtoh_and_synchronize).
    """
    if not forward.waits or chosen(forward, "ep", overlapped=True):
        return 0.0
    behind = forward.of_modules(BEHIND_SYNC)
    seconds = compute.phase_time(behind)
    _add_collectives(seconds, behind, groups, fabric)
    return np.maximum(0.0, compute.host_time((behind,), talk) - sum(seconds.values()))


def _wait_for_host(
    passes: Sequence[dict[Cause, Number]], launches: Sequence[Number], ahead: np.ndarray, synced: Sequence[Number]
) -> list[Number]:
    """Add to the passes what the GPU waits where their kernels and collectives are shorter than their launches.

    Launches may run ahead of the GPU: what the host gains in a pass whose kernels are long, it has in hand in the next.
    What is recomputed and the gradients, which follow it at once, count as one.
    Where they may not (`ahead`: tensor-parallel ranks wait at every collective for the slowest of their hosts) nothing
    is gained. A wait for the GPU in the middle of a pass leaves nothing launched behind it: of what follows, the GPU
    waits for the launches at least (`synced`).
    """
    short = [host - sum(seconds.values()) for seconds, host in zip(passes, launches, strict=True)]
    of_forward, of_backward = np.maximum(0.0, short[0]), np.maximum(0.0, short[1] + short[2])
    in_hand = np.maximum(0.0, sum(short)) / np.maximum(of_forward + of_backward, 1e-30)
    pooled = of_forward * in_hand, 0.0, of_backward * in_hand
    waits = [
        np.where(ahead, some, np.maximum(np.maximum(0.0, own), least))
        for some, own, least in zip(pooled, short, synced, strict=True)
    ]
    for seconds, waited in zip(passes, waits, strict=True):
        if np.any(waited):
            seconds[Cause.HOST] = waited
    return waits


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


def _add_collectives(seconds: dict[Cause, Number], phase: Phase, groups: Groups, fabric: Fabric) -> None:
    """Add to a pass what its collectives take that compute waits for.

    Of the exchange of keys and values that attention overlaps, a ring of cp steps computes on its own block first and
    cannot hide behind the last block's attention.
    """
    for cause, name in ((Cause.TENSOR_PARALLEL, "tp"), (Cause.EXPERT_PARALLEL, "ep")):
        waits = chosen(phase, name, overlapped=False)
        if waits:
            seconds[cause] = total_time(waits, groups[name], fabric)
    context, group = chosen(phase, "cp"), groups["cp"]
    if context:
        nbytes = sum(item.nbytes for item in context)
        budget: Number = 0.0
        if any(item.overlapped for item in context):
            budget = seconds.get(Cause.ATTENTION, 0.0) * (1.0 - 1.0 / group.size)
        seconds[Cause.CONTEXT_PARALLEL] = fabric.exposed(group, nbytes, total_time(context, group, fabric), budget)


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
    piece hides no more than it lasts. Kernels that move tokens on streaming multiprocessors of their own take these
    from it, and slow it as the stack says.

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
            seconds[Cause.EXPERT_PARALLEL] = seconds.get(Cause.EXPERT_PARALLEL, 0.0) + exposed


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
