"""How a layer is cut, and the operations that its blocks share: norms, linears, MLPs, residuals and their collectives.

Shapes are those of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): column- then row-parallel matrices,
so that a layer needs two all-reduces forward and two backward; with sequence parallelism each becomes a reduce-scatter
and an all-gather, and norms and dropouts are cut along the sequence (Korthikanti et al. 2022, arXiv:2205.05198, section
4.2.2). Elementwise kernels are counted by the bytes that they read and write: `width` bytes an activation, one byte a
dropout mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec, TrainingSpec
from sim.specs.base import FORMATS, Format
from sim.work.operations import Adapters, Cause, Collective, Kernel, Layout, Operation, Tensor, Weight, matmul, memory


@dataclass(frozen=True, slots=True)
class Cut:
    """How a layer is split over GPUs, and the micro-batch it sees. Numbers may be arrays; the flags are categories.

    width : bytes of an activation or weight in compute precision.
    format : of the numbers that linears inside transformer layers multiply; None for those of `width` bytes.
    ep, etp : parts into which a layer's experts are dealt, and into which each is cut (1 or tp).
    slices : parts of the sequence that go through the pipeline one after the other, cut so that they cost the same.
    routing : the job, whose fields say which experts tokens go to; None: all experts get the same.
    adapters : that alone are trained; None where all weights are.
    packed : length of the sequences that are packed into one, as attention sees it; None where none are.
    """

    tp: Number
    microbatch_size: Number
    sequence_length: Number
    sequence_parallel: bool
    width: int = 2
    cp: Number = 1
    format: Format | None = None
    slices: Number = 1
    ep: Number = 1
    etp: Number = 1
    adapters: Adapters | None = None
    packed: int | None = None
    routing: TrainingSpec | None = None

    @property
    def kept(self) -> float:
        """Bytes of a number that a linear keeps of its input for its weights' gradient."""
        return self.format.nbytes if self.format else self.width

    @property
    def tokens(self) -> Number:
        """Tokens that one GPU of a context-parallel group works on at a time: a micro-batch, or a slice of it."""
        return self.microbatch_size * self.sequence_length / (self.cp * self.slices)

    @property
    def norm_tokens(self) -> Number:
        """Tokens that one GPU normalises: all, or its share under sequence parallelism."""
        return self.tokens / self.tp if self.sequence_parallel else self.tokens


WRITTEN_OUT = (16, 25), (7, 10), 3
"""What GELU written out as 0.5 x (1 + tanh(c (x + a x^3))) takes beyond one kernel: times that kernels read or write
it, forward and backward; kernels; factors of products that are kept. Its forward has eight kernels, two of which read
two tensors. Its backward has eleven: three for the cube, two that add up the gradients of x. Besides x it keeps tanh,
0.5 x and 1 + tanh."""


SCATTERED_PIECES = 4
"""Pieces in which the output of a row-parallel multiply is scattered (NVIDIA/TransformerEngine:transformer_engine/
pytorch/module/base.py, initialize_ub: num_splits 4). A gather has one a GPU, which pass round a ring."""


MLP_SMS, MIXER_SMS = (2, 4, 16), (4, 24, 24)
"""Streaming multiprocessors that user buffers take for what tensor-parallel GPUs exchange around linears: a gather of
the input beside its gradient's multiply, a scatter of that gradient beside the weights', the row-parallel linear's
output piece by piece. NVIDIA's presets for 8,192 columns on H100 (NVIDIA/NeMo:nemo/collections/llm/recipes/
tp_overlap_configs/userbuffers.py: fc1_dgrad, fc1_wgrad, fc2_fprop; qkv_dgrad, qkv_wgrad, proj_fprop)."""


