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

Without all-to-alls (allgather) every GPU gathers the tokens of all, multiplies those of its own experts, and a
reduce-scatter sums what they gave [4]_.

.. [1] Lepikhin et al. 2021, "GShard", arXiv:2006.16668, section 2.2.
.. [2] NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
.. [3] NVIDIA/Megatron-LM:megatron/core/transformer/moe/experts.py, TEGroupedMLP, and core/fusions/fused_bias_geglu.py.
.. [4] NVIDIA/Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec
from sim.work.operations import Collective, Kernel, Tensor, Weight, memory
from sim.work.pieces import Cut, Writer
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
GROUPED_LAUNCHES = {False: (0.0, 0.4), True: (0.0, 1.0)}
LOW_PRECISION_LAUNCHES = {False: (0.0, 1.5), True: (17.0, 0.75)}
"""Extra launches in whose time the host starts a grouped multiply, in 16 bits, and in fewer: however many experts there
are, and for each expert on the GPU. The library launches one multiply after the other; in fewer bits tokens are cast,
and their scales laid out, in kernels of their own. Where launches are counted they are set in fewer bits on the same
runs, with 4 to 64 experts a GPU; in 16 bits on adapters of Nemotron 3 on a DGX Station, whose 128 experts are frozen
and whose steps take as long with 2,048 tokens as with 16,384 (NVIDIA-NeMo/Nemotron, its calculator for post-training).
Else they are assumed."""
GRADIENT_LAUNCHES = 1.0
"""Launches more in whose time the host ends the gradient of an expert's trained weight in 16 bits: an empty gradient
for autograd (NVIDIA/TransformerEngine:transformer_engine/pytorch/module/grouped_linear.py,
handle_custom_ddp_from_mcore), its node, and the hook that notes it in its bucket (NVIDIA/Megatron-LM:megatron/core/
distributed/distributed_data_parallel.py, _make_backward_post_hook). Set on the same runs. Where multiplies do not add
gradients up, as under Megatron-FSDP, each weight's is copied by a kernel of its own besides, in any precision (NVIDIA/
Megatron-LM:megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py, _grad_acc)."""
LOOP_LAUNCHES = 48
"""Launches in whose time Python visits one expert after the other, forward and backward.

They find its tokens, take their rows, multiply three times, activate, weight, and add the rows up. Qwen3-MoE and OLMoE
in transformers 5.17 run 39 and 43 kernels more an expert in a loop than grouped, and take 1.56 and 1.63 ms for them on
one H100 (calibration/data/h100-steps.csv): as long as 48 of stack pytorch, of which a third is the forward's."""
DISPATCHER_SLOWDOWN = 0.4
"""Share of the time that deepep and hybridep run beside compute and over the network which compute loses besides its
multiprocessors: those left work on fewer tiles at a time, and share the memory with what comes and is handed on. Set on
a pair of MoE-ModelZoo: Qwen3 235B on 256 H100, 19.7 s without and 17.6 s with tokens beside computation (DeepEP), 12 %
apart. They come out 6.9 % apart at this value and at any smaller one, so the pair bounds it only from above."""
DISPATCHER_SM_RATE_BYTES_PER_S = 21e9
"""Most that one of their multiprocessors moves over NVLink. Set on tokens that travel while computation waits on GB200
and GB300, 16 multiprocessors of HybridEP, against those beside computation, whose pace hardly counts; 20 of DeepEP
reach what NVLink of H800 and H100 gives (deepseek-ai/DeepEP:README.md). [bytes/s]"""

MAPS_OF_ROUTING = 1 / 3
"""Share of a router's launches that count tokens and map them to experts (Megatron-Core's preprocess). Assumed."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Tokens as experts of the busiest GPU see them.

    own : tokens that a GPU routes.
    arrived : tokens that come to it by the all-to-all, one for each expert that they chose.
    copies : tokens that its experts multiply: with those that came to the other GPUs that have parts of them.
    received : of `arrived`, different tokens.
    gathered : tokens of all GPUs that share the experts.
    each : tokens that one expert multiplies.
    experts : on this GPU, or parts of so many.
    """

    own: Number
    arrived: Number
    copies: Number
    received: Number
    gathered: Number
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
    return Routed(own, arrived, copies, received, own * cut.ep, copies / here, here)


