"""Seconds of the operations of one GPU.

Every function takes floats or NumPy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.arrays import Number
from sim.specs import GpuSpec, Profile, Scenario
from sim.specs.base import FORMATS
from sim.specs.presets import peak_in_16_bits
from sim.specs.profile import AlignmentRate, ClockParams, GemmParams
from sim.work.operations import Cause, Kernel, Layout, Phase

#: Output tiles (rows, columns) a GPU library chooses from; the largest runs at `max_efficiency`.
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
_LARGEST = 256 * 128
SECTOR = 32
"""What DRAM and caches move at once: rows that are whole numbers of it are aligned. [bytes]"""
STATE_SHARE = {
    "mamba2": (0.079, 0.059),
    "gated_delta_net": (0.063, 0.048),
    "kimi_delta_attention": (0.036, 0.028),
}
"""Share of an H100's peak that the kernels reach which carry a state along the sequence, forward and backward.

Sequences of 8,192 and 32,768 tokens with Nemotron-H's, Qwen3-Next's and Kimi Linear's heads were measured in mamba-ssm
2.3.2 and flash-linear-attention 0.6 (calibration/data/h100.jsonl). The gated delta net's backward is taken to be to its
forward as Kimi's is."""
_TILE_M = np.array([tile[0] for tile in TILES], dtype=float)
_TILE_N = np.array([tile[1] for tile in TILES], dtype=float)


def gemm_time(
    m: Number,
    n: Number,
    k: Number,
    batch: Number,
    precision: str,
    width: float,
    gpu: GpuSpec,
    gemm: GemmParams,
    memory_efficiency: float,
    nbytes: Number | None = None,
    layout: Layout = "nn",
) -> Number:
    """Time of `batch` matrix multiplies (m × k) · (k × n).  [s]

    The output is cut into tiles; each of the GPU's SMs works on one tile at a time, so the tiles run in waves, and a
    last wave that is not full costs more than its share [1]_. A tile takes its k multiply-add steps and a fixed
    overhead, at a rate that falls with the tile's size. The library picks the best tile. No kernel is faster than its
    bytes or than the launch floor. Where bytes and multiplies take about as long, each hides the other only in part,
    and the roofline's corner is round: `tests.published_fits` misses shapes left out of its fits by 9.0 % (A100)
    and 5.2 % (V100) in the median, and by 10.4 % and 5.7 % with a sharp corner.

    m, n, k, batch : shape.
    precision : which matrix-unit peak applies.
    width : bytes of an operand's number. [bytes]
    memory_efficiency : share of the peak memory bandwidth that a kernel reaches.
    nbytes : what the kernel reads and writes, where that is not its operands and its result once. [bytes]
    layout : how the operands lie in memory, which decides the leading dimensions (`alignment_rate`).

    .. [1] NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization", "Wave Quantization".
    """
    aligned = alignment_rate(m, n, k, batch, width, layout, gemm.alignment.values())
    m, n, k, batch = (np.asarray(x, dtype=float)[..., np.newaxis] for x in (m, n, k, batch))
    tiles = np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N) * batch
    share = tiles / gpu.num_sms
    waves = np.maximum(share + gemm.wave_quantisation * (np.ceil(share) - share), 1.0)
    area = _TILE_M * _TILE_N
    rate = gpu.peak(precision) / gpu.num_sms * gemm.max_efficiency * (area / _LARGEST) ** gemm.tile_exponent
    compute = (waves * 2.0 * area * (k + gemm.k_overhead) / rate).min(axis=-1) / aligned
    m, n, k, batch = m[..., 0], n[..., 0], k[..., 0], batch[..., 0]
    if nbytes is None:
        nbytes = width * batch * (m * k + k * n + m * n)
    moved = nbytes / (memory_efficiency * gpu.memory_bandwidth_bytes_per_s)
    time = np.hypot(compute, moved) + gemm.kernel_floor_s
    return time * ((m * n * k * batch) > 0)