class Writer:
    """Writes down operations in the order of the forward. A method is an operation or several that blocks share, and
    returns the tensor that it writes."""

    def __init__(self, model: ModelSpec, stack: StackSpec, cut: Cut) -> None:
        self.model, self.stack, self.cut = model, stack, cut
        self.operations: list[Operation] = []
        self.inputs = 2 if model.gated_mlp else 1
        """Matrices by which an MLP multiplies its input."""

    def add(self, name: str, module: str = "", **said: Any) -> None:
        """Write down an operation; what it runs and sends is of its module."""
        for part in ("forward", "input_grad", "weight_grad", "sent", "sent_back"):
            if module and part in said:
                said[part] = tuple([item._replace(module=module) for item in said[part]])
        self.operations.append(Operation(name, module, **said))

    def tensor(self, name: str, columns: Number, whole: bool = True) -> Tensor:
        """Numbers of the whole sequence, or of the tokens that the GPU norms."""
        cut = self.cut
        return Tensor(name, cut.tokens if whole else cut.norm_tokens, columns, cut.width)

    def stream(self, name: str) -> Tensor:
        """The residual stream at some place, as wide as the embedding's weights."""
        width = 4 if self.stack.autocast else self.cut.width
        return Tensor(name, self.cut.norm_tokens, self.model.hidden_size, width)

    def norm(self, module: str, x: Tensor, columns: Number | None = None, weights: Number | None = None) -> Tensor:
        """Norm a tensor, or so many columns of it, by so many weights (default: one a column, and the biases)."""
        y = x.like(f"{x.name} normed", columns)
        if weights is None:
            weights = y.columns * (1 + self.model.norm_bias)
        forward, backward = norm_kernels(y.rows * y.columns, self.stack, x.width)
        # Step by step a norm keeps its input and its normalised input in fp32 (and would let go of the former in 16
        # bits, but which layouts ran says that it stays).
        # If its weight is frozen, nothing needs the latter.
        copies = 0 if self.stack.fused_norm else (2 if self.cut.adapters is None else 1) - (x.width == 4)
        wide = [y.like(f"{y.name} in fp32: {i}", width=4) for i in range(copies)]
        self.add(
            "norm", module, reads=(x,), writes=(y,), kept=(x, *wide), weights=(Weight(weights),), forward=(forward,),
            input_grad=(backward,),
        )  # fmt: skip
        return y

    @property
    def in_pieces(self) -> bool:
        """Whether linears multiply the sequence piece by piece, as it arrives and leaves."""
        return self.stack.async_tensor_parallel and self.cut.sequence_parallel

    def gather(
        self, module: str, x: Tensor, *others: Tensor, columns: Number | None = None, linear: str = ""
    ) -> tuple[Tensor, ...]:
        """The whole sequence of tensors, so many columns in all, before column-parallel linears.

        The backward gathers them again, since they are kept cut, beside the input-gradient multiply, and
        reduce-scatters the result (Korthikanti et al. 2022, section 4.2.2), by user buffers too where linears run in
        pieces (NVIDIA/TransformerEngine:transformer_engine/pytorch/module/base.py, initialize_ub: bulk). PyTorch's
        backward gains nothing: forwards 29 % faster make steps 8 % faster (discuss.pytorch.org/t/209487).
        """
        cut, stack, tensors = self.cut, self.stack, (x, *others)
        columns = sum(each.columns for each in tensors) if columns is None else columns
        nbytes, beside, pieced = cut.width * cut.tokens * columns, stack.overlap_tp_backward, self.in_pieces and linear
        if not cut.sequence_parallel:
            reduce = Collective("reduce input gradient", "all_reduce", nbytes, overlapped=beside)
            self.add("sum of input gradients", module, sent_back=(reduce,))
            return tensors
        sms = (MLP_SMS if module == "mlp" else MIXER_SMS) if pieced and beside else (None, None)
        again = Collective("gather activations again", "all_gather", nbytes, overlapped=True, sms=sms[0])
        scatter = Collective("scatter input gradient", "reduce_scatter", nbytes, overlapped=beside, sms=sms[1])
        gather = Collective("gather activations", "all_gather", nbytes)
        if pieced:
            gather = gather._replace(multiply=linear, pieces=cut.tp)
        whole = tuple(each.like(f"{each.name} gathered", rows=cut.tokens) for each in tensors)
        forward, back = (self._joined(what, nbytes, bool(pieced)) for what in ("gathered", "to be scattered"))
        self.add(
            "gather", module, reads=tensors, writes=whole, sent=(gather,), forward=forward, input_grad=back,
            sent_back=(again, scatter) if stack.regather_sequence else (scatter,),
        )  # fmt: skip
        return whole

    def reduce(self, module: str, parts: Tensor, linear: str = "") -> Tensor:
        """The sum of what the GPUs' parts of a row-parallel linear give, whole in place, or the GPU's tokens of it."""
        nbytes, pieced = parts.nbytes, self.in_pieces and bool(linear)
        if not self.cut.sequence_parallel:
            self.add("sum of output", module, sent=(Collective("reduce output", "all_reduce", nbytes),))
            return parts
        out = parts.like(f"{parts.name} summed", rows=self.cut.norm_tokens)
        scatter = Collective("scatter output", "reduce_scatter", nbytes)
        gather = Collective("gather output gradient", "all_gather", nbytes)
        if pieced:
            sms = (MLP_SMS if module == "mlp" else MIXER_SMS)[-1]
            scatter = scatter._replace(multiply=linear, pieces=SCATTERED_PIECES, sms=sms)
            gather = gather._replace(multiply=f"{linear} input gradient", pieces=self.cut.tp)
        forward, back = (self._joined(what, nbytes, pieced) for what in ("to be scattered", "gathered"))
        self.add(
            "scatter of output", module, reads=(parts,), writes=(out,), sent=(scatter,), sent_back=(gather,),
            forward=forward, input_grad=back,
        )  # fmt: skip
        return out

    def _joined(self, what: str, nbytes: Number, pieced: bool) -> tuple[Kernel, ...]:
        """A copy that puts pieces of sequences in order behind an all-gather, or before a reduce-scatter.

        Those that are gathered of a single sequence are in order. Those to be scattered are copied all the same
        (pytorch/pytorch:torch/distributed/_functional_collectives.py, _maybe_view_chunk_cat and reduce_scatter_tensor),
        but for a compiler: what compiled forwards gain without these copies leaves no room for them.
        """
        if pieced or not self.stack.copies_pieces:
            return ()
        copied = np.asarray(self.cut.microbatch_size) > 1
        if what != "gathered" and not self.stack.compiled:
            copied = copied | (np.asarray(self.cut.tp) > 1)
        return (memory(f"pieces {what}", 2 * nbytes * copied, sort="joined"),)

    def linear(
        self,
        name: str,
        module: str,
        x: Tensor,
        outs: Sequence[Tensor],
        weights: Sequence[Weight],
        *,
        cut_by: Literal["", "columns", "rows"] = "",
        own: Tensor | None = None,
        width: float | None = None,
        batch: Number = 1.0,
        launches: Number = 1,
        hooks: Number = 0.0,
        moved: tuple[Number, ...] = (0.0, 0.0),
        cause: Cause = Cause.MATMUL,
        exchanged: bool = False,
    ) -> None:
        """Multiply `x`, whose input it keeps for the weights' gradient.

        Frozen it keeps nothing; an adapter beside it does. `hooks` are launches in whose time the host ends the
        gradients of its weights.
        """
        cut, stack = self.cut, self.stack
        n, k, trained = sum(out.columns for out in outs), x.columns, cut.adapters is None
        apart = round(float(np.max(n / weights[0].rows)))
        matrices = sum(each.count for each in weights if each.columns is not None)
        by_itself = bool(module) and not stack.fused_linears and np.all(np.equal(batch, 1)) and matrices > 1
        each_launch = launches * matrices if by_itself else launches
        parts = tuple(out.columns for out in outs) if 1 < len(outs) <= len(weights) else (n / apart,) * apart
        forward, input_grad, weight_grad = (
            kernel._replace(kernels=each_launch, nbytes=kernel.nbytes + besides)
            for kernel, besides in zip(
                linear_kernels(name, x.rows / batch, n, k, stack, cut.width, batch=batch, cause=cause),
                (*moved, 0.0)[:3],
                strict=True,
            )
        )
        forward = forward._replace(parts=parts)
        weight_grad = weight_grad._replace(kernels=weight_grad.kernels + hooks)
        if exchanged and self.in_pieces:
            forward = in_pieces(forward, cut.tp if cut_by == "columns" else SCATTERED_PIECES, cut.width)
            input_grad = in_pieces(input_grad, cut.tp, cut.width) if cut_by == "rows" else input_grad
        sums: tuple[Kernel, ...] = ()
        if by_itself:
            # Autograd adds what the matrices give for their common input; a compiler does so in the kernel after.
            added = 3 * x.width * x.rows * k * (matrices - 1) * (not stack.compiled)
            sums = (memory("input gradients added", added, matrices - 1, sort="step"),)
        weights, first, before, scratch = (
            self.frozen(name, weights, apart * batch) if module else (weights, (), (), 0.0)
        )
        source = own if own is not None and stack.regather_sequence else x
        kept: tuple[Tensor, ...] = (source.in_bytes(cut.kept if width is None else width),)
        casts, gradients = self.autocast(name, x, weights)
        if casts and x.width > cut.width:
            kept = tuple(kept[0]._replace(name=f"{kept[0].name}: {place}") for place in range(matrices))
        self.add(
            name, module, reads=(x,), writes=tuple(outs), weights=tuple(weights), kept=kept if trained else (),
            forward=(*first, *casts, forward), input_grad=(*before, input_grad, *casts[1:], *sums),
            weight_grad=(weight_grad, *gradients) if trained else (), scratch=scratch,
        )  # fmt: skip
        if cut.adapters is not None and name in cut.adapters.linears:
            apart = max(len(outs), apart) if stack.peft_adapters != "no" else 1
            out = outs[0].like(f"{name} narrow", n)
            self.adapter(f"{name} adapter", module, x, out, source, cut_by, weights, apart)

    def autocast(
        self, name: str, x: Tensor, weights: Sequence[Weight]
    ) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """Casts of weights, and of an input by every matrix that multiplies it; and of weights' gradients, to fp32.

        Autocast keeps casts of weights until it is left, at the end of a forward: each micro-batch casts them again,
        and so does a layer that runs again, which enters it anew (pytorch/pytorch:aten/src/ATen/autocast_mode.cpp,
        cached_cast; torch/utils/checkpoint.py, _get_autocast_kwargs). It launches casts without Python, two in the time
        of one kernel (assumed). A compiler casts inputs in the kernels before.
        """
        if not self.stack.autocast:
            return (), ()
        each, matrices = self.cut.width + 4, sum(weight.count for weight in weights if weight.columns is not None)
        params = each * sum(weight.params for weight in weights)
        cast = partial(memory, sort="step")
        casts: tuple[Kernel, ...] = (cast(f"{name} weights cast", params, matrices / 2),)
        if x.width > self.cut.width and not self.stack.compiled:
            casts += (cast(f"{name} inputs cast", each * x.rows * x.columns * matrices, matrices / 2),)
        return casts, (cast(f"{name} gradients cast", params, matrices),)

    def frozen(
        self, name: str, weights: Sequence[Weight], matrices: Number
    ) -> tuple[Sequence[Weight], tuple[Kernel, ...], tuple[Kernel, ...], Number]:
        """Weights as they lie beside adapters; what writes them out to be multiplied, forward and for the gradient of
        the input; and bytes of one written out."""
        adapters, width = self.cut.adapters, self.cut.width
        if adapters is None or adapters.frozen is None:
            return weights, (), (), 0.0
        stored, params = adapters.stored(width), sum(each.params for each in weights if each.columns is not None)
        weights = [each if each.columns is None else each._replace(stored=stored) for each in weights]
        if self.cut.format is not None and (self.cut.format.peak == adapters.frozen or adapters.copies > 1):
            if not self.stack.transposes_frozen or adapters.frozen != "fp8":
                return weights, (), (), 0.0
            turned = memory(f"{name} transposed", 2 * params * width * stored, matrices, sort="copy")
            return weights, (), (turned,), width * stored * params / matrices
        moved = params * width * (1 + stored) / DEQUANTISED_SHARE
        written = memory(f"{name} dequantised", moved, matrices, sort="copy")
        return weights, (written,), (written,), width * params / matrices

    def adapter(
        self,
        name: str,
        module: str,
        x: Tensor,
        out: Tensor,
        source: Tensor,
        cut_by: str,
        beside: Sequence[Weight],
        apart: int = 1,
    ) -> None:
        """Two narrow matrices beside a linear: they keep its input in full width, and what stands between them.

        What they give is scaled and added to what the linear gives, and so is their input's gradient. Tensor
        parallelism cuts them both; beside experts every GPU has one, for all its tokens together, cut as these are.

        Those of PEFT are in fp32. Their input is cast to that, and what they give is cast back; autocast casts their
        input back instead, before they multiply. Gradients go the same ways. In 16 bits nothing is cast.
        """
        cut, adapters, peft = self.cut, self.cut.adapters, self.stack.peft_adapters
        if adapters is None:
            return
        rank, experts = adapters.rank, beside[0].of_experts
        tokens, n, k, degree = x.rows, out.columns, x.columns, cut.etp if experts else cut.tp
        rows, columns = k * (degree if cut_by == "rows" else 1), n * (degree if cut_by == "columns" else 1)
        wide = 4 if peft == "fp32" else cut.width
        shapes: dict[str, tuple[Layout, tuple[tuple[Number, Number, Number], ...]]] = {
            "forward": ("nt", ((tokens, apart * rank, k), (tokens, n, rank))),
            "input_grad": ("nn", ((tokens, rank, n), (tokens, k, apart * rank))),
            "weight_grad": ("tn", ((k, apart * rank, tokens), (rank, n, tokens))),
        }
        passes: dict[str, tuple[Kernel, ...]] = {}
        for each, (layout, several) in shapes.items():
            multiplies = [matmul(name, *shape, wide, layout=layout) for shape in several]
            passes[each] = tuple(
                kernel._replace(kernels=apart, nbytes=kernel.nbytes / NARROW_SHARE) for kernel in multiplies
            )
        moved, launches, sort = (5 * cut.width * n, 5 * cut.width * k), (2, 2), "add"
        kept: tuple[Tensor, ...] = source, source.like(f"{name} narrow", rank)
        if peft != "no":
            cast, back = cut.width + 4, wide != cut.width  # either way
            casting = 0 if peft == "16-bit" else 1 if back else 2
            casts = casting * cast * apart * k
            moved = (
                casts + (3 * wide + 2 * cut.width + back * (cast + 2)) * n,
                casts + 3 * cut.width * apart * k + (2 * wide + back * 2 * cast) * n,
            )
            launches, sort = ((2 + casting + back) * apart, (2 + casting + 2 * back) * apart), "step"
            inputs = source.like(f"{name} input", apart * k).in_bytes(wide) if casting else source
            kept = inputs, source.like(f"{name} narrow", apart * rank).in_bytes(wide)
        stalls = self.stack.adapter_stall_s, 0.0
        for each, nbytes, count, stall_s in zip(("forward", "input_grad"), moved, launches, stalls, strict=True):
            added = memory(f"{name} added", nbytes * tokens, count, sort=sort)
            passes[each] += (added._replace(stall_s=stall_s),)
        weight = Weight(adapters.count * rank, (apart * rows + columns) / degree, of_experts=experts, of_adapters=True)
        self.add(name, module, reads=(x,), kept=kept, weights=(weight,), **passes)

    def mlp(self, name: str, module: str, y: Tensor, width: int) -> Tensor:
        """An MLP of so many columns between its norm and its residual: up (and gate), activation, down."""
        model, cut, h, inputs = self.model, self.cut, self.model.hidden_size, self.inputs
        inner = width / cut.tp
        up, down = (self.tensor(f"{name} {way}", columns) for way, columns in (("up", inputs * inner), ("down", h)))
        biases = [Weight(up.columns)] * model.mlp_bias, [Weight(h)] * model.mlp_bias
        (whole,) = self.gather(module, y, linear=up.name)
        self.linear(
            up.name, module, whole, [up], [Weight(inner, h, inputs), *biases[0]], cut_by="columns", own=y,
            exchanged=True,
        )  # fmt: skip
        activated = self.activation(module, up)
        weights = [Weight(h, inner), *biases[1]]
        self.linear(down.name, module, activated, [down], weights, cut_by="rows", exchanged=True)
        return self.reduce(module, down, linear=down.name)

    def activation(self, module: str, up: Tensor) -> Tensor:
        """The activation of an MLP, with its bias, and the product with its gate."""
        model, stack, inputs = self.model, self.stack, self.inputs
        y = up.like(f"{up.name} activated", up.columns / inputs)
        unfused = 1 if stack.fused_bias_activation else 2  # bias first, then the activation
        wide, moved = 1.0, self.cut.width * y.rows * y.columns
        # Backward reads the input and the gradient, writes the input's gradient; the bias gradient reads that once
        # more. Step by step a gate's product costs two products backward, and the activation's own gradient after them.
        by_hand = unfused > 1 and model.gated_mlp
        more, times, products = (0, 0), (0, 0), int(by_hand)
        if not (stack.fused_activation or model.gated_mlp):
            more, times, products = WRITTEN_OUT
            if stack.autocast:  # which computes powers, and what follows from them, in fp32
                wide, y = 4 / self.cut.width, y.like(y.name, width=4)
        there = (inputs + 1) * unfused - by_hand + wide * more[0]
        back = 2 * inputs + 1 + model.mlp_bias + (4 if by_hand else 0) + wide * more[1]
        launches, sort = unfused + by_hand + model.mlp_bias + times[1], "step" if products else "activation"
        self.add(
            "activation", module, reads=(up,), writes=(y,),
            kept=(self.activation_input(up), *(y.like(f"{y.name}: factor {place}") for place in range(products))),
            forward=(memory("activation", moved * there, unfused + times[0], sort=sort),),
            input_grad=(memory("activation backward", moved * back, launches, sort=sort),),
        )  # fmt: skip
        return y

    def activation_input(self, up: Tensor) -> Tensor:
        """What an activation keeps of its input, which its kernel reads once more in the backward."""
        fewer = self.stack.fp8_activation_inputs and self.model.gated_mlp and self.stack.fused_bias_activation
        return up.in_bytes(FORMATS["fp8"].nbytes) if fewer else up

    def residual(self, name: str, module: str, x: Tensor, out: Tensor, bias: bool) -> Tensor:
        """Bias, dropout and the addition of what a block gives."""
        dropout, fused, w = self.model.dropout, self.stack.fused_bias_activation, self.cut.width
        after, elements, mask = x.like(name), x.rows * x.columns, (x.like(f"{name}: mask", width=1),)
        wider = x.width - w  # autocast adds 16 bits to 32, and casts the gradient back
        cast = (w + x.width) * bool(wider)
        if not dropout:
            kernels = 2 if bias and not fused else 1
            forward = memory("residual", (3 * w * kernels + 2 * wider) * elements, kernels, sort="add")
            backward = memory("bias gradient", (w * bias + cast) * elements)
        else:
            # Unfused: bias (2 tensors), dropout (2 and the mask), addition (3); backward dropout, bias gradient.
            moved, back = (3 if fused else 7) * w + 1 + 2 * wider, 3 * w + 1 + cast
            forward = memory("dropout and residual", moved * elements, 1 if fused else 3, sort="dropout")
            backward = memory("dropout backward", back * elements, 1 if fused else 2, sort="dropout")
        self.add(
            "residual", module, reads=(out, x), writes=(after,), kept=mask if dropout else (), forward=(forward,),
            input_grad=(backward,),
        )  # fmt: skip
        return after


