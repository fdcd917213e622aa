"""Seconds of one block (a layer, the embedding, the head) and one micro-batch, by what they are spent on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Number
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all, all_to_all_bytes
from sim.costs.compute import ComputeModel
from sim.errors import SpecError
from sim.network.placement import Group
from sim.specs import NodeSpec, Profile, Scenario
from sim.units import show
from sim.work.operations import BlockWork, Cause, Collective, Phase

#: Share of the host link's bandwidth that copies of pinned memory reach, where a profile has not measured them.
#: About 26 of 32 GB/s of PCIe Gen4 and 55 of 64 GB/s of Gen5 are usual; assumed, and stated with the answer.
COPY_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Host:
    """A GPU's part of its host. Bandwidths per direction; None: the node does not say. [bytes/s]

    to_host_bytes_per_s, to_device_bytes_per_s : that copies reach.
    memory_bytes_per_s : peak of the memory.
    """

    node: str
    to_host_bytes_per_s: float | None
    to_device_bytes_per_s: float | None
    memory_bytes_per_s: float | None

    @classmethod
    def of(cls, node: NodeSpec, profile: Profile | None) -> Host:
        """The host of a node; what a profile measured goes first, where there is one."""
        link, measured = node.host_link_bandwidth_bytes_per_s, None if profile is None else profile.host
        reached = None if link is None else COPY_SHARE * link
        return cls(
            node.name,
            (measured and measured.to_host_bytes_per_s) or reached,
            (measured and measured.to_device_bytes_per_s) or reached,
            node.host_memory_bandwidth_bytes_per_s,
        )

    def out_s(self, nbytes: Number) -> Number:
        """Time of a copy to the host.  [s]"""
        return nbytes / self._known(self.to_host_bytes_per_s, "host_link_bandwidth: 64 GB/s")

    def back_s(self, nbytes: Number) -> Number:
        """Time of a copy to the GPU.  [s]"""
        return nbytes / self._known(self.to_device_bytes_per_s, "host_link_bandwidth: 64 GB/s")

    def update_s(self, nbytes: Number, share: float) -> Number:
        """Time of an update that reads and writes so much of the host's memory, at a share of its bandwidth.  [s]"""
        return nbytes / (share * self._known(self.memory_bytes_per_s, "host_memory_bandwidth: 76.8 GB/s"))

    def _known(self, rate: float | None, example: str) -> float:
        if rate is None:
            field = example.partition(":")[0]
            raise SpecError(
                f"node {self.node!r} does not say its {field}, which offloading to the host needs; add it to "
                f"cluster.node, such as {example}, or offload nothing"
            )
        return rate