def clock_gain(others: Number, clock: ClockParams, limit: float = 1.0, width: float = 1.0) -> Number:
    """Times that multiplies run faster than where they were measured, other kernels taking `others` times as long.

    A board that multiplies all the time lowers its clock until it draws no more than its limit. Where kernels that draw
    less take their turns, the limit holds for the mean, and multiplies may draw more: at a clock c times as high
    idle + (1 − idle) · c^exponent of the limit, for 1 / c of their time. Both together draw as much as is allowed:

        (1 − idle) · (c^exponent − 1) / c = others · (1 − others_power)

    On an H200 this gives what multiplies of whole training steps gained over the same multiplies alone, 12 to 24 %,
    within 3 % (calibration/data/h200-steps.csv). A board with another limit or peak than the one that was measured
    draws up to its limit, and beyond idling as much less in multiplies as it is narrower.

    others : seconds of other kernels over the multiplies' own, as they were measured.
    limit, width : power limit and peak over those of the board that was measured.
    """
    usual = (1.0 - clock.multiplying) / clock.multiplying
    gains = []
    boards = (np.asarray(others, dtype=float), limit, width), (np.asarray(usual), 1.0, 1.0)
    for load, power, wide in boards:
        spare, gain = max(power - clock.others_power, 0.0), np.ones_like(load)
        for _ in range(12):  # a contraction: its slope is below 1 / exponent
            drawn = (power - clock.idle_power + load * gain * spare) / (1.0 - clock.idle_power) / wide
            gain = np.minimum(np.maximum(drawn, 0.0) ** (1.0 / clock.exponent), clock.most)
        gains.append(gain)
    return gains[0] / gains[1]


def as_measured(gpu: GpuSpec, clock: ClockParams) -> tuple[float, float]:
    """Power limit and 16-bit peak of a GPU, each over that of the board that was measured; 1 where one is not known.

    A higher peak counts as that of the measured board, since not all of a multiply's time goes with the clock.
    """
    pairs = (gpu.max_power_w, clock.max_power_w), (peak_in_16_bits(gpu), clock.peak_flop_per_s)
    limit, width = (own / measured if own and measured else 1.0 for own, measured in pairs)
    return limit, min(width, 1.0)


def alignment_rate(
    m: Number, n: Number, k: Number, batch: Number, width: float, layout: Layout, bounds: Collection[AlignmentRate]
) -> Number:
    """Rate of a multiply's tiles over that of aligned operands; 1 where no bound holds.

    A kernel moves operands in vectors of up to 16 bytes a thread, which the rows of a matrix allow if their length (the
    leading dimension) is divisible by it; DRAM and cache move sectors of 32 [1]_ [2]_. The libraries' kernels for
    narrower vectors are slower, the narrower the vector. A padded size meets no bound that it did not meet before.

    .. [1] NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to Use Tensor Cores".
    .. [2] NVIDIA/cutlass:media/docs/efficient_gemm.md; its kernels' names end in the alignment that they need.
    """
    rate: Number = 1.0
    if not bounds:
        return rate
    inner, outer = leading_divisors(m, n, k, width, layout)
    if min(np.min(inner), np.min(outer)) > max(bound.nbytes for bound in bounds):
        return rate
    for bound in bounds:
        holds = (inner if bound.along == "inner" else outer) <= bound.nbytes
        if bound.batched is not None:
            holds = holds & ((np.asarray(batch) > 1) == bound.batched)
        if bound.below_k is not None:
            holds = holds & (np.asarray(k) < bound.below_k)
        rate = np.where(holds, np.minimum(rate, bound.rate), rate)
    return rate


def leading_divisors(m: Number, n: Number, k: Number, width: float, layout: Layout) -> tuple[Number, Number]:
    """Largest powers of two that divide the leading dimensions of a multiply: k, and m or n. [bytes]

    Of nn these are k of the left operand, n of the right one and of the result; of nt k of both operands and n of the
    result; of tn m of the left operand, n of the right one and of the result.
    """
    if layout == "tn":
        return np.inf, np.minimum(_divisor(m, width), _divisor(n, width))
    return _divisor(k, width), _divisor(n, width)


def _divisor(size: Number, width: float) -> Number:
    """The largest power of two that divides the bytes of so many numbers; of a broken size that of the next whole one.
    [bytes]"""
    nbytes = np.ceil(np.asarray(size) * width).astype(np.int64)
    return nbytes & -nbytes


def attention_efficiency(
    length: Number,
    peak_share: Number,
    half_length: float,
    columns: Number = 128.0,
    half_columns: float = 0.0,
    faster: float = 1.0,
) -> Number:
    """Share of peak that fused attention reaches on sequences of `length` tokens, with heads of so many columns.

    A tile's exponentials take as long however wide heads are, and where multiplies are `faster` in fewer bits.
    `peak_share` is that of heads of 128 columns in 16 bits.
    """
    reached = peak_share * length / (length + half_length)
    if not half_columns:
        return reached
    return reached * columns / (columns + faster * half_columns) * (128.0 + half_columns) / 128.0