def linear_kernels(
    name: str,
    tokens: Number,
    n: Number,
    k: Number,
    stack: StackSpec,
    width: int,
    batch: Number = 1.0,
    cause: Cause = Cause.MATMUL,
) -> tuple[Kernel, Kernel, Kernel]:
    """Return a linear layer's forward, input-gradient and weight-gradient multiplies.

    With fused accumulation the weight gradient's epilogue reads and writes the main gradient instead of writing a
    fresh 16-bit one.
    """
    output = 2 * stack.gradient_bytes if stack.fused_gradient_accumulation else width
    multiply = partial(matmul, width=width, batch=batch, cause=cause)
    return (
        multiply(name, tokens, n, k, layout="nt"),
        multiply(f"{name} input gradient", tokens, k, n, layout="nn"),
        multiply(f"{name} weight gradient", k, n, tokens, output_width=output, layout="tn"),
    )


NARROW_SHARE = 0.5
"""What multiplies by matrices as narrow as adapters reach of other kernels' bandwidth: few tiles are at work, most of
each empty. Those of Qwen2.5 7B and Llama 3 8B take 14 and 12 ms longer with adapters in 32 bits than in 16 on an H200,
24 and 25 ms on an H100 (calibration/data): twice what their bytes take at that bandwidth."""
DEQUANTISED_SHARE = 0.6
"""What kernels that write 4-bit weights out reach of the bandwidth that other kernels reach. It is set on Unsloth's
adapters of Qwen3 beside NF4 and bf16 on one H100 (invergent-ai/surogate:docs/reference/benchmarks.md). With 14 and 32
billion weights the step grows by what 1.8 TB/s take, with 0.6 billion by 50 us of the host a matrix: one launch."""


