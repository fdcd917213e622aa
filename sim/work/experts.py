"""The block of experts of one layer on one GPU: router, tokens to their experts and back, the experts themselves.

Each of ep GPUs holds every ep-th expert, whole, and routes its own tokens (under sequence parallelism its share of
them). They are laid out by expert, sent (an all-to-all: dispatch), laid out by local expert, multiplied expert by
expert in grouped matrix multiplies, sent back (combine) and added up by their weights [1]_ [2]_. Routing is taken to be
even: every expert gets the same number of tokens, as published benchmarks force it and load balancing aims at.

.. [1] Lepikhin et al. 2021, "GShard", arXiv:2006.16668, section 2.2.
.. [2] NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec
from sim.work.operations import BlockWork, Collective, Operation, Phase, memory
from sim.work.pieces import Cut, linear, mlp_between, norms_of_block, residual

BACKWARD_ROUTING = 2 / 3
"""Launches of a router's backward over those of its forward: counting and the maps have none. Assumed."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens as experts see them.

    own : tokens that this GPU routes.
    copies : tokens that it sends, one to each chosen expert: as many as its experts receive.
    each : tokens that one expert receives.
    experts : on this GPU.
    """

    own: Number
    copies: Number
    each: Number
    experts: Number


def routed(model: ModelSpec, cut: Cut) -> Routed:
    """Even routing."""
    own = cut.norm_tokens
    copies = own * model.experts_per_token
    here = model.num_experts / cut.ep
    return Routed(own, copies, copies / here, here)


def experts_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, router, dispatch, experts, combine, residual; experts that every token goes through beside them."""
    h, w, to = model.hidden_size, cut.width, routed(model, cut)
    inner = model.expert_intermediate_size
    inputs = 2 if model.gated_mlp else 1
    norm_f, norm_b = norms_of_block(model, stack, cut)
    res_f, res_b = residual(model, stack, cut, False)
    router_f, router_i, router_w = linear("router", to.own, model.num_experts, h, stack, w)
    # Scores in fp32 are read and written by the softmax, the choice and the balance's loss.
    scores = 4.0 * to.own * model.num_experts
    choose_f = memory("routing", 6 * scores, stack.routing_launches, sort="softmax")
    choose_b = memory("routing backward", 6 * scores, stack.routing_launches * BACKWARD_ROUTING, sort="softmax")
    launches = 1 + to.experts * (stack.fp8_launches_per_expert if cut.fp8 else stack.launches_per_expert)
    up_f, up_i, up_w, down_f, down_i, down_w = (
        replace(multiply, kernels=launches)
        for name, n, k in (("experts up", inputs * inner, h), ("experts down", h, inner))
        for multiply in linear(name, to.each, n, k, stack, w, batch=to.experts)
    )
    act_f, act_b = _activation(w * to.copies * inner, model)
    shared = _shared(model, stack, cut)
    there, back = _layouts(w * to.copies * h, cut)
    dispatch, combine = (_exchange(name, w * to.copies * h, model, stack) for name in ("dispatch", "combine"))
    return BlockWork(
        forward=Phase((norm_f, router_f, choose_f, *there, up_f, act_f, down_f, *back, res_f), (dispatch, combine))
        + shared.forward,
        input_grad=Phase((res_b, *back, down_i, act_b, up_i, *there, choose_b, router_i, norm_b), (combine, dispatch))
        + shared.input_grad,
        weight_grad=Phase((down_w, up_w, router_w)) + shared.weight_grad,
    )


def _activation(nbytes: Number, model: ModelSpec) -> tuple[Operation, Operation]:
    """The activation of copies of one width of `nbytes`, and the token's weight for the expert: forward, backward.

    With biases, which grouped multiplies do not add, it runs step by step (the bias, two limits, a scaled sigmoid, an
    offset and products: OpenAI 2025, arXiv:2508.10925, section 2.1): about ten kernels that read one or two tensors
    and write one; autograd runs each step's gradient, about twice the bytes.
    """
    inputs = 2 if model.gated_mlp else 1
    if model.mlp_bias and model.gated_mlp:
        return (
            memory("experts' activation", 24 * nbytes, 10, sort="activation"),
            memory("experts' activation backward", 48 * nbytes, 20, sort="activation"),
        )
    return (
        memory("experts' activation", nbytes * (inputs + 1), 1, sort="activation"),
        memory("experts' activation backward", nbytes * (2 * inputs + 1), 1, sort="activation"),
    )


def _layouts(nbytes: Number, cut: Cut) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Laying tokens out by expert, before they leave and again where they arrive; and the same on the way back."""
    out = memory("tokens to experts", 2 * nbytes)
    home = memory("tokens from experts", 2 * nbytes)
    # With one GPU there is nothing to lay out anew on arrival.
    sort = memory("tokens by local expert", 2 * nbytes * (cut.ep > 1), 1 * (cut.ep > 1))
    return (out, sort), (sort, home)


def _exchange(name: str, nbytes: Number, model: ModelSpec, stack: StackSpec) -> Collective:
    copies = model.experts_per_token if stack.deduplicated_dispatch else 1
    return Collective(f"{name} tokens", "all_to_all", nbytes, stack.overlap_experts, "ep", copies)


def _shared(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Experts for every token: one MLP, cut over the tensor-parallel group like any other."""
    if not model.shared_expert_intermediate_size:
        return BlockWork(Phase(), Phase(), Phase())
    inner = mlp_between("shared expert", model.shared_expert_intermediate_size, model, stack, cut)
    nbytes = cut.width * cut.norm_tokens * model.hidden_size
    add = memory("add shared expert", 3 * nbytes, sort="add")
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
        (memory("shared expert's gate", 3 * nbytes, 3, sort="add"),),
        (memory("shared expert's gate backward", 6 * nbytes, 6, sort="add"),),
    )


def experts_activation_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the block keeps for the backward beside its norm's input. [bytes]

    The norm's output, the scores and their softmax, and copy by copy the tokens that experts read, the activation's
    input and its output; the same of shared experts, once a token.
    """
    h, w, to = model.hidden_size, cut.width, routed(model, cut)
    kept = 1 if cut.fp8 else w
    products = 2 if model.gated_mlp else 1
    inner = model.expert_intermediate_size
    of_copies = to.copies * (kept * h + w * products * inner + kept * inner)
    shared = cut.tokens / cut.tp * model.shared_expert_intermediate_size * (w * products + kept)
    if not stack.fused_bias_activation and model.gated_mlp:
        of_copies = of_copies + to.copies * w * inner
    gated = w * h * model.shared_expert_gate  # what shared experts gave, for their gate's gradient
    return to.own * (w * h + gated + 8.0 * model.num_experts) + of_copies + shared
