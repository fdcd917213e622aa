"""How a layer is cut, and the pieces that its blocks share: linears, norms, residuals, their collectives.

Elementwise kernels are counted by the bytes they read and write: `width` bytes an activation, one byte a dropout mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec
from sim.specs.formats import Format
from sim.work.operations import BlockWork, Cause, Collective, Operation, Phase, matmul, memory
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.routing import EVEN, Routing

if TYPE_CHECKING:
    from sim.work.adapters import Adapters


@dataclass(frozen=True, slots=True)
class Cut:
    """What of plan and training the counts depend on. Numbers may be arrays; the flags are categories.

    width : bytes of an activation or weight in compute precision.
    format : of the numbers that linears inside transformer layers multiply; None for those of `width` bytes.
    ep, etp : parts into which a layer's experts are dealt, and into which each is cut (1 or tp).
    slices : parts of the sequence that go through the pipeline one after the other, cut so that they cost the same.
    routing : which experts tokens go to.
    adapters : that alone are trained; None where all weights are.
    packed : length of the sequences that are packed into one, as attention sees it; None where none are.
    """

    tp: Number
    microbatch_size: Number
    sequence_length: Number
    sequence_parallel: bool
    recompute: str
    width: int = 2
    cp: Number = 1
    format: Format | None = None
    slices: Number = 1
    ep: Number = 1
    etp: Number = 1
    adapters: Adapters | None = None
    packed: int | None = None
    routing: Routing = EVEN

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


def linear(
    name: str,
    tokens: Number,
    n: Number,
    k: Number,
    stack: StackSpec,
    width: int,
    cause: Cause = Cause.MATMUL,
    batch: Number = 1.0,
    module: str = "",
) -> tuple[Operation, Operation, Operation]:
    """A linear layer's forward, input-gradient and weight-gradient multiplies.

    With fused accumulation the weight gradient's epilogue reads and writes the main gradient instead of writing a
    fresh 16-bit one.
    """
    fused = stack.fused_gradient_accumulation
    output = 2 * GRADIENT_WIDTH[stack.gradient_precision] if fused else width
    return (
        matmul(name, tokens, n, k, width, batch=batch, cause=cause, module=module),
        matmul(f"{name} input gradient", tokens, k, n, width, batch=batch, cause=cause, module=module),
        matmul(
            f"{name} weight gradient", k, n, tokens, width, batch=batch, cause=cause, output_width=output, module=module
        ),
    )


def gather_in(
    cut: Cut, hidden: int, stack: StackSpec, module: str = ""
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Collectives before a column-parallel linear: (forward, backward)."""
    nbytes = cut.width * cut.tokens * hidden
    if cut.sequence_parallel:
        # The backward gathers the input again (it is kept sharded) beside the input-gradient multiply, and
        # reduce-scatters the result [Korthikanti 2022, section 4.2.2].
        again = (Collective("gather activations again", "all_gather", nbytes, overlapped=True, module=module),)
        scatter = Collective(
            "scatter input gradient", "reduce_scatter", nbytes, overlapped=stack.overlap_tp_backward, module=module
        )
        return (
            (Collective("gather activations", "all_gather", nbytes, module=module),),
            (*(again if stack.regather_sequence else ()), scatter),
        )
    beside = stack.overlap_tp_backward
    return (), (Collective("reduce input gradient", "all_reduce", nbytes, overlapped=beside, module=module),)


def reduce_out(cut: Cut, hidden: int, module: str = "") -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Collectives after a row-parallel linear: (forward, backward)."""
    nbytes = cut.width * cut.tokens * hidden
    if cut.sequence_parallel:
        return (
            (Collective("scatter output", "reduce_scatter", nbytes, module=module),),
            (Collective("gather output gradient", "all_gather", nbytes, module=module),),
        )
    return (Collective("reduce output", "all_reduce", nbytes, module=module),), ()


def norm_work(
    elements: Number, stack: StackSpec, width: int, count: Number = 1, module: str = ""
) -> tuple[Operation, Operation]:
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
            memory("norm", step, kernels=6 * count, sort="norm", module=module),
            memory("norm backward", 2 * step, kernels=12 * count, sort="norm", module=module),
        )
    forward, again = (2, 0) if stack.persistent_norm else (3, 2)
    return (
        memory("norm", forward * width * elements * count, count, sort="norm", module=module),
        # dx (3 tensors), the addition of the residual branch's gradient (3), the weights' gradient (2)
        memory("norm backward", (8 + again) * width * elements * count, 3 * count, sort="norm", module=module),
    )


def norms_of_block(model: ModelSpec, stack: StackSpec, cut: Cut, module: str) -> tuple[Operation, Operation]:
    """Norms of the attention block or of the MLP block: half of the layer's, one but for unusual models."""
    return norm_work(cut.norm_tokens * model.hidden_size, stack, cut.width, model.norms_per_layer / 2, module)