def in_pieces(kernel: Kernel, pieces: Number, width: int) -> Kernel:
    """Return a multiply that takes the rows of its left matrix in so many pieces, each with the whole right one.

    Two are on the GPU at a time, on streams of their own, so that one fills the wave that the other leaves open
    (pytorch/pytorch:torch/distributed/_symmetric_memory/__init__.py, _get_backend_stream; of Transformer Engine's
    pieces up to three).
    """
    turns = np.maximum(pieces / 2, 1)
    again = (pieces - 1) * kernel.k * kernel.n * width
    return kernel._replace(
        m=kernel.m / pieces, batch=kernel.batch * pieces / turns, turns=turns, nbytes=kernel.nbytes + again
    )


def norm_kernels(elements: Number, stack: StackSpec, width: float, count: Number = 1) -> tuple[Kernel, Kernel]:
    """Return `count` norms of so many elements each: forward, backward.

    Forward reads x, writes y; backward reads x and the gradient, adds the residual's gradient, writes.

    A kernel that does not keep its row reads x twice forward, and x and the gradient once more each backward
    (NVIDIA/apex:csrc/layer_norm_cuda_kernel.cu against contrib/csrc/layer_norm).
    """
    if not stack.fused_norm:
        # RMSNorm step by step (huggingface/transformers: models/llama/modeling_llama.py, LlamaRMSNorm): cast to fp32
        # (w + 4), square (8), mean (4), scale (8), cast back (4 + w), weight (2 w). Backward: gradients of the weight's
        # product (2 w, 4 w), cast (w + 4), of the scale's (8, 16), of the mean (4) and the square (28, a first power
        # among them), their sum (12), cast back (4 + w), the residual's (3 w). What is in fp32 is not cast.
        casts = 2 * (width < 4)
        step = (2 * width + 20 + casts * (width + 4)) * elements * count
        back = (9 * width + 68 + casts * (width + 4)) * elements * count
        return (
            memory("norm", step, kernels=(6 + casts) * count, sort="step"),
            memory("norm backward", back, kernels=(17 + casts) * count, sort="step"),
        )
    forward, again = (2, 0) if stack.persistent_norm else (3, 2)
    return (
        memory("norm", forward * width * elements * count, count, sort="norm"),
        # dx (3 tensors), the addition of the residual branch's gradient (3), the weights' gradient (2)
        memory("norm backward", (8 + again) * width * elements * count, 3 * count, sort="norm"),
    )