def experts(write: Writer, y: Tensor) -> Tensor:
    """Router, dispatch, experts, combine; experts that every token goes through beside them."""
    model, cut, h, outer = write.model, write.cut, write.model.hidden_size, write.model.expert_width
    to, layers = routed(model, cut), sum(model.layers_of(kind) for kind in model.layer_kinds if kind.sparse)
    _router(write, y)
    source = y
    if model.expert_latent_size:
        source = y.like("experts' latent", outer)
        write.linear("to experts' latent", "moe_router", y, [source], [Weight(outer, h)])
    # A GPU keeps of all layers what it has of their mean.
    copies = Tensor("copies", to.copies, outer, cut.width, mean=routed(model, cut, layers).copies / to.copies)
    out = source.like("experts' sum")
    travelled = to.copies * (cut.ep * cut.etp > 1)
    arrived, home = (copies.like(f"copies {where}", rows=travelled) for where in ("arrived", "home"))
    there, there_back, back, back_again = _layouts(write, copies, to)
    sent = _exchanges(write, outer, to)
    # Experts that multiply as many tokens as they have room for need no count.
    write.add(
        "dispatch", MODULE, reads=(source,), writes=(arrived,), forward=there[:1], input_grad=there_back[:1],
        sent=sent[0], sent_back=sent[1], waits=cut.routing is None or not cut.routing.pad_to_capacity,
    )  # fmt: skip
    write.add(
        "sort by expert", MODULE, reads=(arrived,), writes=(copies,), forward=there[1:], input_grad=there_back[1:]
    )
    down = _multiplied(write, copies, to)
    write.add(
        "combine", MODULE, reads=(down,), writes=(home,), forward=back[:-1], input_grad=back_again[:-1], sent=sent[2],
        sent_back=sent[3],
    )  # fmt: skip
    write.add("sum by token", MODULE, reads=(home,), writes=(out,), forward=back[-1:], input_grad=back_again[-1:])
    if model.expert_latent_size:
        narrow, out = out, y.like("experts' output")
        write.linear("from experts' latent", "experts", narrow, [out], [Weight(h, outer)])
    return _with_shared(write, y, out)


def _multiplied(write: Writer, copies: Tensor, to: Routed) -> Tensor:
    """What the experts on a GPU make of the copies: grouped multiplies around the activation, and biases."""
    model, stack, cut, inputs, outer = write.model, write.stack, write.cut, write.inputs, copies.columns
    inner, biased = model.expert_intermediate_size / cut.etp, bool(model.mlp_bias)
    up, down = copies.like("experts up", inputs * inner), copies.like("experts down")
    fixed, each_expert = (LOW_PRECISION_LAUNCHES if cut.format else GROUPED_LAUNCHES)[stack.counted_launches]
    if stack.expert_multiplies == "loop":
        fixed, each_expert = 0.0, LOOP_LAUNCHES / 6  # two multiplies, three passes
    one = stack.fused_experts or stack.expert_multiplies == "grouped"
    launches = 1 if one else 1 + fixed + to.experts * each_expert
    moved: tuple[Number, Number] = 0.0, 0.0
    if stack.fused_experts:
        # The first multiply writes its result, which the backward reads, and what the activation makes of it as the
        # second multiply reads it; the second one's gradient reads that result, and writes its gradient instead of the
        # activation's. In few bits both are written by rows and by columns (NVIDIA/TransformerEngine:
        # transformer_engine/pytorch/ops/fused/forward_grouped_mlp.py, backward_grouped_mlp.py).
        written, elements = 2 * cut.format.nbytes if cut.format else cut.width, to.copies * inner
        moved = written * elements, (inputs * (cut.width + written) - cut.width) * elements
    ended = (0.0 if cut.format else GRADIENT_LAUNCHES) + (not stack.fused_gradient_accumulation)
    hooks = to.experts * ended if stack.counted_launches and not one else 0.0
    each = partial(write.linear, module="experts", batch=to.experts, launches=launches, hooks=hooks)
    weights = [Weight(inner, outer, to.experts * inputs, of_experts=True)]
    weights += [Weight(to.experts * up.columns, of_experts=True)] * biased
    each(up.name, x=copies, outs=[up], weights=weights, cut_by="columns", moved=(moved[0], 0.0))
    activated = _activation(write, up)
    weights = [Weight(outer, inner, to.experts, of_experts=True)]
    weights += [Weight(to.experts * outer, of_experts=True)] * biased
    each(down.name, x=activated, outs=[down], weights=weights, cut_by="rows", moved=(0.0, moved[1]))
    if biased and model.gated_mlp:
        # Grouped multiplies leave biases out, since each is weighted as its token is: expert by expert a product in
        # fp32 and a sum, then all joined and cast; autograd's gradient of both factors, summed, and each bias's
        # gradient added to the main one, as that of the multiply before [3]_. Bytes and kernels as torch dispatches.
        bias, nbytes = partial(memory, sort="strided"), cut.width * to.copies * outer
        forward = bias("experts' biases", 14 * nbytes, 2 + 2 * to.experts)
        backward = bias("experts' biases backward", 20 * nbytes, 3 + 8 * to.experts)
        write.add("experts' biases", "experts", forward=(forward,), input_grad=(backward,))
    return down