def residual(model: ModelSpec, stack: StackSpec, cut: Cut, bias: bool, module: str) -> tuple[Operation, Operation]:
    """Bias, dropout and residual addition, forward and backward."""
    elements = cut.norm_tokens * model.hidden_size
    w = cut.width
    if not model.dropout:
        kernels = 2 if bias and not stack.fused_bias_activation else 1
        return (
            memory("residual", 3 * w * elements * kernels, kernels, sort="add", module=module),
            memory("bias gradient", w * elements * bias, module=module),
        )
    if stack.fused_bias_activation:
        return (
            memory("dropout and residual", (3 * w + 1) * elements, sort="dropout", module=module),
            memory("dropout backward", (3 * w + 1) * elements, sort="dropout", module=module),
        )
    # bias add (2 tensors), dropout (2 and the mask), addition (3); backward: dropout, bias gradient
    return (
        memory("dropout and residual", (7 * w + 1) * elements, kernels=3, sort="dropout", module=module),
        memory("dropout backward", (2 * w + 1) * elements + w * elements, kernels=2, sort="dropout", module=module),
    )


class WrittenOut(NamedTuple):
    """What an activation written out step by step takes beyond one in a kernel of its own.

    moved : times that kernels read or write it, forward and backward.
    kernels : as many more, forward and backward.
    kept : factors of products that are kept until the backward.
    """

    moved: tuple[int, int]
    kernels: tuple[int, int]
    kept: int


WRITTEN_OUT = WrittenOut(moved=(16, 25), kernels=(7, 10), kept=3)
"""Of 0.5 x (1 + tanh(c (x + a x^3))): forward eight kernels, two of which read two tensors; backward eleven, three of
them for the cube and two that add up the gradients of x. Kept are tanh, 0.5 x and 1 + tanh besides x."""


def mlp_between(name: str, width: int, model: ModelSpec, stack: StackSpec, cut: Cut, module: str) -> BlockWork:
    """An MLP of so many columns between its norm and its residual: up (and gate), activation, down."""
    h, w, tokens, inner = model.hidden_size, cut.width, cut.tokens, width / cut.tp
    inputs = 2 if model.gated_mlp else 1
    up_f, up_i, up_w = linear(f"{name} up", tokens, inputs * inner, h, stack, w, module=module)
    down_f, down_i, down_w = linear(f"{name} down", tokens, h, inner, stack, w, module=module)
    unfused = 1 if stack.fused_bias_activation else 2  # bias first, then the activation
    moved = w * tokens * inner
    # Backward reads the input and the gradient, writes the input's gradient; the bias gradient reads that once more.
    # Step by step a gate's product costs two products backward, and the activation's own gradient after them.
    back = 2 * inputs + 1 + model.mlp_bias + (4 if unfused > 1 and model.gated_mlp else 0)
    kernels = unfused + model.mlp_bias
    again, times = (0, 0), (0, 0)
    if not (stack.fused_activation or model.gated_mlp):
        again, times = WRITTEN_OUT.moved, WRITTEN_OUT.kernels
    act_f = memory(
        "activation", moved * ((inputs + 1) * unfused + again[0]), unfused + times[0], sort="activation", module=module
    )
    act_b = memory(
        "activation backward", moved * (back + again[1]), kernels + times[1], sort="activation", module=module
    )
    gather_f, gather_b = gather_in(cut, h, stack, module)
    reduce_f, reduce_b = reduce_out(cut, h, module)
    return BlockWork(
        forward=Phase((up_f, act_f, down_f), gather_f + reduce_f),
        input_grad=Phase((down_i, act_b, up_i), reduce_b + gather_b),
        weight_grad=Phase((down_w, up_w)),
    )


def gradient_accumulation(params: Number, stack: StackSpec, width: int) -> Phase:
    """Adding a micro-batch's weight gradients to the main gradients."""
    main = GRADIENT_WIDTH[stack.gradient_precision]
    if stack.fused_gradient_accumulation:
        return Phase()  # the weight-gradient multiply's epilogue does it: see linear
    if main > width and not stack.fused_gradient_cast:
        return Phase((memory("cast and accumulate gradients", params * (width + 4 * main), kernels=16, sort="add"),))
    return Phase((memory("accumulate gradients", params * (width + 2 * main), kernels=8, sort="add"),))


def key_value_width(model: ModelSpec, tp: Number) -> Number:
    """Columns of keys and values on one GPU; replicated where there are fewer key/value heads than ranks."""
    per_rank = model.num_kv_heads / tp
    at_least_one = per_rank * (per_rank >= 1) + 1.0 * (per_rank < 1)
    return (model.head_dim + model.value_head_dim) * at_least_one
