"""The blocks of a model as operations (layers, embedding, head, multi-token prediction), and how stages hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from sim.arrays import Floats, Number
from sim.specs import LayerKind, ModelSpec, ParallelPlan, Scenario, StackSpec
from sim.specs.plan import layers_of_stages
from sim.work.attention import attention
from sim.work.experts import experts, routed
from sim.work.operations import Block, Cause, Collective, Kernel, Operation, Tensor, Weight, memory
from sim.work.pieces import Cut, Writer, accumulation, key_value_width, norm_kernels, vocabulary_rows
from sim.work.recurrent import recurrent


def block_operations(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[Block, ...]:
    """Return the operations of every block of a model, in the order of `sim.work.layers.num_blocks`."""
    layers = list(map(partial(layer_operations, model, stack, cut), model.layer_kinds))
    mtp = Block()
    if model.num_mtp_layers:
        mtp = Block(mtp_operations(model, stack, cut), layers[model.layer_kinds.index(model.mtp_kind)])
    write = Writer(model, stack, cut)
    _look_up(write, write.stream("hidden state"))
    ends = Block(tuple(write.operations)), Block(head_operations(model, stack, cut))
    return (*ends, *(Block(layer=each) for each in layers), mtp)


def layer_operations(
    model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind | None = None
) -> tuple[Operation, ...]:
    """Return the operations of one transformer layer and micro-batch on one GPU, in the order of the forward.

    cut : degrees and sizes; arrays broadcast.
    kind : one of the model's `layer_kinds`. Default: the last layer's.
    """
    kind = kind or model.layer_kinds[0]
    write = Writer(model, stack, cut)
    x = write.stream("layer input")
    y, norms = x, model.norms_of(kind)
    halves = [half for half in (kind.mixer, kind.mlp) if half != "none"]
    for place, half in enumerate(halves):
        # Of one norm the first half's, which both read; of four one before and one after each half.
        here = norms // len(halves) or 1 - place
        x, y = _half(write, kind, half == kind.mixer, here, x, y)
    layer = tuple(write.operations)
    params = sum(weight.params for each in layer for weight in each.weights if not weight.of_adapters)
    casts, casts_back = _casts(write, params, kind)
    write.operations = [Operation("casts", forward=casts, input_grad=casts_back), *layer]
    _accumulate(write, params)
    return tuple(write.operations)


def _half(write: Writer, kind: LayerKind, mixes: bool, norms: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Write a mixer or an MLP with the norms around it and its residual; without a norm it reads what the last read.

    Transformer Engine runs a norm inside the module of the multiply after it; those before latent attention and before
    experts stand alone.
    """
    model = write.model
    if mixes:
        module = alone = "mamba" if kind.recurs else "attn"
        alone = "attn_layernorm" if kind.attends and model.key_value_rank else alone
        residual, bias = module, model.attention_output_bias and kind.attends
    else:
        module, alone = ("moe", "moe_layernorm") if kind.sparse else ("mlp", "mlp")
        residual, bias = f"{module}_residual", model.mlp_bias and not kind.sparse
    y = write.norm(alone, x) if norms else y
    if mixes:
        out = recurrent(write, y, kind) if kind.recurs else attention(write, y, kind)
    else:
        out = experts(write, y) if kind.sparse else write.mlp("MLP", module, y, model.intermediate_size)
    if norms == 2:
        out = write.norm(alone, out)
    return write.residual("mixer residual" if mixes else "MLP residual", residual, x, out, bias), y


def _accumulate(write: Writer, params: Number) -> None:
    """Add a micro-batch's weight gradients to the main gradients, if weights have any."""
    if write.cut.adapters is None:
        kernels = accumulation(params, write.stack, write.cut.width)
        write.add("gradient accumulation", weight_grad=kernels)


