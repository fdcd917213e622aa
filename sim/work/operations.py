"""The vocabulary of work: kernels on one GPU, collectives between GPUs, and the operations of a model that need them.

An operation says everything about itself: what it reads, writes and keeps for the backward, which weights it holds, and
what it runs in each pass. Parameters, FLOPs and memory are sums over a list of operations (`sim.work.sums`). Counts
only, no seconds. Numbers may be NumPy arrays: everything broadcasts over tp, micro-batch and the like.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from typing import Any, Literal, NamedTuple

from sim.arrays import Number
from sim.specs import TrainingSpec
from sim.specs.base import STORED

Layout = Literal["nn", "nt", "tn"]
"""Which operand of a multiply lies transposed in memory. nt: a linear's forward x·Wᵀ; nn: its input gradient dy·W; tn:
its weight gradient dyᵀ·x."""


class Cause(IntEnum):
    """What a GPU spends its busy time on: first what operations are for, then what comes with cutting and repeating.

    Arrays of seconds have an axis over causes, on which each cause is its own place.
    """

    MATMUL = 0
    ATTENTION = auto()
    MEMORY_BOUND = auto()
    LOGITS = auto()
    OPTIMIZER = auto()
    RECOMPUTE = auto()
    HOST = auto()
    TENSOR_PARALLEL = auto()
    CONTEXT_PARALLEL = auto()
    EXPERT_PARALLEL = auto()
    BESIDE_TOKENS = auto()
    PIPELINE = auto()
    DATA_PARALLEL = auto()
    STRAGGLERS = auto()
    OFFLOAD = auto()


class Kernel(NamedTuple):
    """One kernel, or several alike, on one GPU.

    kind : matmul (m, n, k, batch), attention (fused; `flop`, `length`, and a head's n columns, which it pads to k),
        state (carried along the sequence; `flop`, `nbytes`), or memory (`nbytes`).
    flop : floating-point operations, a multiply-add as two. [FLOP]
    nbytes : bytes read and written. [bytes]
    kernels : launches.
    host_s : host time besides that of its launches, on a node whose launch_slowdown is 1. [s]
    stall_s : such time before it in which the GPU has nothing to do, since the host waited for it. [s]
    sort : of a memory-bound kernel: copy, add, norm, softmax, activation, dropout, adam, permute, strided, step, apart;
        of one that carries a state, which mixer it is of.
    credited_flop : what a formula for model FLOPs counts of it; None where it equals `flop`. Fused attention that
        skips the masked half runs fewer than it is credited for. [FLOP]
    module : of a layer, by Megatron-Core's names (`sim.specs.plan`): what recomputation and CUDA graphs are asked
        for by. Empty outside layers.
    graphed : in a CUDA graph, so that the host does not launch it.
    turns : times that a multiply of these sizes runs, one after the other, launched together.
    layout : which operand of a multiply lies transposed in memory (`sim.costs.compute.alignment_rate`).
    parts : columns of the matrices of a layer that the multiply is of, where a framework has each in a linear of its
        own: queries', keys' and values'.
    draws : random numbers that a fused attention kernel draws for dropout, one for each score that it computes.
    """

    name: str
    cause: Cause
    kind: Literal["matmul", "attention", "state", "memory"]
    flop: Number = 0.0
    nbytes: Number = 0.0
    m: Number = 0.0
    n: Number = 0.0
    k: Number = 0.0
    batch: Number = 1.0
    length: Number = 0.0
    kernels: Number = 1
    host_s: Number = 0.0
    stall_s: Number = 0.0
    backward: bool = False
    sort: str = ""
    credited_flop: Number | None = None
    module: str = ""
    graphed: bool = False
    turns: Number = 1
    layout: Layout = "nn"
    parts: tuple[Number, ...] = ()
    draws: Number = 0.0

    @property
    def model_flop(self) -> Number:
        """FLOPs that the model's formula credits. [FLOP]"""
        return self.flop if self.credited_flop is None else self.credited_flop


class Collective(NamedTuple):
    """One collective of a tensor-, context- or expert-parallel group.

    kind : send_ring is no collective of a library but sends: every rank hands on to the next one what it got from the
        one before it, until each has seen all pieces.
    nbytes : full buffer: what each rank contributes to an all-reduce, what a gather ends with, what a rank of an
        all-to-all hands out, its own share included, all pieces of a ring of sends. [bytes]
    overlapped : it may run beside the operations that follow it in the same phase.
    copies : of every piece of an all-to-all, where a GPU or a domain that is to have several of them is sent it once.
    limit : (groups that a token may go to, number of groups), where routing is limited to groups; (1, 1) if it is not.
    sms : streaming multiprocessors that its kernels take; None for a library's whose share a profile knows.
    slowdown : share of its time, between domains, that compute beside it loses besides these.
    pace : the highest NVLink rate of the dispatcher's kernels, if known. [bytes/s]
    module, graphed : as in `Kernel`.
    multiply : name of the kernel of the same phase that takes what a gather brings, or gives what a scatter hands out,
        piece by piece. Empty: all of it waits for all of the collective.
    pieces : those.
    beside : module of the same phase that runs beside it, on a stream of its own.
    """

    name: str
    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_ring"]
    nbytes: Number
    overlapped: bool = False
    group: Literal["tp", "cp", "ep"] = "tp"
    copies: int = 1
    limit: tuple[int, int] = (1, 1)
    sms: int | None = None
    slowdown: float = 0.0
    pace: float | None = None
    module: str = ""
    graphed: bool = False
    multiply: str = ""
    pieces: Number = 1
    beside: str = ""


class Tensor(NamedTuple):
    """Numbers that one GPU holds between operations. A copy in fewer bits is a tensor of its own.

    rows, columns : its sizes.
    width : bytes of a number.
    copy_of : the name of the tensor of which it is a copy in fewer bits.
    mean : what a GPU holds of it in the mean of all layers, over what the busiest GPU holds of it in one layer.
    """

    name: str
    rows: Number
    columns: Number
    width: float
    copy_of: str = ""
    mean: Number = 1.0

    @property
    def nbytes(self) -> Number:
        """Its size. [bytes]"""
        return self.rows * self.columns * self.width

    def like(self, name: str, columns: Number | None = None, rows: Number | None = None, width: float = 0.0) -> Tensor:
        """Another tensor, of the same sizes but for those that are given."""
        rows = self.rows if rows is None else rows
        return Tensor(name, rows, self.columns if columns is None else columns, width or self.width, "", self.mean)

    def in_bytes(self, width: float) -> Tensor:
        """The tensor as an operation keeps it: itself, or a copy of so many bytes a number."""
        if width == self.width:
            return self
        return Tensor(f"{self.name} in {width} bytes", self.rows, self.columns, width, self.name, self.mean)


class Weight(NamedTuple):
    """Weights alike on one GPU: matrices, or vectors (biases, gains), which have no columns.

    of_experts : they belong to experts that a router picks from.
    is_table : it is the vocabulary's, of the embedding or the head.
    of_adapters : they are low-rank adapters, which alone are trained where there are any.
    stored : their size in memory, over that of numbers in compute precision.
    """

    rows: Number
    columns: Number | None = None
    count: Number = 1
    of_experts: bool = False
    is_table: bool = False
    of_adapters: bool = False
    stored: float = 1.0

    @property
    def params(self) -> Number:
        """Numbers in all of them."""
        return self.count * self.rows * (1 if self.columns is None else self.columns)


TARGETS = {
    "linear_qkv": (
        "query, key, value", "queries", "queries' latent", "keys' and values' latent", "keys and values from latent",
    ),
    "linear_proj": ("attention output",),
    "linear_fc1": ("MLP up", "experts up", "shared expert up"),
    "linear_fc2": ("MLP down", "experts down", "shared expert down"),
    "in_proj": ("mamba2 in", "gated_delta_net in", "kimi_delta_attention in"),
    "out_proj": ("mamba2 out", "gated_delta_net out", "kimi_delta_attention out"),
}  # fmt: skip
"""Linears that can have low-rank adapters, by Megatron-Core's names, and the names of the operations."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters of one rank beside linears of some names (LoRA); of each linear so many, of which a token meets one.

    The model's weights are frozen, and only narrow matrices beside some linears are trained: y = x W becomes y = x W +
    x A B, with A of k × r and B of r × n (Hu et al. 2021, arXiv:2106.09685, section 4.1). Frozen weights have no
    gradients, nothing to sum over replicas and no optimizer state; gradients of the inputs go through them as before,
    and inputs are kept only for linears with adapters. Experts on a GPU share one adapter (NVIDIA-NeMo/Megatron-Bridge:
    src/megatron/bridge/peft/lora.py, which wraps the grouped linear as one).

    frozen : format in which the matrices lie that they stand beside; None for that of the activations.
    copies : of each of these. Those that are multiplied in 4 bits as they lie are there by rows and by columns, as a
        scale is of neighbours that the multiply adds up (AMD-AGI/Primus:primus/backends/megatron_bridge/recipes/
        mlperf_llama2_70b/pre_quantize_mxfp4.py, MXFP4Quantizer).
    """

    rank: int
    targets: tuple[str, ...]
    count: int = 1
    frozen: str | None = None
    copies: int = 1

    @property
    def linears(self) -> frozenset[str]:
        """Names of the operations beside which they stand."""
        return frozenset(name for target in self.targets for name in TARGETS[target])

    def stored(self, width: float) -> float:
        """Size of a frozen number of a layer's matrices, over that of a number of so many bytes."""
        return self.copies * STORED[self.frozen] / width if self.frozen else 1.0


def adapters_of(training: TrainingSpec) -> Adapters | None:
    """Return the adapters of a training job; None where all weights are trained."""
    if not training.adapter_rank:
        return None
    frozen = training.frozen_precision
    copies = 2 if frozen == training.precision and frozen != "fp8" else 1
    return Adapters(training.adapter_rank, training.adapter_targets, training.num_adapters, frozen, copies)


class Operation(NamedTuple):
    """An operation of a model on one GPU and micro-batch, with all that counting needs of it.

    module : of a layer, as in `Kernel`.
    reads, writes : tensors of its forward.
    kept : tensors that its backward needs.
    weights : what it holds.
    forward, input_grad, weight_grad : kernels of its three passes.
    sent, sent_back : collectives of its forward and of its input gradient.
    scratch : what its backward holds for a moment. [bytes]
    waits : the host waits in its forward for what the GPU counted.
    """

    name: str
    module: str = ""
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    kept: tuple[Tensor, ...] = ()
    weights: tuple[Weight, ...] = ()
    forward: tuple[Kernel, ...] = ()
    input_grad: tuple[Kernel, ...] = ()
    weight_grad: tuple[Kernel, ...] = ()
    sent: tuple[Collective, ...] = ()
    sent_back: tuple[Collective, ...] = ()
    scratch: Number = 0.0
    waits: bool = False


class Block(NamedTuple):
    """Operations of a block of a model (`sim.work.layers.num_blocks`), in the order of the forward.

    around : those that are never recomputed: an embedding, a head, what a module of multi-token prediction has
        before its layer.
    layer : those of a transformer layer.
    """

    around: tuple[Operation, ...] = ()
    layer: tuple[Operation, ...] = ()

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations of the block."""
        return self.around + self.layer


@dataclass(frozen=True, slots=True)
class Phase:
    """What one GPU does in one pass (forward, input gradient, weight gradient) through one block.

    graphs : CUDA graphs that the host launches.
    setups : what the host does besides launching, in launches' time.
    waits : the host waits in it for what the GPU counted.
    """

    operations: tuple[Kernel, ...] = ()
    collectives: tuple[Collective, ...] = ()
    graphs: int = 0
    waits: bool = False
    setups: Number = 0.0

    def __add__(self, other: Phase) -> Phase:
        joined = self.operations + other.operations, self.collectives + other.collectives
        waits = self.waits or other.waits
        return Phase(*joined, self.graphs + other.graphs, waits, self.setups + other.setups)

    def in_graph(self, names: Collection[str], graphs: int) -> Phase:
        """The phase with some modules' operations and collectives in CUDA graphs, of which there are `graphs`."""
        if not any(item.module in names for item in self.operations):
            return self

        def graphed(items: Any) -> Any:
            return tuple([item._replace(graphed=True) if item.module in names else item for item in items])

        return replace(self, operations=graphed(self.operations), collectives=graphed(self.collectives), graphs=graphs)

    def of_modules(self, names: Collection[str]) -> Phase:
        """Operations and collectives of some modules, in their order."""
        items = self.operations, self.collectives
        inside: list[Any] = [tuple(item for item in each if item.module in names) for each in items]
        return Phase(*inside)

    def scaled(self, share: float) -> Phase:
        """The phase with every amount multiplied by `share`: its average where only that share of layers runs it."""
        amounts = ("flop", "nbytes", "kernels", "host_s", "stall_s", "draws")
        kernels = (each._replace(**{name: share * getattr(each, name) for name in amounts}) for each in self.operations)
        collectives = (each._replace(nbytes=share * each.nbytes) for each in self.collectives)
        return Phase(tuple(kernels), tuple(collectives), waits=self.waits, setups=share * self.setups)

    @property
    def items(self) -> tuple[Kernel | Collective, ...]:
        """All operations and collectives."""
        return (*self.operations, *self.collectives)

    @property
    def flop(self) -> Number:
        """Executed. [FLOP]"""
        return sum(operation.flop for operation in self.operations)

    @property
    def model_flop(self) -> Number:
        """Credited by the model's formula. [FLOP]"""
        return sum(operation.model_flop for operation in self.operations)


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Forward, input gradient, weight gradient and recomputed forward of one block, micro-batch and GPU."""

    forward: Phase
    input_grad: Phase
    weight_grad: Phase
    recompute: Phase = Phase()


def matmul(
    name: str,
    m: Number,
    n: Number,
    k: Number,
    width: int,
    *,
    batch: Number = 1.0,
    cause: Cause = Cause.MATMUL,
    output_width: int | None = None,
    layout: Layout = "nn",
) -> Kernel:
    """(m × k) · (k × n), `batch` times, in numbers of `width` bytes; the result moves `output_width` bytes a number."""
    output = width if output_width is None else output_width
    flop, nbytes = 2.0 * m * n * k * batch, batch * (width * (m * k + k * n) + output * m * n)
    return Kernel(name, cause, "matmul", flop=flop, nbytes=nbytes, m=m, n=n, k=k, batch=batch, layout=layout)


def memory(
    name: str, nbytes: Number, kernels: Number = 1, cause: Cause = Cause.MEMORY_BOUND, sort: str = "copy"
) -> Kernel:
    """A kernel that only moves bytes."""
    return Kernel(name, cause, "memory", nbytes=nbytes, kernels=kernels, sort=sort)
