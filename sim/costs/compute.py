"""Seconds of the operations of one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.arrays import Number
from sim.costs.efficiency import STATE_SHARE, attention_efficiency, clock_gain, gemm_time
from sim.specs import GpuSpec, Profile, Scenario
from sim.specs.formats import FORMATS
from sim.work.operations import Cause, Kernel, Phase

LAUNCHES_OF_GRAPH = 3
"""Host time of one CUDA graph of a layer, in kernel launches: the copy of its input to where the graph reads it, the
launch, and the autograd call around both (NVIDIA/TransformerEngine:transformer_engine/pytorch/graph.py, Graphed). The
three are counted; that each takes as long as a kernel's launch is an assumption."""
GRAPH_LAUNCH_S = 2e-6
"""Time between kernels of a CUDA graph, where no profile has measured it: assumed, the floor of kernel times. [s]"""
BYTES_PER_CLOCK = {"step": 19.0, "rotary": 6.2, "narrow adam": 11.0}
"""Bytes that a streaming multiprocessor moves a clock, at most, in kernels that are bound by their instructions before
the memory: PyTorch's elementwise steps, with casts and broadcasts; those of rotary positions, whose operands lie apart;
Adam on 16-bit states, which computes as much for each number as on wider ones. Set on the kernels of training steps on
H100 and H200, which have the same multiprocessors and differ in their memory (calibration/data/h100-steps.csv,
h200-steps.csv). [bytes]"""