def _router(write: Writer, y: Tensor) -> None:
    """Scores of all experts, which multiply in 16 bits whatever the experts do; the choice of some."""
    model, stack, cut = write.model, write.stack, write.cut
    scores = y.like("scores", model.num_experts, width=4)
    chances = scores.like("chances")
    weights = [Weight(model.num_experts, model.hidden_size), *[Weight(model.num_experts)] * bool(model.mlp_bias)]
    write.linear("router", "moe_router", y, [scores], weights, width=cut.width)
    # Scores in fp32 are read and written by the softmax, the choice and the balance's loss.
    launches = ROUTING_LAUNCHES + (0.0 if stack.fused_router else UNFUSED_ROUTING)
    for part, module, share in (("", "moe_router", 1 - MAPS_OF_ROUTING), (": maps", "moe_preprocess", MAPS_OF_ROUTING)):
        forward, backward = (
            memory(f"{name}{part}", share * 6 * scores.nbytes, share * times, sort="softmax")
            for name, times in (("routing", launches), ("routing backward", launches * BACKWARD_ROUTING))
        )
        tensors = () if part else (scores, chances)
        write.add(
            f"routing{part}", module, reads=tensors[:1], writes=tensors[1:], kept=tensors, forward=(forward,),
            input_grad=(backward,),
        )  # fmt: skip


def _activation(write: Writer, up: Tensor) -> Tensor:
    """The activation of copies, and the token's weight for the expert; none where it is inside the multiplies.

    One that is clamped, of experts with biases and gates (OpenAI 2025, arXiv:2508.10925, section 2.1), limits both
    halves and joins them again before a fused kernel, and autograd writes a mask for every limit [3]_; a compiler makes
    one kernel of it.
    """
    model, stack, inputs = write.model, write.stack, write.inputs
    y = up.like(f"{up.name} activated", up.columns / inputs)
    fused = stack.fused_bias_activation if model.gated_mlp else stack.fused_weighting
    # Step by step what is weighted is kept besides, and the gate's activation.
    kept = (
        write.activation_input(up),
        *(y.like(f"{y.name}: factor {place}") for place in range(0 if fused else inputs)),
    )
    times, launches, sort = (inputs + 1, 2 * inputs + 1), (1, 1), "activation"
    if model.mlp_bias and model.gated_mlp and not stack.compiled:
        times, launches, sort = (11, 20), (4, 10), "strided"
    elif model.gated_mlp and not stack.fused_bias_activation:  # of halves of a matrix, whose gradients are joined
        times, launches, sort = (5, 13), (2, 4), "apart"
    moved, alone = write.cut.width * y.rows * y.columns, not stack.fused_experts
    forward = memory("experts' activation", times[0] * moved, launches[0], sort=sort)
    backward = memory("experts' activation backward", times[1] * moved, launches[1], sort=sort)
    write.add(
        "experts' activation", "moe_act" if alone else "experts", reads=(up,), writes=(y,), kept=kept,
        forward=(forward,) * alone, input_grad=(backward,) * alone,
    )  # fmt: skip
    return y


def _layouts(write: Writer, copies: Tensor, to: Routed) -> tuple[tuple[Kernel, ...], ...]:
    """Laying tokens out by expert, forward and backward, and the same on the way back.

    An all-to-all needs copies in order before they leave, and sorts them by local expert where they arrive. Kernels of
    its own read tokens where they are, and copy those that arrived, once for every expert that they go to.
    """
    stack, cut, width = write.stack, write.cut, write.cut.width * copies.columns
    if stack.expert_multiplies == "grouped" and not stack.fused_linears:
        return _by_index(copies.nbytes, to.own / to.copies)
    permute, launches = partial(memory, sort="permute"), 1 + stack.counted_launches * DISPATCH_LAUNCHES / 2
    if stack.expert_dispatcher == "alltoall":
        far = 1 * (cut.ep * cut.etp > 1)  # with one GPU there is nothing to lay out anew on arrival
        out, home = (
            permute(f"tokens {way} experts", width * (to.own + to.arrived), launches) for way in ("to", "from")
        )
        sort = permute("tokens by local expert", 2 * width * to.copies * far, far)
        return (out, sort), (out, sort), (sort, home), (sort, home)
    read = to.gathered if stack.expert_dispatcher == "allgather" else to.received
    nbytes = width * (read * cut.etp + to.copies)
    out, home = (permute(f"tokens {way} local experts", nbytes, launches) for way in ("to", "from"))
    return (out,), (out,), (home,), (home,)


