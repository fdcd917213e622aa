"""The vocabulary of work: an operation on one GPU, a collective between GPUs. Counts only, no seconds.

Numbers may be NumPy arrays: everything above broadcasts over tp, micro-batch and the like.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from sim.arrays import Number as Number


class Cause(StrEnum):
    """What a GPU spends its busy time on: first what operations are for, then what comes with cutting and repeating."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    MEMORY_BOUND = "memory_bound"
    LOGITS = "logits"
    OPTIMIZER = "optimizer"
    RECOMPUTE = "recompute"
    HOST = "host_wait"
    TENSOR_PARALLEL = "tensor_parallel_comm"
    CONTEXT_PARALLEL = "context_parallel_comm"
    EXPERT_PARALLEL = "expert_parallel_comm"
    DATA_PARALLEL = "data_parallel_comm"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel, or several alike, on one GPU.

    kind : matmul (m, n, k, batch), attention (fused; `flop`, `length`, and k columns of a head), or memory (`nbytes`).
    flop : floating-point operations, a multiply-add as two. [FLOP]
    nbytes : bytes read and written. [bytes]
    kernels : launches.
    host_s : host time besides that of its launches, on a node whose launch_slowdown is 1. [s]
    stall_s : such time before it in which the GPU has nothing to do, since the host waited for it. [s]
    sort : of a memory-bound kernel: copy, add, norm, softmax, activation, dropout, adam, permute,
        strided.
    credited_flop : what a formula for model FLOPs counts of it; None where it equals `flop`. Fused attention that
        skips the masked half runs fewer than it is credited for. [FLOP]
    module : of a layer, by Megatron-Core's names (`sim.specs.modules`): what recomputation and CUDA graphs are asked
        for by. Empty outside layers.
    graphed : in a CUDA graph, so that the host does not launch it.
    """

    name: str
    cause: Cause
    kind: Literal["matmul", "attention", "memory"]
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

    @property
    def model_flop(self) -> Number:
        """FLOPs that the model's formula credits. [FLOP]"""
        return self.flop if self.credited_flop is None else self.credited_flop


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a tensor-, context- or expert-parallel group.

    nbytes : full buffer: what each rank contributes to an all-reduce, what a gather ends with, what a rank of an
        all-to-all hands out, its own share included. [bytes]
    overlapped : it may run beside the operations that follow it in the same phase.
    copies : of every piece of an all-to-all, where a GPU or a domain that is to have several of them is sent it once.
    limit : (groups that copies of one piece go to, all groups of ranks), where it is not any rank.
    sms : streaming multiprocessors that its kernels take; None for a library's whose share a profile knows.
    slowdown : share of its time, between domains, that compute beside it loses besides these.
    pace : that these move over NVLink at most, if it is known. [bytes/s]
    module, graphed : as of an operation.
    """

    name: str
    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
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


@dataclass(frozen=True, slots=True)
class Phase:
    """What one GPU does in one pass (forward, input gradient, weight gradient) through one block.

    graphs : CUDA graphs that the host launches.
    setups : what the host does besides launching, in launches' time.
    waits : the host waits in it for what the GPU counted.
    """

    operations: tuple[Operation, ...] = ()
    collectives: tuple[Collective, ...] = ()
    graphs: int = 0
    waits: bool = False
    setups: Number = 0.0

    def __add__(self, other: Phase) -> Phase:
        return Phase(
            self.operations + other.operations,
            self.collectives + other.collectives,
            self.graphs + other.graphs,
            self.waits or other.waits,
            self.setups + other.setups,
        )

    def in_graph(self, names: Collection[str], graphs: int) -> Phase:
        """With operations and collectives of some modules in CUDA graphs, of which the host launches so many."""
        if not any(item.module in names for item in self.operations):
            return self
        return Phase(
            tuple(replace(item, graphed=True) if item.module in names else item for item in self.operations),
            tuple(replace(item, graphed=True) if item.module in names else item for item in self.collectives),
            graphs,
            self.waits,
            self.setups,
        )

    def of_modules(self, names: Collection[str]) -> Phase:
        """Operations and collectives of some modules, in their order."""
        return Phase(
            tuple(operation for operation in self.operations if operation.module in names),
            tuple(collective for collective in self.collectives if collective.module in names),
        )

    def scaled(self, share: float) -> Phase:
        """As much as a share of it: what it is on average where only some layers do it."""
        return Phase(
            tuple(
                replace(
                    item,
                    flop=share * item.flop,
                    nbytes=share * item.nbytes,
                    kernels=share * item.kernels,
                    host_s=share * item.host_s,
                    stall_s=share * item.stall_s,
                )
                for item in self.operations
            ),
            tuple(replace(item, nbytes=share * item.nbytes) for item in self.collectives),
            waits=self.waits,
            setups=share * self.setups,
        )

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
    module: str = "",
) -> Operation:
    """(m × k) · (k × n), `batch` times, in numbers of `width` bytes; the result moves `output_width` bytes a number."""
    output = width if output_width is None else output_width
    return Operation(
        name,
        cause,
        "matmul",
        flop=2.0 * m * n * k * batch,
        nbytes=batch * (width * (m * k + k * n) + output * m * n),
        m=m,
        n=n,
        k=k,
        batch=batch,
        module=module,
    )


def memory(
    name: str,
    nbytes: Number,
    kernels: Number = 1,
    cause: Cause = Cause.MEMORY_BOUND,
    sort: str = "copy",
    module: str = "",
) -> Operation:
    """A kernel that only moves bytes."""
    return Operation(name, cause, "memory", nbytes=nbytes, kernels=kernels, sort=sort, module=module)