def assumed(scenario: Scenario) -> Iterator[str]:
    """What overlaps gain, and what offloading takes for granted: rates of copies and of the CPU's update."""
    plan, stack, measured = scenario.plan, scenario.stack, scenario.profile.host
    host = Host.of(scenario.cluster.node, scenario.profile)
    rates = " and ".join(sorted({show(r, "B/s") for r in (host.to_host_bytes_per_s, host.to_device_bytes_per_s) if r}))
    if not (measured.to_host_bytes_per_s and measured.to_device_bytes_per_s):
        rates += f" ({COPY_SHARE:.0%} of the host link)"
    if stack.async_tensor_parallel and plan.sequence_parallel and plan.tp > 1:
        yield (
            "the gain of tensor-parallel overlap is optimistic: a step of Llama 3 70B becomes 13% faster on H100, and "
            "PyTorch measured 6 to 13%"
        )
    if plan.offloaded_layers:
        yield (
            f"activations of {plan.offloaded_layers} layers are kept in host memory; copies overlap compute at {rates} "
            "and slow neither kernels nor network"
        )
    if plan.optimizer_offload:
        yield (
            f"the CPU updates {plan.optimizer_offload:.0%} of the parameters at {stack.cpu_update_share:.0%} of the "
            f"host memory's bandwidth (stack {stack.name}); gradients and weights are copied at {rates}"
        )


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
    ahead : of each pass, by how much the host is ahead when it ends; how much of this lead later layers have; and what
        of its waits the lead of others can hide. Later layers have none where layers exchange something: they wait for
        the slowest host of their group.
    card : what collectives of forward and backward put on a network card, at its best rate, compute beside them or not.
    """

    passes: tuple[dict[Cause, Number], ...]
    ahead: tuple[tuple[Number, Number, Number], ...]
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

    works : as `sim.work.sums.block_works` gives them: they differ in what they run again only.
    """
    work = works[0]
    phases = work.forward, work.input_grad, work.weight_grad
    on = _Rates(compute.at_its_clock(phases), groups, fabric)
    forward, inputs, weights = on.waited(work.forward), on.waited(work.input_grad), on.waited(work.weight_grad)
    on.add_exposed_tokens(forward, inputs, work)
    gradients = inputs | {cause: inputs.get(cause, 0.0) + seconds for cause, seconds in weights.items()}
    of_weights, multiplies = sum(weights.values()), inputs.get(Cause.MATMUL, 0.0)
    # An input gradient by itself has no weight gradient beside its collectives.
    for seconds, hides in ((inputs, multiplies), (gradients, of_weights + multiplies)):
        exposed = _exposed_tensor_parallel(work.input_grad, on.compute, groups["tp"], fabric, hides)
        seconds[Cause.TENSOR_PARALLEL] = seconds.get(Cause.TENSOR_PARALLEL, 0.0) + exposed
    launches, back = on.launches(work.forward), [on.launches(each, backward=True) for each in phases[1:]]
    once = _Again(sum(forward.values()), launches, on.after_sync(work.forward), on.card_s(work.forward))
    first = _waiting(forward, launches - once.took, once.synced)
    later, at_peak = _waiting(weights, back[1] - of_weights), on.peak_seconds(phases)
    card, alone = on.card_s(work.input_grad + work.weight_grad), ~np.logical_or.reduce([*on.talk.values()])
    priced: dict[tuple[Any, ...], BlockCosts] = {}
    # Without experts the same runs again, whatever of experts is named.
    keys = [(each.recompute is work.forward, *map(id, each.recompute.items)) for each in works]
    for key, each in dict(zip(keys, works, strict=True)).items():
        more = on.again(each, once)
        short, setup = more.launches - more.took, on.compute.kernel_launch_s * each.recompute.setups
        # Launches of the gradients run ahead while the GPU computes again, or it waits in what runs again already.
        ahead = ~on.talk["tp"] & (not work.forward.waits)
        recompute = more.took + np.where(ahead, 0.0, np.maximum(np.maximum(short, more.synced), 0.0))
        whole, half = (
            _waiting(seconds, launched + setup - sum(seconds.values()) + ahead * short)
            for seconds, launched in ((gradients, sum(back)), (inputs, back[0]))
        )
        for seconds, _ in (whole, half):
            seconds[Cause.RECOMPUTE] = recompute
        passes = first, whole, half, later
        leads = tuple((lead, alone * lead, hidden) for _, (lead, hidden) in passes)
        priced[key] = BlockCosts((*(took for took, _ in passes), at_peak), leads, (once.card, card + more.card))
    return [priced[key] for key in keys]


def _waiting(
    seconds: dict[Cause, Number], late: Number, synced: Number = 0.0
) -> tuple[dict[Cause, Number], tuple[Number, Number]]:
    """A pass with what the GPU waits for its host, if anything, and its lead as in `BlockCosts`.

    late : launches beyond what the GPU takes. synced : what it waits at least.
    """
    waits = np.maximum(np.maximum(late, synced), 0.0)
    lead = waits - late, waits - synced
    if not np.any(np.asarray(waits) > 0.0):
        return dict(seconds), lead
    return seconds | {Cause.HOST: seconds.get(Cause.HOST, 0.0) + waits}, lead


class _Again(NamedTuple):
    """What a forward takes, or what of it runs again. [s]

    took : on the GPU. launches : on the host.
    synced : what the GPU waits at least for the number of tokens.
    card : on a network card.
    """

    took: Number
    launches: Number
    synced: Number
    card: Number


