"""The block of experts of one layer on one GPU: router, tokens to their experts and back, the experts themselves.

Each of ep GPUs holds every ep-th expert, whole, and routes its own tokens (under sequence parallelism its share of
them). They are laid out by expert, sent (an all-to-all: dispatch), laid out by local expert, multiplied expert by
expert in grouped matrix multiplies, sent back (combine) and added up by their weights [1]_ [2]_. The GPU whose experts
get most sets the pace (`sim.work.routing`); without a word on routing all get the same, as published benchmarks force
it and load balancing aims at.

Where experts are cut over the tensor-parallel group (etp), each of its GPUs has a part of the same ones: tokens go to
the GPU of its own place in the group, the group gathers those that arrived, every GPU multiplies all of them by its
columns (etp times the rows, 1/etp of the width), and the parts of each result are summed by a reduce-scatter before
they go home [2]_. In the backward the two change places.

.. [1] Lepikhin et al. 2021, "GShard", arXiv:2006.16668, section 2.2.
.. [2] NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
.. [3] NVIDIA/Megatron-LM:megatron/core/transformer/moe/experts.py, TEGroupedMLP, and core/fusions/fused_bias_geglu.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec
from sim.work.operations import BlockWork, Collective, Operation, Phase, memory
from sim.work.params import expert_width
from sim.work.pieces import Cut, linear, mlp_between, norms_of_block, residual
from sim.work.routing import busiest_share, different

MODULE = "moe_dispatch"
BACKWARD_ROUTING = 2 / 3
"""Launches of a router's backward over those of its forward: counting and the maps have none. Assumed."""

ROUTING_LAUNCHES = 30.0
"""Launches, forward, by which a fused router scores, chooses and counts, and the maps of tokens to experts are made.
Set on Megatron-Bridge and Megatron-LM runs of Qwen3, Nemotron 3 and DeepSeek-V3 with and without CUDA graphs of it."""
UNFUSED_ROUTING = 30.0
"""Launches that a router takes more where it is not fused: PyTorch's own kernels take 60."""
DISPATCH_LAUNCHES = 5.0
"""Launches, forward and backward each, by which a dispatcher prepares both exchanges of tokens, beside the kernels that
move them: counts, buffers, events, autograd's calls. Set on the same runs."""
GROUPED_LAUNCHES = {False: (0.0, 0.4), True: (0.0, 1.5)}
LOW_PRECISION_LAUNCHES = {False: (0.0, 1.5), True: (17.0, 0.75)}
"""Extra launches in whose time the host starts a grouped multiply, in 16 bits, and in fewer: however many experts there
are, and for each expert on the GPU. The library launches one multiply after the other; in fewer bits tokens are cast,
and their scales laid out, in kernels of their own. Where launches are counted they are set on the same runs, in fewer
bits with 4 to 64 experts a GPU; else they are assumed."""
DISPATCHER_SLOWDOWN = 0.5
"""Share of the time that deepep and hybridep run beside compute and over the network which compute loses besides its
multiprocessors: those left work on fewer tiles at a time, and share the memory with what comes and is handed on. Set on
a pair of MoE-ModelZoo: Qwen3 235B on 256 H100, 19.7 s without and 17.6 s with tokens beside computation (DeepEP)."""
DISPATCHER_SM_RATE_BYTES_PER_S = 21e9
"""Most that one of their multiprocessors moves over NVLink. Set on tokens that travel while computation waits on GB200
and GB300, 16 multiprocessors of HybridEP, against those beside computation, whose pace hardly counts; 20 of DeepEP
reach what NVLink of H800 and H100 gives (deepseek-ai/DeepEP:README.md). [bytes/s]"""

MAPS_OF_ROUTING = 1 / 3
"""Of a router's launches, those that count tokens and map them to experts (Megatron-Core's preprocess). Assumed."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens as experts of the busiest GPU see them.

    own : tokens that a GPU routes.
    arrived : tokens that come to it by the all-to-all, one for each expert that they chose.
    copies : tokens that its experts multiply: with those that came to the other GPUs that have parts of them.
    received : of `arrived`, different tokens.
    each : tokens that one expert multiplies.
    experts : on this GPU, or parts of so many.
    """

    own: Number
    arrived: Number
    copies: Number
    received: Number
    each: Number
    experts: Number


