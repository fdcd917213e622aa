"""One transformer layer, the embedding and the head as operations on one GPU of a tensor-parallel group.

Shapes are those of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): column- then row-parallel
matrices, so that a layer needs two all-reduces forward and two backward; with sequence parallelism each becomes a
reduce-scatter and an all-gather, and norms and dropouts are cut along the sequence (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2).

Elementwise kernels are counted by the bytes they read and write: `width` bytes an activation, one byte a dropout mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.specs import ModelSpec, StackSpec
from sim.work.operations import BlockWork, Cause, Collective, Number, Operation, Phase, matmul, memory
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.params import layer_params


@dataclass(frozen=True, slots=True)
class Cut:
    """What of plan and training the counts depend on. Numbers may be arrays; the flags are categories.

    width : bytes of an activation or weight in compute precision.
    fp8 : the linear layers inside transformer layers multiply 8-bit numbers.
    slices : parts of the sequence that go through the pipeline one after the other, cut so that they cost the same.
    """

    tp: Number
    microbatch_size: Number
    sequence_length: Number
    sequence_parallel: bool
    recompute: str
    width: int = 2
    cp: Number = 1
    fp8: bool = False
    slices: Number = 1

    @property
    def tokens(self) -> Number:
        """Tokens that one GPU of a context-parallel group works on at a time: a micro-batch, or a slice of it."""
        return self.microbatch_size * self.sequence_length / (self.cp * self.slices)

    @property
    def norm_tokens(self) -> Number:
        """Tokens that one GPU normalises: all, or its share under sequence parallelism."""
        return self.tokens / self.tp if self.sequence_parallel else self.tokens


def layer_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """One transformer layer, one micro-batch, on one GPU.

    Parameters
    ----------
    model, stack : records
    cut : Cut
        Degrees and sizes; arrays broadcast.

    Returns
    -------
    BlockWork
        Forward, input gradient, weight gradient, and what `cut.recompute` runs again in the backward.
    """
    return layer_works(model, stack, cut, (cut.recompute,))[0]


def layer_works(model: ModelSpec, stack: StackSpec, cut: Cut, recomputes: Sequence[str]) -> list[BlockWork]:
    """As `layer_work`, for several ways to recompute instead of the cut's own; they share all other phases."""
    core = _attention_core(model, stack, cut)
    attention = _projections_around(core, model, stack, cut)
    mlp = _mlp(model, stack, cut)
    forward = attention.forward + mlp.forward
    accumulate = _gradient_accumulation(layer_params(model) / cut.tp, stack, cut.width)
    cast_f, cast_b = _casts(model, stack, cut)
    attention = BlockWork(cast_f + attention.forward, cast_b + attention.input_grad, attention.weight_grad)
    input_grad = mlp.input_grad + attention.input_grad
    weight_grad = mlp.weight_grad + attention.weight_grad + accumulate
    again = {"none": Phase(), "selective": core.forward, "per_op": _per_op(forward), "full": forward}
    return [BlockWork(forward, input_grad, weight_grad, again[each]) for each in recomputes]


def _per_op(forward: Phase) -> Phase:
    """What torchtitan's selective activation checkpointing runs again: every other multiply, every cheap kernel."""
    multiplies = [item for item in forward.operations if item.kind == "matmul" and item.cause is Cause.MATMUL]
    cheap = [item for item in forward.operations if item.kind == "memory" and item.cause is Cause.MEMORY_BOUND]
    return Phase((*multiplies[1::2], *cheap), tuple(item for item in forward.collectives if item.kind == "all_gather"))