class _Rates:
    """A GPU, its groups, and the links between them: what prices phases.

    talk : of every kind of group, whether it has more than one member.
    """

    def __init__(self, compute: ComputeModel, groups: Groups, fabric: Fabric) -> None:
        self.compute, self.groups, self.fabric = compute, groups, fabric
        self.talk = {name: np.asarray(each.size) > 1 for name, each in groups.items()}

    def launches(self, phase: Phase, backward: bool = False) -> Number:
        """Time of the host for the launches of a phase.  [s]"""
        return self.compute.host_time((phase,), self.talk, backward=backward)

    def peak_seconds(self, phases: Iterable[Phase]) -> dict[Cause, Number]:
        """What the FLOPs of phases take at the GPU's peak, by cause.  [s]"""
        at_peak: dict[Cause, Number] = {}
        for item in (each for phase in phases for each in phase.operations):
            at_peak[item.cause] = at_peak.get(item.cause, 0.0) + item.flop / self.compute.peak(item)
        return at_peak

    def busy(self, phase: Phase) -> Number:
        """Time of a phase's operations.  [s]"""
        return sum(self.compute.phase_time(phase).values())

    def waited(self, phase: Phase) -> dict[Cause, Number]:
        """A phase's operations, and its collectives that compute waits for, by cause.  [s]

        A module on a stream of its own runs beside exchanges of tokens, and hides as much of them as it lasts.
        """
        seconds = self.compute.phase_time(phase)
        for cause, name in ((Cause.TENSOR_PARALLEL, "tp"), (Cause.EXPERT_PARALLEL, "ep")):
            if items := chosen(phase, name, overlapped=False):
                seconds[cause] = 0.0
                beside = self.busy(phase.of_modules({item.beside for item in items if item.beside}))
                for item in items:
                    kernels = tuple(each for each in phase.operations if item.multiply and each.name == item.multiply)
                    multiply_s = self.busy(Phase(kernels)) if kernels else 0.0
                    taken = piece_by_piece(item, multiply_s, self.compute, self.groups[name], self.fabric)
                    if item.beside:
                        taken, beside = self._exposed(item, taken, beside), beside - np.minimum(taken, beside)
                    seconds[cause] = seconds[cause] + taken
        context, group = chosen(phase, "cp"), self.groups["cp"]
        if context:
            nbytes = sum(item.nbytes for item in context)
            budget = attention_beside(context, group, seconds.get(Cause.ATTENTION, 0.0))
            took = total_time(context, group, self.fabric)
            seconds[Cause.CONTEXT_PARALLEL] = self.fabric.exposed(group, nbytes, took, budget)
        return seconds

    def again(self, work: BlockWork, once: _Again) -> _Again:
        """Return what runs again takes; what the forward takes where all of it does."""
        phase, counts = work.recompute, any(item.module == EXPERTS for item in work.recompute.operations)
        if phase is work.forward:
            return once if counts else once._replace(synced=0.0)
        took = sum(self.waited(phase).values())
        if tokens := chosen(phase, "ep", overlapped=True):  # they travel once more, and nothing is left to hide them
            took = took + total_time(tokens, self.groups["ep"], self.fabric)
        synced = self.after_sync(replace(phase, waits=work.forward.waits)) if counts else 0.0
        return _Again(took, self.launches(phase), synced, self.card_s(phase))

    def after_sync(self, forward: Phase) -> Number:
        """What the GPU waits at least in a forward whose host waits for the numbers of tokens. [s]

        The host has nothing launched when it learns them. What follows (dispatch, experts, combine) then starts when it
        is launched and when what is before it is over, while the kernels of attention and router, which came before,
        are over or wait behind them (NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py,
        _maybe_dtoh_and_synchronize; deepseek-ai/DeepEP:csrc/hybrid_ep/executor/executor.cu, metadata_preprocess_core).
        A grouped multiply starts after all its launches: the host cuts and casts every expert's tokens first
        (NVIDIA/TransformerEngine:transformer_engine/pytorch/module/grouped_linear.py).
        """
        if not forward.waits or chosen(forward, "ep", overlapped=True):
            return 0.0
        behind = forward.of_modules(BEHIND_SYNC)
        there = (len(behind.collectives) + 1) // 2
        parts = [Phase((operation,)) for operation in behind.operations]
        parts = [Phase(collectives=behind.collectives[:there]), *parts, Phase(collectives=behind.collectives[there:])]
        launched: Number = 0.0
        ran: Number = 0.0
        waits: Number = 0.0
        for part in parts:
            launched = launched + self.launches(part)
            waits = np.maximum(waits, launched - ran)
            ran = ran + sum(self.waited(part).values())
        return np.maximum(waits, launched - ran)

    def card_s(self, phase: Phase) -> Number:
        """What collectives of a phase between NVLink domains put on a card, at the best rate that it reaches.  [s]"""
        seconds: Number = 0.0
        for name, group in self.groups.items():
            if not np.any(np.asarray(group.num_domains) > 1):
                continue
            for item in chosen(phase, name):
                if item.kind == "all_to_all":
                    sent = all_to_all_bytes(item.nbytes, group, item.copies, item.limit)[1]
                    seconds = seconds + sent / (self.fabric.best_share * self.fabric.network_bytes_per_s)
                else:
                    occupied = self.fabric.card_occupied(group, item.kind)
                    seconds = seconds + total_time((item,), group, self.fabric) * occupied
        return seconds

    def add_exposed_tokens(self, forward: dict[Cause, Number], backward: dict[Cause, Number], work: BlockWork) -> None:
        """Add to passes what tokens add that travel beside another micro-batch's computation.

        One micro-batch's forward and another one's backward take turns in pieces: while the one computes attention the
        other's tokens come back from experts, while it computes experts the other's go there, and the reverse [1]_
        [2]_. A piece hides no more than it lasts: what is left it waits for. Kernels that move tokens on streaming
        multiprocessors of their own take these from it, and slow it as the stack says, which is a cause by itself.

        .. [1] DeepSeek-V3, arXiv:2412.19437, section 3.2.1, figure 4.
        .. [2] NVIDIA/Megatron-LM:megatron/core/models/common/model_chunk_schedule_plan.py.
        """
        there, back = work.forward, work.input_grad + work.weight_grad
        if not chosen(there, "ep", overlapped=True):
            return
        group = self.groups["ep"]
        # Tokens leave in the middle of a pass, while the other computes experts, and come back while it computes
        # attention; in a backward the other way round.
        pieces = (self._pieces_s(back)[::-1], self._pieces_s(there))
        for seconds, phase, others in ((forward, there, pieces[0]), (backward, back, pieces[1])):
            for item, budget in zip(chosen(phase, "ep", overlapped=True), others, strict=True):
                took = total_time((item,), group, self.fabric)
                exposed = self._exposed(item, took, budget)
                waits = took - np.minimum(took, budget)
                for cause, more in ((Cause.EXPERT_PARALLEL, waits), (Cause.BESIDE_TOKENS, exposed - waits)):
                    seconds[cause] = seconds.get(cause, 0.0) + more

    def _exposed(self, item: Collective, took: Number, budget: Number) -> Number:
        """What an exchange of tokens adds to compute of `budget` beside it, whose multiprocessors it takes.  [s]"""
        group = self.groups["ep"]
        if item.sms is None:
            return self.fabric.exposed(group, item.nbytes, took, budget)
        slowdown = item.slowdown * (np.asarray(group.num_domains) > 1)
        hidden = np.maximum(0.0, 1.0 - item.sms / self.compute.gpu.num_sms - slowdown)
        return took - hidden * np.minimum(took, budget)

    def _pieces_s(self, phase: Phase) -> tuple[Number, Number]:
        """Attention with the router, and experts: seconds of a pass before its tokens leave, and of the rest.  [s]"""
        experts = self.busy(phase.of_modules(BEHIND_SYNC))
        return self.busy(phase) - experts, experts


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


def attention_beside(items: Iterable[Collective], group: Group, attention_s: Number) -> Number:
    """Attention of a pass that its exchange of keys and values runs beside.  [s]

    A ring of n ranks computes on its own block first and sends nothing beside the last one. In a backward gradients
    follow the keys and values one block behind, so that something is on its way beside every block [1]_.

    .. [1] NVIDIA/TransformerEngine:transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
       AttnFuncWithCPAndKVP2P.
    """
    rings = sum(item.overlapped for item in items)
    return attention_s * (group.size - 2 + rings) / group.size if rings else 0.0