def routed(model: ModelSpec, cut: Cut, layers: int = 1) -> Routed:
    """What goes where in one layer, or in the mean of several."""
    own, busiest = cut.norm_tokens, busiest_share(model, cut.routing, cut.ep, layers)
    arrived = own * model.experts_per_token * busiest
    copies = arrived * cut.etp
    here = model.num_experts / cut.ep
    limit = model.expert_groups_per_token, model.num_expert_groups
    received = own * busiest * different(cut.ep, model.experts_per_token, limit)
    return Routed(own, arrived, copies, received, copies / here, here)


def experts_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, router, dispatch, experts, combine, residual; experts that every token goes through beside them."""
    h, w, to = model.hidden_size, cut.width, routed(model, cut)
    inner, outer = model.expert_intermediate_size / cut.etp, expert_width(model)
    inputs = 2 if model.gated_mlp else 1
    norm_f, norm_b = norms_of_block(model, stack, cut, "moe_layernorm")
    res_f, res_b = residual(model, stack, cut, False, "moe_residual")
    router_f, router_i, router_w = linear("router", to.own, model.num_experts, h, stack, w, module="moe_router")
    # Scores in fp32 are read and written by the softmax, the choice and the balance's loss.
    scores = 4.0 * to.own * model.num_experts
    launches = ROUTING_LAUNCHES + (0.0 if stack.fused_router else UNFUSED_ROUTING)
    choose_f = _routing("routing", 6 * scores, launches)
    choose_b = _routing("routing backward", 6 * scores, launches * BACKWARD_ROUTING)
    fixed, each = (LOW_PRECISION_LAUNCHES if cut.format else GROUPED_LAUNCHES)[stack.counted_launches]
    launches = 1 if stack.fused_experts else 1 + fixed + to.experts * each
    up_f, up_i, up_w, down_f, down_i, down_w = (
        replace(multiply, kernels=launches)
        for name, n, k in (("experts up", inputs * inner, outer), ("experts down", outer, inner))
        for multiply in linear(name, to.each, n, k, stack, w, batch=to.experts, module="experts")
    )
    act_f, act_b = _activation(w * to.copies * inner, model, stack)
    bias_f, bias_b = _biases(w * to.copies * outer, to.experts, model)
    if stack.fused_experts:
        up_f, down_i = _between_inside(up_f, down_i, to.copies * inner, inputs, cut)
        act_f, act_b = (), ()
    shared = _shared(model, stack, cut)
    there, back = _layouts(w * outer, to, stack, cut)
    dispatch, combine = (_exchange(name, w * to.arrived * outer, model, stack) for name in ("dispatch", "combine"))
    gather, scatter = _between_parts(w * outer, to, stack, cut)
    inside = BlockWork(
        # Experts that multiply as many tokens as they have room for need no count.
        Phase(
            (*there, up_f, *act_f, down_f, *bias_f, *back),
            (dispatch, *gather, *scatter, combine),
            waits=not cut.routing.padded,
        ),
        Phase((*back, *bias_b, down_i, *act_b, up_i, *there), (combine, *gather, *scatter, dispatch)),
        Phase((down_w, up_w)),
    )
    if model.expert_latent_size:
        inside = _through_latent(inside, model, stack, cut)
    return BlockWork(
        forward=Phase((norm_f, router_f, *choose_f)) + inside.forward + Phase((res_f,)) + shared.forward,
        input_grad=Phase((res_b,)) + inside.input_grad + Phase((*choose_b, router_i, norm_b)) + shared.input_grad,
        weight_grad=inside.weight_grad + Phase((router_w,)) + shared.weight_grad,
    )


def _through_latent(inside: BlockWork, model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Experts between projections, of the tokens that a GPU routes, to the vector they work on and back."""
    h, own, latent = model.hidden_size, cut.norm_tokens, model.expert_latent_size
    down_f, down_i, down_w = linear("to experts' latent", own, latent, h, stack, cut.width, module="moe_router")
    up_f, up_i, up_w = linear("from experts' latent", own, h, latent, stack, cut.width, module="experts")
    return BlockWork(
        Phase((down_f,)) + inside.forward + Phase((up_f,)),
        Phase((up_i,)) + inside.input_grad + Phase((down_i,)),
        Phase((up_w,)) + inside.weight_grad + Phase((down_w,)),
    )


def _routing(name: str, nbytes: Number, launches: float) -> tuple[Operation, Operation]:
    """Scoring and choosing, and the maps of tokens to experts: `nbytes` of scores, in so many launches."""
    maps = MAPS_OF_ROUTING
    return (
        memory(name, (1 - maps) * nbytes, (1 - maps) * launches, sort="softmax", module="moe_router"),
        memory(f"{name}: maps", maps * nbytes, maps * launches, sort="softmax", module="moe_preprocess"),
    )