def _casts(write: Writer, params: Number, kind: LayerKind) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Scaling linears' inputs, weights and output gradients to 8 or 4 bits, where no other kernel does it in passing.

    Where casts are fused, or a compiler fuses them, a norm writes 8 bits itself; what attention, activations and
    dispatched tokens are, and all gradients, a kernel reads and writes by rows and by columns (NVIDIA/
    TransformerEngine: quantizers of transformer_engine/pytorch/module). To 4 bits norms do not cast. Elsewhere a pass
    finds the largest magnitude (2 bytes a number), another scales and writes (2 + 1); a gradient is written twice, once
    transposed for the weight gradient.
    """
    model, stack, cut = write.model, write.stack, write.cut
    if cut.format is None:
        return (), ()
    h, tokens, copies, inner = model.hidden_size, cut.tokens, cut.tokens, model.intermediate_size / cut.tp
    if kind.sparse:
        copies, inner = routed(model, cut).copies, model.expert_intermediate_size / cut.etp
    elif kind.mlp == "none":
        copies = inner = 0.0
    if kind.recurs:  # columns out of a mixer's first multiply, and into its last
        wide = model.recurrent_widths(kind)
        columns, context = (wide.mixed + wide.gates) / cut.tp, wide.values / cut.tp
    else:
        context = model.num_heads * model.head_dim / cut.tp
        columns = context + key_value_width(model, cut.tp)
    mixes = tokens * (kind.mixer != "none")
    between = 0 if kind.sparse and stack.fused_experts else inner  # else experts' kernels write it as it is read
    inputs = mixes * (h + context) + copies * (h + between)
    gradients = mixes * (columns + h) + copies * (h + write.inputs * between)
    fused = cut.format.norms_cast and (stack.fused_casts or stack.compiled)
    if fused or not cut.format.norms_cast:  # weights are cast once a step
        by_norms = mixes * h + (copies * h if kind.mlp == "dense" else 0.0)
        there, back = cut.format.cast * (inputs - fused * by_norms), cut.format.cast * gradients
        first, kernels = (2 if fused else 4) * cut.format.kernels, 4 * cut.format.kernels
        return (memory("casts", there, first),), (memory("gradients' casts", back, kernels),)
    return (
        (memory("casts to fp8", 5 * (inputs + params), kernels=16),),
        (memory("gradients' casts to fp8", 6 * gradients + inputs, kernels=12),),
    )


def mtp_operations(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[Operation, ...]:
    """Return what a module of multi-token prediction has around its layer.

    It looks the next token up, norms that and the hidden state, projects both to one, and norms what the layer makes of
    it; the head is the model's (DeepSeek-V3, arXiv:2412.19437, section 2.2; NVIDIA/Megatron-LM:megatron/core/
    transformer/multi_token_prediction.py).
    """
    h, w, write = model.hidden_size, cut.width, Writer(model, stack, cut)
    x, both = (write.tensor(name, columns, whole=False) for name, columns in (("hidden state", h), ("both", 2 * h)))
    _look_up(write, x, of_model=False)
    norm, norm_back = norm_kernels(cut.norm_tokens * h, stack, w, 3)
    norms = tuple(Weight(h * (1 + model.norm_bias)) for _ in range(3))
    read = tuple(x.like(name) for name in ("hidden state before", "embedding of the next", "layer's output"))
    join = memory("hidden states joined", 4 * w * cut.norm_tokens * h)
    write.add(
        "multi-token norms", reads=read, writes=(both,), kept=read, weights=norms, forward=(norm, join),
        input_grad=(join, norm_back),
    )  # fmt: skip
    (whole,) = write.gather("", both)
    write.linear(
        "multi-token projection", "", whole, [x.like("projected", h / cut.tp)], [Weight(h / cut.tp, 2 * h)],
        cut_by="columns", own=both, width=w,
    )  # fmt: skip
    write.add("gather", sent=(Collective("gather multi-token projection", "all_gather", w * cut.tokens * h),))
    _accumulate(write, 2 * h * h / cut.tp)
    return tuple(write.operations)


def _look_up(write: Writer, x: Tensor, of_model: bool = True) -> None:
    """Look tokens up in an embedding that is cut by vocabulary, and reduce what is found.

    In that `of_model` there may be a table of positions, a dropout and a norm besides.
    """
    model, stack, cut, h, w = write.model, write.stack, write.cut, write.model.hidden_size, x.width
    elements, learned, trained = cut.tokens * h, model.position == "learned", cut.adapters is None
    lookups = 2 if learned else 1
    mask = (2 * w + 1) * cut.norm_tokens * h if model.dropout else 0.0
    weights = [_table(model, cut)]
    if of_model:
        weights += [Weight(model.max_sequence_length * h)] * learned
        weights += [Weight(h * (1 + model.norm_bias))] * model.embedding_norm
    norm, norm_back = norm_kernels(cut.norm_tokens * h, stack, w)
    kind: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter" if cut.sequence_parallel else "all_reduce"
    gather = Collective("gather embedding gradient", "all_gather", w * elements)
    gradient = memory("embedding gradient", 3 * w * elements * lookups, 2 * lookups)
    write.add(
        "embedding", writes=(x,), weights=tuple(weights),
        kept=(x.like("embedding's mask", width=1),) if model.dropout and of_model else (),
        forward=(memory("embedding", 2 * w * elements * lookups + mask, lookups + 2), *[norm] * model.embedding_norm),
        input_grad=(memory("embedding dropout backward", mask), *[norm_back] * model.embedding_norm),
        weight_grad=(gradient,) if trained else (),
        sent=(Collective("reduce embedding", kind, w * elements),),
        sent_back=(gather,) if cut.sequence_parallel else (),
    )  # fmt: skip
    _accumulate(write, model.vocab_size * h / cut.tp)


def _table(model: ModelSpec, cut: Cut) -> Weight:
    return Weight(model.vocab_size / cut.tp, model.hidden_size, is_table=True)


def head_operations(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[Operation, ...]:
    """Return the final norm, logits and cross-entropy over a vocabulary cut by tp.

    Megatron-LM computes the loss in fp32 from 16-bit logits without gathering them: three all-reduces of one number a
    token (Shoeybi et al. 2019, section 3). A stack without a vocabulary-parallel loss gathers them. Every module of
    multi-token prediction has its tokens' logits and loss besides.
    """
    h, w, predictions, write = model.hidden_size, cut.width, 1 + model.num_mtp_layers, Writer(model, stack, cut)
    tokens, vocabulary = cut.tokens * predictions, vocabulary_rows(model, stack, cut)
    whole = not stack.vocab_parallel_loss
    x, normed = map(write.stream, ("hidden state", "normed"))
    normed = normed.like("normed", rows=cut.norm_tokens * predictions)
    norm, norm_back = norm_kernels(cut.norm_tokens * h, stack, x.width)
    gain = Weight(h * (1 + model.norm_bias))
    write.add(
        "norm", reads=(x,), writes=(normed,), kept=(x,), weights=(gain,), forward=(norm,), input_grad=(norm_back,)
    )
    write.gather("", normed, columns=h * predictions)
    logits = normed.like("logits", vocabulary, rows=tokens, width=w)
    weights = (_table(model, cut), *[Weight(vocabulary)] * model.head_bias)
    read = normed.like("normed, whole", rows=tokens)
    pieces = _pieces(tokens, vocabulary, h, stack)
    write.linear(
        "logits", "", read, [logits], weights, cut_by="columns", own=normed, width=w, cause=Cause.LOGITS,
        batch=pieces, launches=pieces, moved=(0.0, 0.0, w * vocabulary * h * (pieces - 1)),
    )  # fmt: skip
    _loss(write, tokens * (vocabulary * cut.tp if whole else vocabulary))
    statistics = tuple(Collective(f"loss {name}", "all_reduce", 4.0 * tokens) for name in ("maximum", "target", "sum"))
    if whole:
        statistics = (Collective("gather logits", "all_gather", w * tokens * vocabulary * cut.tp),)
    write.add("sums of the loss", sent=statistics)
    _accumulate(write, model.vocab_size * h / cut.tp)
    return tuple(write.operations)


def _pieces(tokens: Number, vocabulary: Number, hidden: int, stack: StackSpec) -> Number:
    """Pieces of the tokens that Liger's loss multiplies one by one, whose logits are about as large as hidden states.

    Each reads the head's weights twice, and reads and writes their gradient (linkedin/Liger-Kernel:
    ops/fused_linear_cross_entropy.py). Other chunked losses have few."""
    if not (stack.chunked_loss and stack.fused_cross_entropy) or stack.fused_gradient_accumulation:
        return 1.0
    rows = 2.0 ** np.ceil(np.log2(np.ceil(tokens / np.ceil(vocabulary / hidden))))
    return np.ceil(tokens / rows)


def _loss(write: Writer, logits: Number) -> None:
    """Cross-entropy of so many logits."""
    w, sort = write.cut.width, "softmax"
    # One pass reads the logits for maximum and sum, one more in the backward writes their gradient in place.
    there, back = (2 * w, 2), (2 * w, 1)
    if not write.stack.fused_cross_entropy:
        # Cast to fp32 (w + 4), maximum (4), subtract in place (8), exponential (8), sum (4), divide in place (8);
        # backward: scale in place (8), cast back (4 + w).
        there, back, sort = (w + 36, 6), (w + 12, 3), "copy"
    forward = memory("cross-entropy", there[0] * logits, there[1], sort=sort)
    backward = memory("cross-entropy backward", back[0] * logits, back[1], sort=sort)
    write.add("cross-entropy", forward=(forward,), input_grad=(backward,))


def assumed(scenario: Scenario) -> Iterator[str]:
    """What is taken of layers that do not attend to the whole sequence, and of sequences longer than the model's."""
    model, length = scenario.model, scenario.training.sequence_length
    if scenario.plan.vocabulary_over_stages and scenario.plan.pp > 1:
        yield "what stages exchange for a vocabulary that is cut over them counts as hidden beside their layers"
    kinds = sorted(model.layer_kinds, key=lambda kind: kind.mixer)
    partial = dict.fromkeys(kind.mixer for kind in kinds if kind.attends and kind.mixer != "full_attention")
    carried = dict.fromkeys(kind.mixer for kind in kinds if not kind.attends and kind.mixer != "none")
    if partial:
        yield f"{' and '.join(partial)} runs at full attention's rate, on the tiles that it computes"
    if carried:
        yield f"{' and '.join(carried)} is priced by its multiplies and bytes; no kernel of it was measured"
    if model.position == "rotary" and length > model.max_sequence_length:
        yield f"sequences of {length:,} tokens exceed the model's {model.max_sequence_length:,}"