LAUNCHES_OF_GRAPH = 3
"""Host time of one CUDA graph of a layer, in kernel launches: the copy of its input to where the graph reads it, the
launch, and the autograd call around both (NVIDIA/TransformerEngine:transformer_engine/pytorch/graph.py, Graphed). The
three are counted; that each takes as long as a kernel's launch is an assumption."""
GRAPH_LAUNCH_S = 2e-6
"""Time between kernels of a CUDA graph, where no profile has measured it: assumed, the floor of kernel times. [s]"""
BYTES_PER_CLOCK = {"step": 19.0, "apart": 6.2, "narrow adam": 11.0}
"""Bytes that a streaming multiprocessor moves a clock, at most, in kernels that are bound by their instructions before
the memory: PyTorch's elementwise steps, with casts; those whose operands lie apart (rotary positions, masks);
Adam on 16-bit states, which computes as much for each number as on wider ones. Set on the kernels of training steps on
H100 and H200, which have the same multiprocessors and differ in their memory (calibration/data/h100-steps.csv,
h200-steps.csv). [bytes]"""

CLOCKS_PER_DRAW = 0.2
"""Clocks of a streaming multiprocessor that a random number takes in a fused attention kernel, forward and again
backward. Attention hides hardly any of them (Ma et al. 2024, arXiv:2410.07531). Set on GPT-2 medium's attention in
cuDNN's kernels on an H100, which takes 2.5 ms a step longer than the same kernels take without dropout in Llama 3.2 1B
(calibration/data/h100-steps.csv, attention_s). [clocks]"""


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
                least, most = gemm.measured_flop or (0.0, np.inf)
                if np.min(item.flop) < least or np.max(item.flop) > most:
                    where, name = "smaller" if np.min(item.flop) < least else "larger", self.profile.name
                    self.notes.add(
                        f"extrapolated: matrix multiplies {where} than profile {name} was fitted on ({item.name})"
                    )
                m, n, k, batch, turns, seconds = item.m, item.n, item.k, item.batch, item.turns, 0.0
                wide = self.wide_share if item.cause is Cause.MATMUL else 0.0
                shares = [(self.precision_of(item), 1.0 - wide), *[("bf16", wide)] * bool(wide)]
                for precision, share in shares:  # of the layers
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
        return replace(self, clock=clock_gain(ratio, self.profile.clock, *as_measured(self.gpu, self.profile.clock)))

    def _moving_s(self, item: Kernel) -> Number:
        """Time of a kernel that is bound by memory, or of fused attention.  [s]"""
        floor = self.profile.gemm.kernel_floor_s * item.kernels
        moved = item.nbytes / self.memory_bandwidth(item.sort)
        if item.kind == "memory":
            return moved + floor * (np.asarray(item.nbytes) > 0)
        if item.kind == "state":  # its many launches are short kernels, which what was measured has in it
            share = STATE_SHARE[item.sort][item.backward] * self.profile.attention.state_speed
            return np.maximum(item.flop / (share * self.gpu.peak("bf16")), moved)
        issued = self.gpu.num_sms * issue_clock(self.gpu)
        drawing = item.draws * CLOCKS_PER_DRAW / issued if issued else 0.0
        return np.maximum(item.flop / self.attention_rate(item), moved) + drawing + floor

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


def assumed(scenario: Scenario) -> Iterator[str]:
    """What multiplies reach at a GPU's power, and in 8 or 4 bits, and who casts for these."""
    training, stack, gpu, profile = scenario.training, scenario.stack, scenario.cluster.gpu, scenario.profile
    limit, width = (1.0, 1.0) if profile.clock is None else as_measured(gpu, profile.clock)
    if (share := limit / width) < 0.99:
        yield (
            f"{gpu.name} has {share:.0%} of the power for its peak that profile {profile.name} was measured with, so "
            "its multiplies go at a lower clock (cluster.node.gpu.max_power)"
        )
    if training.format is None:
        return
    known = training.peak_precision in scenario.profile.gemm.precisions
    reach = "" if known else f"{training.precision} multiplies reach the same share of peak as bf16; "
    fused = (stack.fused_casts or stack.compiled) and training.format.norms_cast
    casts = "after a norm are fused with it, others" if fused else "are"
    yield f"{reach}casts {casts} separate kernels (stack {stack.name})"


def doubtful(scenario: Scenario) -> Iterator[str]:
    """Yield that the GPU has no units for a precision that is priced nevertheless."""
    training, gpu = scenario.training, scenario.cluster.gpu
    if training.precision == "mxfp8" and "fp4" not in gpu.peak_flop_per_s:
        yield (
            f"{gpu.name} cannot multiply with one scale for each block of 32 numbers (mxfp8), but only in fp8. "
            "mxfp8 is priced as if it could"
        )