def _between_inside(
    up: Operation, down_back: Operation, elements: Number, inputs: int, cut: Cut
) -> tuple[Operation, Operation]:
    """The first multiply, and the second one's gradient, with the activation of so many elements inside.

    The first writes its result, which the backward reads, and what the activation makes of it as the second multiply
    reads it; the second one's gradient reads that result, and writes its gradient instead of the activation's. In few
    bits both are written by rows and by columns (NVIDIA/TransformerEngine:transformer_engine/pytorch/ops/fused/
    forward_grouped_mlp.py, backward_grouped_mlp.py).
    """
    written = 2 * cut.format.nbytes if cut.format else cut.width
    forward = written * elements
    backward = (inputs * (cut.width + written) - cut.width) * elements
    return replace(up, nbytes=up.nbytes + forward), replace(down_back, nbytes=down_back.nbytes + backward)


def _activation(
    nbytes: Number, model: ModelSpec, stack: StackSpec
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """The activation of copies of one width of `nbytes`, and the token's weight for the expert: forward, backward.

    One that is clamped (OpenAI 2025, arXiv:2508.10925, section 2.1) limits both halves and joins them again before a
    fused kernel, and autograd writes a mask for every limit [3]_; a compiler makes one kernel of it.
    """
    inputs = 2 if model.gated_mlp else 1
    times, kernels, sort = (inputs + 1, 2 * inputs + 1), (1, 1), "activation"
    if _clamped(model) and not stack.compiled:
        times, kernels, sort = (11, 20), (4, 10), "strided"
    return (
        (memory("experts' activation", times[0] * nbytes, kernels[0], sort=sort, module="moe_act"),),
        (memory("experts' activation backward", times[1] * nbytes, kernels[1], sort=sort, module="moe_act"),),
    )


def _clamped(model: ModelSpec) -> bool:
    """Experts with biases and a clamped activation, as gpt-oss has them."""
    return bool(model.mlp_bias and model.gated_mlp)


def _biases(nbytes: Number, experts: Number, model: ModelSpec) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Biases of so many experts' outputs of `nbytes`: forward, backward.

    Grouped multiplies leave them out, since each is weighted as its token is: expert by expert a product in fp32 and a
    sum, then all joined and cast; autograd's gradient of both factors, summed, and each bias's gradient added to the
    main one, as that of the multiply before [3]_. Bytes and kernels as torch dispatches them.
    """
    if not _clamped(model):
        return (), ()
    return (
        (memory("experts' biases", 14 * nbytes, 2 + 2 * experts, sort="strided", module="experts"),),
        (memory("experts' biases backward", 20 * nbytes, 3 + 8 * experts, sort="strided", module="experts"),),
    )


def _layouts(width: Number, to: Routed, stack: StackSpec, cut: Cut) -> tuple[tuple[Operation, ...], ...]:
    """Laying tokens of `width` bytes out by expert; and the same on the way back.

    An all-to-all needs copies in order before they leave, and sorts them by local expert where they arrive. Kernels of
    its own read tokens where they are, and copy those that arrived, once for every expert that they go to.
    """
    far = 1 * (cut.ep * cut.etp > 1)  # with one GPU there is nothing to lay out anew on arrival
    launches = 1 + stack.counted_launches * DISPATCH_LAUNCHES / 2
    if stack.expert_dispatcher == "alltoall":
        nbytes = width * (to.own + to.arrived)
        out, home = (_permute(f"tokens {way} experts", nbytes, launches) for way in ("to", "from"))
        sort = _permute("tokens by local expert", 2 * width * to.copies * far, far)
        return (out, sort), (sort, home)
    nbytes = width * (to.received * cut.etp + to.copies)
    out, home = (_permute(f"tokens {way} local experts", nbytes, launches) for way in ("to", "from"))
    return (out,), (home,)


def _permute(name: str, nbytes: Number, launches: Number) -> Operation:
    return memory(name, nbytes, launches, sort="permute", module=MODULE)


def _exchange(name: str, nbytes: Number, model: ModelSpec, stack: StackSpec) -> Collective:
    copies = 1 if stack.expert_dispatcher == "alltoall" else model.experts_per_token
    limit = model.expert_groups_per_token, model.num_expert_groups
    sms = stack.sms_of_dispatcher
    return Collective(
        f"{name} tokens", "all_to_all", nbytes, stack.overlap_experts, "ep", copies, limit, sms,
        DISPATCHER_SLOWDOWN, sms * DISPATCHER_SM_RATE_BYTES_PER_S if sms else None, MODULE,
    )  # fmt: skip


def _between_parts(
    width: Number, to: Routed, stack: StackSpec, cut: Cut
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Among the GPUs that have parts of the same experts: the gather of tokens of `width` bytes that came to each, and
    the sum of what the parts give.

    Kernels of a dispatcher's own send a token to all these GPUs themselves, once (NVIDIA/Megatron-LM:megatron/core/
    transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher, over tensor- and expert-parallel ranks): of different
    tokens as many bytes come to each as by a gather.
    """
    if np.all(np.asarray(cut.etp) == 1):
        return (), ()
    nbytes = width * cut.etp * (to.arrived if stack.expert_dispatcher == "alltoall" else to.received)
    nbytes = nbytes * (np.asarray(cut.etp) > 1)
    return (
        (Collective("gather tokens of cut experts", "all_gather", nbytes, module=MODULE),),
        (Collective("sum outputs of cut experts", "reduce_scatter", nbytes, module=MODULE),),
    )


def _shared(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Experts for every token: one MLP, cut over the tensor-parallel group like any other."""
    if not model.shared_expert_intermediate_size:
        return BlockWork(Phase(), Phase(), Phase())
    name = "shared_experts"
    inner = mlp_between("shared expert", model.shared_expert_intermediate_size, model, stack, cut, name)
    nbytes = cut.width * cut.norm_tokens * model.hidden_size
    add = memory("add shared expert", 3 * nbytes, sort="add", module="moe_residual")
    gate_f, gate_b = _shared_gate(nbytes, model)
    return BlockWork(
        forward=inner.forward + Phase((*gate_f, add)),
        input_grad=Phase(gate_b) + inner.input_grad + Phase((add,)),
        weight_grad=inner.weight_grad,
    )


def _shared_gate(nbytes: Number, model: ModelSpec) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """The weight of shared experts, on `nbytes` of tokens: a product with one column, a sigmoid, and a scaling.

    Forward reads the tokens, and reads and writes what the experts gave; autograd's backward about twice that.
    """
    if not model.shared_expert_gate:
        return (), ()
    return (
        (memory("shared expert's gate", 3 * nbytes, 3, sort="add", module="shared_experts"),),
        (memory("shared expert's gate backward", 6 * nbytes, 6, sort="add", module="shared_experts"),),
    )


@dataclass(frozen=True, slots=True)
class ExpertsActivations:
    """What a block of experts keeps for the backward beside its norm's input. [bytes]

    norm : the norm's output.
    scores : of all experts, and their softmax.
    copies : copy by copy, the tokens that experts read and the activation's input.
    activation : its output, weighted, copy by copy; step by step also what is weighted, and the gate's activation.
    shared : of experts that every token goes through the same, once a token, and what they gave where a gate weighs it.
    """

    norm: Number
    scores: Number
    copies: Number
    activation: Number
    shared: Number

    @property
    def total(self) -> Number:
        """All of it. [bytes]"""
        return self.norm + self.scores + self.copies + self.activation + self.shared


def experts_activations(model: ModelSpec, stack: StackSpec, cut: Cut) -> ExpertsActivations:
    """What the block keeps for the backward, by what recomputation may spare."""
    h, w = model.hidden_size, cut.width
    to = routed(model, cut, sum(model.layers_of(kind) for kind in model.layer_kinds if kind.sparse))
    kept, outer = cut.kept, expert_width(model)
    products = 2 if model.gated_mlp else 1
    inner = model.expert_intermediate_size / cut.etp
    fused = stack.fused_bias_activation if model.gated_mlp else stack.fused_weighting
    unfused = 0 if fused else products
    shared = cut.tokens / cut.tp * model.shared_expert_intermediate_size * (w * products + kept)
    gated = w * h * model.shared_expert_gate  # what shared experts gave, for their gate's gradient
    return ExpertsActivations(
        norm=to.own * w * h,
        scores=to.own * 8.0 * model.num_experts,
        copies=to.copies * (kept * outer + w * products * inner) + kept * to.own * 2 * model.expert_latent_size,
        activation=to.copies * (kept + w * unfused) * inner,
        shared=shared + to.own * gated,
    )