EMBEDDING, HEAD, FIRST_KIND = range(3)
"""Places on the axis over blocks; the kinds of layers follow one another, and last comes multi-token prediction."""


def num_blocks(model: ModelSpec) -> int:
    """Return how many blocks a model is made of: embedding, head, the kinds of layers, multi-token prediction.

    Seconds and bytes of blocks stand in this order wherever blocks are an axis. The last is there of all models, and
    held by none that has no such modules.
    """
    return FIRST_KIND + len(model.layer_kinds) + 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual stage: what it holds of the model.

    layers : of each of the model's `layer_kinds`. num_mtp : modules of multi-token prediction.
    first_kind : of the first of its layers, as a place in `layer_kinds`.
    tied : the head has the embedding's table.
    share : of the embedding and of the head that it has: not all where the vocabulary is cut over the stages.
    """

    index: int
    layers: tuple[int, ...]
    has_embedding: bool
    has_head: bool
    num_mtp: int = 0
    first_kind: int = 0
    tied: bool = False
    share: float = 1.0

    @property
    def num_layers(self) -> int:
        """Layers of all kinds, modules of multi-token prediction apart."""
        return sum(self.layers)

    @property
    def part(self) -> Floats:
        """How often it has each block; and behind the blocks, how many of the vocabulary's tables that these need it
        holds once for two of them.

        The embedding and every module of multi-token prediction look tokens up in one table, which a tied head shares.
        """
        readers = self.has_embedding + self.num_mtp
        shared = max(0, readers - 1) + (self.tied and self.has_head and readers > 0)
        ends = self.share * self.has_embedding, self.share * self.has_head
        return np.array([*ends, *self.layers, self.num_mtp, self.share * shared], dtype=float)


def deal_stages(model: ModelSpec, plan: ParallelPlan) -> tuple[Stage, ...]:
    """Deal the layers, in order, to the stages: as the plan's layout says, or evenly.

    Evenly, the first stage holds the embedding, the last the head and multi-token prediction; `embedding_as_layer` and
    `head_as_layer` let them take the place of a layer (Llama 3, arXiv:2407.21783, section 3.3.2). Under
    `uneven_layers` some get one more. Under `vocabulary_over_stages` every stage has as much of both.
    """
    numbers = layers_of_stages(model.num_layers, plan)
    last = len(numbers) - 1
    others = [(index == 0, index == last, model.num_mtp_layers * (index == last)) for index in range(last + 1)]
    share = 1.0 / len(numbers) if plan.vocabulary_over_stages else 1.0
    if plan.vocabulary_over_stages:
        others = [(True, True, 0)] * len(numbers)
    if plan.pipeline_layout:
        others = [("E" in each, "L" in each, each.count("m")) for each in plan.stages_of_layout]
    stages, first = [], 0
    for index, (number, other) in enumerate(zip(numbers, others, strict=True)):
        held = model.kind_of_layer[first : first + number]
        layers = tuple(held.count(kind) for kind in model.layer_kinds)
        kind = model.layer_kinds.index(held[0]) if held else 0
        stages.append(Stage(index, layers, *other, kind, model.tied_embeddings, share))
        first += number
    return tuple(stages)