def issue_clock(gpu: GpuSpec) -> float:
    """Clock of the multiprocessors by their 32-bit peak, of 128 lanes each, or of 64 if it came out below 1.2 GHz; zero
    if the GPU does not say that peak.  [Hz]"""
    clock = gpu.peak_flop_per_s.get("fp32", 0.0) / (2 * 128 * gpu.num_sms)
    return clock if clock > 1.2e9 else 2 * clock


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """A GPU with its profile: what turns operations into seconds."""

    gpu: GpuSpec
    profile: Profile
    precision: str
    width: float
    kernel_launch_s: float = 0.0
    backward_launch_s: float = 0.0
    collective_launch_s: float = 0.0
    graph_launch_s: float = 0.0
    host_slowdown: float = 1.0
    """Times that the host takes for what it does besides launching; zero where a graph holds it."""
    elementwise_rate: float = 1.0
    flash_version: str = "2"
    fp8_attention: bool = False
    """Fused attention multiplies in 8 bits where linears multiply in 8 or 4."""
    wide_share: float = 0.0
    """Share of the layers whose multiplies stay in 16 bits."""
    clock: Number = 1.0
    """The multiplies' clock, over the one at which the profile's were measured."""
    notes: set[str] = field(default_factory=set)
    """What was extrapolated; shown with the answer."""

    def memory_bandwidth(self, sort: str) -> float:
        """Bandwidth that memory-bound kernels of a sort reach; a library's copy of whole rows is as fast in any stack.
        [bytes/s]"""
        rate = 1.0 if sort == "joined" else self.elementwise_rate
        moved = self.gpu.memory_bandwidth_bytes_per_s * self.profile.memory.share(sort)
        if issued := BYTES_PER_CLOCK.get(sort, 0.0) * self.gpu.num_sms * issue_clock(self.gpu):
            moved /= math.hypot(1.0, moved / issued)
        return moved * rate

    def precision_of(self, operation: Kernel) -> str:
        """Matrix-unit precision: in 8 and 4 bits the head stays in 16 (or 32), and so do attention cores but where the
        stack has them in 8."""
        narrow = FORMATS.get(self.precision)
        if narrow is None:
            return self.precision
        if self.fp8_attention and operation.kind == "attention":
            return "fp8"
        wide = "fp32" if self.width == 4 else "bf16"
        return narrow.peak if operation.cause is Cause.MATMUL else wide

    def peak(self, operation: Kernel) -> float:
        """The peak that bounds an operation's FLOPs.  [FLOP/s]"""
        return self.gpu.peak(self.precision_of(operation))

    def phase_time(self, phase: Phase) -> dict[Cause, Number]:
        """Time of a phase's operations on the GPU by cause, stalls before them as the host's; without launches.  [s]"""
        by_cause: dict[Cause, Number] = {}
        gemm, memory = self.profile.gemm, self.profile.memory.efficiency
        for item in phase.operations:
            if item.kind == "matmul":
                self._note_range(item)
                m, n, k, batch, turns, seconds = item.m, item.n, item.k, item.batch, item.turns, 0.0
                for precision, share in self._precisions(item):
                    reach, gpu = gemm.of(precision), self.gpu
                    took = gemm_time(
                        m, n, k, batch, precision, self.width, gpu, reach, memory, item.nbytes / turns, item.layout
                    )
                    seconds = seconds + share * turns * took / self.clock
            else:
                seconds = self._moving_s(item)
            by_cause[item.cause] = by_cause.get(item.cause, 0.0) + seconds
            if item.stall_s and not item.graphed:
                by_cause[Cause.HOST] = by_cause.get(Cause.HOST, 0.0) + self.host_slowdown * item.stall_s
        return by_cause

    def at_its_clock(self, phases: Iterable[Phase]) -> ComputeModel:
        """Return the same GPU at the clock that its power leaves for multiplies in a step of these phases."""
        if self.profile.clock is None:
            return self
        multiplying: Number = 0.0
        others: Number = 0.0
        for phase in phases:
            for item in phase.operations:
                seconds = sum(self.phase_time(Phase((item,))).values())
                multiplying = multiplying + seconds * (item.kind == "matmul")
                others = others + seconds * (item.kind != "matmul")
        ratio = others / np.maximum(multiplying, 1e-30)
        return replace(self, clock=clock_gain(ratio, self.profile.clock))

    def _precisions(self, item: Kernel) -> tuple[tuple[str, float], ...]:
        """Precisions of a matrix multiply, each with its share of the layers."""
        if self.wide_share and item.cause is Cause.MATMUL:
            return (self.precision_of(item), 1.0 - self.wide_share), ("bf16", self.wide_share)
        return ((self.precision_of(item), 1.0),)

    def _moving_s(self, item: Kernel) -> Number:
        """Time of a kernel that is bound by memory, or of fused attention.  [s]"""
        floor = self.profile.gemm.kernel_floor_s * item.kernels
        moved = item.nbytes / self.memory_bandwidth(item.sort)
        if item.kind == "memory":
            return moved + floor * (np.asarray(item.nbytes) > 0)
        if item.kind == "state":  # its many launches are short kernels, which what was measured has in it
            share = STATE_SHARE[item.sort][item.backward] * self.profile.attention.state_speed
            return np.maximum(item.flop / (share * self.gpu.peak("bf16")), moved)
        return np.maximum(item.flop / self.attention_rate(item), moved) + floor

    def attention_rate(self, operation: Kernel) -> Number:
        """What fused attention reaches on sequences of the operation's length, its heads padded.  [FLOP/s]"""
        params, peak = self.profile.attention, self.peak(operation)
        share = params.backward_efficiency if operation.backward else params.forward_efficiency
        faster = peak / self.gpu.peak("bf16") if self.precision_of(operation) == "fp8" else 1.0
        reached = attention_efficiency(
            operation.length, share, params.half_length, operation.k, params.half_columns, faster
        )
        return peak * reached * params.speed(self.flash_version) * operation.n / operation.k

    def host_time(self, phases: Sequence[Phase], talk: Mapping[str, Number], backward: bool = False) -> Number:
        """Time the host needs to launch the kernels and collectives of phases.  [s]

        `talk` says of every group whether it has more than one member; one of one launches nothing.

        They are launched ahead of the GPU, so the host costs nothing until it is slower than all of them together;
        then the GPU waits for it.
        """
        launch = self.backward_launch_s if backward else self.kernel_launch_s
        graphs = sum(phase.graphs for phase in phases)
        inside = sum(item.kernels for phase in phases for item in phase.operations if item.graphed)
        inside = inside + sum(talk[item.group] * 1 for phase in phases for item in phase.collectives if item.graphed)
        kernels = sum(item.kernels for phase in phases for item in phase.operations if not item.graphed)
        collectives = sum(talk[item.group] * 1 for phase in phases for item in phase.collectives if not item.graphed)
        besides = sum(item.host_s for phase in phases for item in phase.operations if not item.graphed)
        of_graphs = launch * LAUNCHES_OF_GRAPH * graphs + self.graph_launch_s * inside
        of_launches = launch * kernels + self.collective_launch_s * collectives + of_graphs
        return of_launches + self.host_slowdown * besides

    def _note_range(self, operation: Kernel) -> None:
        measured = self.profile.gemm.measured_flop
        if measured is None:
            return
        smallest, largest = np.min(operation.flop), np.max(operation.flop)
        if smallest < measured[0] or largest > measured[1]:
            where = "smaller" if smallest < measured[0] else "larger"
            self.notes.add(
                f"extrapolated: matrix multiplies {where} than profile {self.profile.name} was fitted on "
                f"({operation.name})"
            )


def assumed(scenario: Scenario) -> Iterator[str]:
    """What multiplies in 8 or 4 bits are taken to reach, and who casts for them."""
    training, stack, gpu = scenario.training, scenario.stack, scenario.cluster.gpu
    if training.format is None:
        return
    known = training.peak_precision in scenario.profile.gemm.precisions
    reach = "" if known else f"{training.precision} multiplies reach the same share of peak as bf16; "
    fused = (stack.fused_casts or stack.compiled) and training.format.norms_cast
    casts = "after a norm are fused with it, others" if fused else "are"
    yield f"{reach}casts {casts} separate kernels (stack {stack.name})"
    if training.precision == "mxfp8" and "fp4" not in gpu.peak_flop_per_s:
        yield (
            f"{gpu.name} cannot multiply with one scale for each block of 32 numbers (mxfp8), but only in fp8. "
            "mxfp8 is priced as if it could"
        )