def _by_index(nbytes: Number, share: Number) -> tuple[tuple[Kernel, ...], ...]:
    """Taking rows by index and putting them back, as transformers' grouped experts do it in PyTorch's own kernels.

    Rows are taken, and those of experts elsewhere set to zero; what experts give is weighted, set to zero likewise,
    taken in the tokens' order and summed (huggingface/transformers:src/transformers/integrations/moe.py,
    grouped_mm_experts_forward). Backward the sum's gradient is spread, both indices put back what they took, into
    zeros, and a setting to zero copies first. Bytes as torch dispatches them.

    Returns kernels to the experts forward and backward, and from them forward and backward.
    """
    moved = {  # times that rows taken by index, masks and weights, and whole tensors move all copies
        "to experts": (2, 2, 0),
        "to experts, backward": (1 + 3 * share, 2, 2),
        "from experts": (2, 4, 1 + share),
        "from experts, backward": (3, 7, 5 + share),
    }
    return tuple(
        tuple(
            memory(f"tokens {way}", times * nbytes, sort=sort)
            for times, sort in zip(each, ("permute", "apart", "step"), strict=True)
        )
        for way, each in moved.items()
    )


def _exchanges(write: Writer, columns: Number, to: Routed) -> tuple[tuple[Collective, ...], ...]:
    """Collectives of the dispatch, forward and backward, and of the combine.

    Where experts are cut, the GPUs that have parts of the same ones gather the tokens that came to each, and sum the
    parts' outputs. Kernels of a dispatcher's own send a token to all these GPUs themselves, once (NVIDIA/Megatron-LM:
    megatron/core/transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher, over tensor- and expert-parallel ranks):
    of different tokens as many bytes come to each as by a gather.
    """
    model, stack, cut, width = write.model, write.stack, write.cut, write.cut.width * columns
    kind, sms, limit = stack.expert_dispatcher, stack.sms_of_dispatcher, model.expert_groups_per_token
    pace = sms * DISPATCHER_SM_RATE_BYTES_PER_S if sms else None
    copies = 1 if kind == "alltoall" else model.experts_per_token
    routed_by = copies, (limit, model.num_expert_groups), sms, DISPATCHER_SLOWDOWN, pace
    beside = "shared_experts" if stack.overlap_shared_experts and model.shared_expert_intermediate_size else ""

    def tokens(name: str, to_experts: bool) -> Collective:
        if kind != "allgather":
            nbytes = width * to.arrived
            by_all = Collective(f"{name} tokens", "all_to_all", nbytes, stack.overlap_experts, "ep", *routed_by)
            return by_all._replace(beside=beside)
        by: Literal["all_gather", "reduce_scatter"] = "all_gather" if to_experts else "reduce_scatter"
        return Collective(f"{name} tokens", by, width * to.gathered, group="ep")

    gather: tuple[Collective, ...] = ()
    scatter: tuple[Collective, ...] = ()
    if np.any(np.asarray(cut.etp) > 1):
        came = {"alltoall": to.arrived, "allgather": to.gathered}.get(kind, to.received)
        nbytes = width * cut.etp * came * (np.asarray(cut.etp) > 1)
        gather = (Collective("gather tokens of cut experts", "all_gather", nbytes),)
        scatter = (Collective("sum outputs of cut experts", "reduce_scatter", nbytes),)
    return (
        (tokens("dispatch", True), *gather),
        (*scatter, tokens("dispatch", False)),
        (*scatter, tokens("combine", False)),
        (tokens("combine", True), *gather),
    )


def _with_shared(write: Writer, y: Tensor, out: Tensor) -> Tensor:
    """Add what experts for every token give: one MLP, cut over the tensor-parallel group like any other.

    Its gate is a product with one column, a sigmoid, and a scaling: forward reads the tokens, and reads and writes what
    the experts gave; autograd's backward moves about twice that.
    """
    model, cut, h, module = write.model, write.cut, write.model.hidden_size, "shared_experts"
    if not model.shared_expert_intermediate_size:
        return out
    given = write.mlp("shared expert", module, y, model.shared_expert_intermediate_size)
    nbytes = cut.width * cut.norm_tokens * h
    if model.shared_expert_gate:
        plain, given = given, given.like("shared expert gated")
        flop = 2.0 * cut.norm_tokens * h
        forward, backward = (
            memory(name, times * nbytes, times, sort="add")._replace(credited_flop=credited * flop)
            for name, times, credited in (
                ("shared expert's gate", 3, 1), ("shared expert's gate backward", 6, 2 - bool(cut.adapters)),
            )
        )  # fmt: skip
        write.add(
            "shared expert's gate", module, reads=(y, plain), writes=(given,), kept=(y, plain), weights=(Weight(h),),
            forward=(forward,), input_grad=(backward,),
        )  # fmt: skip
    add = memory("add shared expert", 3 * nbytes, sort="add")
    both = y.like("experts and shared expert")
    write.add("sum of experts", "moe_residual", reads=(given, out), writes=(both,), forward=(add,), input_grad=(add,))
    return both