def _casts(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[Phase, Phase]:
    """Scaling linears' inputs, weights and output gradients to 8 bits, where no other kernel does it in passing.

    A pass finds the largest magnitude (2 bytes a number), another scales and writes (2 + 1); a gradient is written
    twice, once transposed for the weight gradient.
    """
    if not cut.fp8 or stack.fused_casts:
        return Phase(), Phase()
    h, tokens = model.hidden_size, cut.tokens
    query, inner = model.num_heads * model.head_dim / cut.tp, model.intermediate_size / cut.tp
    inputs = tokens * (2 * h + query + inner)
    gradients = tokens * (query + key_value_width(model, cut.tp) + 2 * h + (2 if model.gated_mlp else 1) * inner)
    weights = layer_params(model) / cut.tp
    return (
        Phase((memory("casts to fp8", 5 * (inputs + weights), kernels=16),)),
        Phase((memory("gradients' casts to fp8", 6 * gradients + inputs, kernels=12),)),
    )


def _linear(
    name: str, tokens: Number, n: Number, k: Number, stack: StackSpec, width: int, cause: Cause = Cause.MATMUL
) -> tuple[Operation, Operation, Operation]:
    """A linear layer's forward, input-gradient and weight-gradient multiplies.

    With fused accumulation the weight gradient's epilogue reads and writes the main gradient instead of writing a
    fresh 16-bit one.
    """
    fused = stack.fused_gradient_accumulation
    output = 2 * GRADIENT_WIDTH[stack.gradient_precision] if fused else width
    return (
        matmul(name, tokens, n, k, width, cause=cause),
        matmul(f"{name} input gradient", tokens, k, n, width, cause=cause),
        matmul(f"{name} weight gradient", k, n, tokens, width, cause=cause, output_width=output),
    )


def _gather_in(cut: Cut, hidden: int, stack: StackSpec) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Collectives before a column-parallel linear: (forward, backward)."""
    nbytes = cut.width * cut.tokens * hidden
    if cut.sequence_parallel:
        # The backward gathers the input again (it is kept sharded) beside the input-gradient multiply, and
        # reduce-scatters the result [Korthikanti 2022, section 4.2.2].
        again = (Collective("gather activations again", "all_gather", nbytes, overlapped=True),)
        scatter = Collective("scatter input gradient", "reduce_scatter", nbytes, overlapped=stack.overlap_tp_backward)
        return (
            (Collective("gather activations", "all_gather", nbytes),),
            (*(again if stack.regather_sequence else ()), scatter),
        )
    return (), (Collective("reduce input gradient", "all_reduce", nbytes, overlapped=stack.overlap_tp_backward),)


def _reduce_out(cut: Cut, hidden: int) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Collectives after a row-parallel linear: (forward, backward)."""
    nbytes = cut.width * cut.tokens * hidden
    if cut.sequence_parallel:
        return (
            (Collective("scatter output", "reduce_scatter", nbytes),),
            (Collective("gather output gradient", "all_gather", nbytes),),
        )
    return (Collective("reduce output", "all_reduce", nbytes),), ()


def _norm(elements: Number, stack: StackSpec, width: int, count: Number = 1) -> tuple[Operation, Operation]:
    """`count` norms of so many elements each.

    Forward reads x, writes y; backward reads x and the gradient, adds the residual's gradient, writes.

    A kernel that does not keep its row reads x twice forward, and x and the gradient once more each backward
    (NVIDIA/apex:csrc/layer_norm_cuda_kernel.cu against contrib/csrc/layer_norm).
    """
    if not stack.fused_norm:
        # RMSNorm step by step: cast to fp32 (w + 4), square (8), mean (4), scale (8), cast back (4 + w), weight (2 w);
        # autograd's backward runs each step's gradient, about twice the bytes.
        step = (4 * width + 28) * elements * count
        return (
            memory("norm", step, kernels=6 * count, sort="norm"),
            memory("norm backward", 2 * step, kernels=12 * count, sort="norm"),
        )
    forward, again = (2, 0) if stack.persistent_norm else (3, 2)
    return (
        memory("norm", forward * width * elements * count, count, sort="norm"),
        # dx (3 tensors), the addition of the residual branch's gradient (3), the weights' gradient (2)
        memory("norm backward", (8 + again) * width * elements * count, kernels=3 * count, sort="norm"),
    )


def _norms_of_block(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[Operation, Operation]:
    """Norms of the attention block or of the MLP block: half of the layer's, one but for unusual models."""
    return _norm(cut.norm_tokens * model.hidden_size, stack, cut.width, model.norms_per_layer / 2)


def _residual(model: ModelSpec, stack: StackSpec, cut: Cut, bias: bool) -> tuple[Operation, Operation]:
    """Bias, dropout and residual addition, forward and backward."""
    elements = cut.norm_tokens * model.hidden_size
    w = cut.width
    if not model.dropout:
        kernels = 2 if bias and not stack.fused_bias_activation else 1
        return memory("residual", 3 * w * elements * kernels, kernels, sort="add"), memory(
            "bias gradient", w * elements * bias
        )
    if stack.fused_bias_activation:
        return (
            memory("dropout and residual", (3 * w + 1) * elements, sort="dropout"),
            memory("dropout backward", (3 * w + 1) * elements, sort="dropout"),
        )
    # bias add (2 tensors), dropout (2 and the mask), addition (3); backward: dropout, bias gradient
    return (
        memory("dropout and residual", (7 * w + 1) * elements, kernels=3, sort="dropout"),
        memory("dropout backward", (2 * w + 1) * elements + w * elements, kernels=2, sort="dropout"),
    )


def _attention_core(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Scores, softmax, dropout and values: what selective recomputation runs again."""
    s, b, d, w = cut.sequence_length, cut.microbatch_size, model.head_dim, cut.width
    heads = model.num_heads / cut.tp * b
    rows = s / (cut.cp * cut.slices)  # queries on this GPU; the keys and values of the whole sequence come by
    # Two multiplies of rows × s × d a head forward, four backward.
    full = 4.0 * rows * s * d * heads
    exchange_f, exchange_b = _exchange_keys(model, stack, cut)
    credit = full
    if stack.attention == "flash":
        # Of the scores, what a kernel that skips the masked half computes; the slowest rank counts.
        skipped = 1.0
        if stack.causal_attention:
            skipped = 0.5 if stack.balanced_context else 1.0 - 0.5 / cut.cp
        nbytes = w * cut.tokens * (2 * model.num_heads * d / cut.tp + key_value_width(model, cut.tp))

        def fused(name: str, times: float, credited: float, backward: bool) -> Operation:
            return Operation(
                name, Cause.ATTENTION, "attention", flop=times * full * skipped, nbytes=nbytes * (2 if backward else 1),
                batch=heads, length=s, backward=backward, credited_flop=credited * credit,
            )  # fmt: skip

        # The backward recomputes the scores: five multiplies instead of four (Dao 2023, arXiv:2307.08691, section 3.1).
        return BlockWork(
            forward=Phase((fused("flash attention", 1.0, 1.0, False),), exchange_f),
            input_grad=Phase((fused("flash attention backward", 2.5, 2.0, True),), exchange_b),
            weight_grad=Phase(),
        )

    scores = heads * rows * s
    # Megatron's fused kernel takes four sequences and heads at a time (megatron/model/fused_softmax.py).
    gives_way = np.asarray(heads) % 4 != 0
    # Scale, mask, softmax; where the fused kernel gives way, also a cast to fp32 and one back.
    softmax_passes = 1 + 4 * gives_way if stack.fused_softmax else 3
    attention = Cause.ATTENTION
    forward = [
        matmul("scores", rows, s, d, w, batch=heads, cause=attention),
        memory("softmax", 2 * w * scores * softmax_passes, softmax_passes, attention, sort="softmax"),
    ]
    backward = [
        matmul("values' gradient", s, d, rows, w, batch=heads, cause=attention),
        matmul("probabilities' gradient", rows, s, d, w, batch=heads, cause=attention),
        memory(
            "softmax backward",
            3 * w * scores + 2 * w * scores * (softmax_passes - 1),
            softmax_passes,
            attention,
            sort="softmax",
        ),
        matmul("queries' gradient", rows, d, s, w, batch=heads, cause=attention),
        matmul("keys' gradient", s, d, rows, w, batch=heads, cause=attention),
    ]
    if model.dropout:
        forward.append(memory("attention dropout", (2 * w + 1) * scores, cause=attention, sort="dropout"))
        backward.append(memory("attention dropout backward", (2 * w + 1) * scores, cause=attention, sort="dropout"))
    forward.append(matmul("values", rows, d, s, w, batch=heads, cause=attention))
    return BlockWork(Phase(tuple(forward), exchange_f), Phase(tuple(backward), exchange_b), Phase())


def _exchange_keys(
    model: ModelSpec, stack: StackSpec, cut: Cut
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Keys and values of the other context-parallel ranks, forward; they and their gradients, backward.

    Passed round a ring beside the attention over what has arrived (Liu et al. 2023, arXiv:2310.01889), or gathered
    before it (Llama 3, arXiv:2407.21783, section 3.3.2): the same bytes.
    """
    if np.max(cut.cp) == 1:
        return (), ()
    nbytes = cut.width * cut.microbatch_size * cut.sequence_length * key_value_width(model, cut.tp)
    beside = stack.overlap_context

    def exchange(name: str, kind: Literal["all_gather", "reduce_scatter"]) -> Collective:
        return Collective(name, kind, nbytes, overlapped=beside, group="cp")

    keys = exchange("exchange keys and values", "all_gather")
    return (keys,), (keys, exchange("exchange their gradients", "reduce_scatter"))


def _projections_around(core: BlockWork, model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, query-key-value projection, the attention core, output projection, residual."""
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
    query = model.num_heads * model.head_dim / cut.tp
    key_value = key_value_width(model, cut.tp)
    norm_f, norm_b = _norms_of_block(model, stack, cut)
    res_f, res_b = _residual(model, stack, cut, model.attention_output_bias)
    qkv_f, qkv_i, qkv_w = _linear("query, key, value", tokens, query + key_value, h, stack, w)
    out_f, out_i, out_w = _linear("attention output", tokens, h, query, stack, w)
    # One pass over queries and keys; step by step: negate, join, two products and a sum.
    passes, kernels = (2, 1) if stack.fused_rotary else (10, 10)
    rotary = memory("rotary positions", passes * w * tokens * (query + key_value / 2), kernels)
    # The heads are laid out anew around the core: one read and one write of the context.
    permute = memory("head layout", 2 * w * tokens * query)
    rotations = (rotary,) if model.position == "rotary" else ()
    qk_f, qk_b = _query_key_norms(tokens * (query + key_value / 2), model, stack, w)
    gather_f, gather_b = _gather_in(cut, h, stack)
    reduce_f, reduce_b = _reduce_out(cut, h)
    return BlockWork(
        forward=Phase((norm_f, qkv_f, *qk_f, *rotations), gather_f)
        + core.forward
        + Phase((permute, out_f, res_f), reduce_f),
        input_grad=Phase((res_b, out_i, permute), reduce_b)
        + core.input_grad
        + Phase((*rotations, *qk_b, qkv_i, norm_b), gather_b),
        weight_grad=Phase((out_w, qkv_w)),
    )


def _query_key_norms(
    elements: Number, model: ModelSpec, stack: StackSpec, width: int
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Norms of queries and keys where there are any, a kernel each: forward, backward."""
    if model.query_key_norm == "none":
        return (), ()
    forward, backward = _norm(elements / 2, stack, width, 2)
    return (forward,), (backward,)


def key_value_width(model: ModelSpec, tp: Number) -> Number:
    """Columns of keys and values on one GPU; replicated where there are fewer key/value heads than ranks."""
    per_rank = model.num_kv_heads / tp
    at_least_one = per_rank * (per_rank >= 1) + 1.0 * (per_rank < 1)
    return 2 * model.head_dim * at_least_one


def _mlp(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, up (and gate), activation, down, residual."""
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
    inner = model.intermediate_size / cut.tp
    inputs = 2 if model.gated_mlp else 1
    norm_f, norm_b = _norms_of_block(model, stack, cut)
    res_f, res_b = _residual(model, stack, cut, model.mlp_bias)
    up_f, up_i, up_w = _linear("MLP up", tokens, inputs * inner, h, stack, w)
    down_f, down_i, down_w = _linear("MLP down", tokens, h, inner, stack, w)
    unfused = 1 if stack.fused_bias_activation else 2  # bias first, then the activation
    act_f = memory("activation", w * tokens * inner * (inputs + 1) * unfused, unfused, sort="activation")
    # Backward reads the input and the gradient, writes the input's gradient; the bias gradient reads that once more.
    # Step by step a gate's product costs two products backward, and the activation's own gradient after them.
    back = 2 * inputs + 1 + model.mlp_bias + (4 if unfused > 1 and model.gated_mlp else 0)
    act_b = memory("activation backward", w * tokens * inner * back, unfused + model.mlp_bias, sort="activation")
    gather_f, gather_b = _gather_in(cut, h, stack)
    reduce_f, reduce_b = _reduce_out(cut, h)
    return BlockWork(
        forward=Phase((norm_f, up_f, act_f, down_f, res_f), gather_f + reduce_f),
        input_grad=Phase((res_b, down_i, act_b, up_i, norm_b), reduce_b + gather_b),
        weight_grad=Phase((down_w, up_w)),
    )


def _gradient_accumulation(params: Number, stack: StackSpec, width: int) -> Phase:
    """Adding a micro-batch's weight gradients to the main gradients."""
    main = GRADIENT_WIDTH[stack.gradient_precision]
    if stack.fused_gradient_accumulation:
        return Phase()  # the weight-gradient multiply's epilogue does it: see _linear
    if main > width and not stack.fused_gradient_cast:
        return Phase((memory("cast and accumulate gradients", params * (width + 4 * main), kernels=16, sort="add"),))
    return Phase((memory("accumulate gradients", params * (width + 2 * main), kernels=8, sort="add"),))


def embedding_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Token (and position) embedding, cut by vocabulary; the reduction after it; its dropout."""
    h, w = model.hidden_size, cut.width
    elements = cut.tokens * h
    lookups = 2 if model.position == "learned" else 1
    mask = (2 * w + 1) * cut.norm_tokens * h if model.dropout else 0.0
    norms = _norm(cut.norm_tokens * h, stack, w) if model.embedding_norm else ()
    reduction = Collective(
        "reduce embedding", "reduce_scatter" if cut.sequence_parallel else "all_reduce", w * elements
    )
    backward_gather = (
        (Collective("gather embedding gradient", "all_gather", w * elements),) if cut.sequence_parallel else ()
    )
    return BlockWork(
        forward=Phase((memory("embedding", 2 * w * elements * lookups + mask, lookups + 2), *norms[:1]), (reduction,)),
        input_grad=Phase((memory("embedding dropout backward", mask), *norms[1:]), backward_gather),
        weight_grad=Phase((memory("embedding gradient", 3 * w * elements * lookups, 2 * lookups),))
        + _gradient_accumulation(model.vocab_size * h / cut.tp, stack, w),
    )


def head_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Final norm, logits and cross-entropy over a vocabulary cut by tp; never recomputed.

    Megatron-LM computes the loss in fp32 from 16-bit logits without gathering them: three all-reduces of one number a
    token (Shoeybi et al. 2019, section 3). A stack without a vocabulary-parallel loss gathers them.
    """
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
    vocabulary = model.vocab_size / cut.tp
    whole = not stack.vocab_parallel_loss
    logits = tokens * (model.vocab_size if whole else vocabulary)
    norm_f, norm_b = _norm(cut.norm_tokens * h, stack, w)
    logit_f, logit_i, logit_w = _linear("logits", tokens, vocabulary, h, stack, w, cause=Cause.LOGITS)
    if stack.fused_cross_entropy:
        # One pass reads the logits for maximum and sum, one more in the backward writes their gradient in place.
        loss_f, loss_b = (
            memory("cross-entropy", 2 * w * logits, 2, sort="softmax"),
            memory("cross-entropy backward", 2 * w * logits, 1, sort="softmax"),
        )
    else:
        # Cast to fp32 (w + 4), maximum (4), subtract in place (8), exponential (8), sum (4), divide in place (8);
        # backward: scale in place (8), cast back (4 + w).
        loss_f = memory("cross-entropy", (w + 36) * logits, 6)
        loss_b = memory("cross-entropy backward", (w + 12) * logits, 3)
    gather_f, gather_b = _gather_in(cut, h, stack)
    statistics = tuple(Collective(f"loss {name}", "all_reduce", 4.0 * tokens) for name in ("maximum", "target", "sum"))
    if whole:
        statistics = (Collective("gather logits", "all_gather", w * logits),)
    weights = model.vocab_size * h / cut.tp
    return BlockWork(
        forward=Phase((norm_f, logit_f, loss_f), gather_f + statistics),
        input_grad=Phase((loss_b, logit_i, norm_b), gather_b),
        weight_grad=Phase((logit_w,)) + _gradient_accumulation(weights, stack, w),
    )