def accumulation(params: Number, stack: StackSpec, width: int) -> tuple[Kernel, ...]:
    """Return what adds a micro-batch's weight gradients to the main gradients."""
    main = stack.gradient_bytes
    if stack.fused_gradient_accumulation:
        return ()  # the weight-gradient multiply's epilogue does it: see linear_kernels
    if main > width and not stack.fused_gradient_cast:
        return (memory("cast and accumulate gradients", params * (width + 4 * main), kernels=16, sort="add"),)
    return (memory("accumulate gradients", params * (width + 2 * main), kernels=8, sort="add"),)


def vocabulary_rows(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits of a token on one GPU: the vocabulary's share, padded as the stack pads. Parameters count unpadded."""
    if stack.vocab_multiple == 1:
        return model.vocab_size / cut.tp
    return stack.vocab_multiple * np.ceil(model.vocab_size / (stack.vocab_multiple * np.asarray(cut.tp)))


def key_value_width(model: ModelSpec, tp: Number) -> Number:
    """Columns of keys and values on one GPU; replicated where there are fewer key/value heads than ranks."""
    per_rank = model.num_kv_heads / tp
    at_least_one = per_rank * (per_rank >= 1) + 1.0 * (per_rank < 1)
    return (model.head_dim + model.value_head_dim) * at_least_one
