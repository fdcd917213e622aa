"""What a kernel of a given shape reaches: the matrix-multiply model of tiles and waves.

Every function takes floats or NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sim.arrays import Number
from sim.specs import GpuSpec
from sim.specs.profile import AlignmentRate, ClockParams, GemmParams
from sim.work.operations import Layout

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
    and the roofline's corner is round: `flopcast_calibration.refit` misses shapes left out of its fits by 9.0 % (A100)
    and 5.2 % (V100) in the median, and by 10.4 % and 5.7 % with a sharp corner.

    Parameters
    ----------
    m, n, k, batch : float or array
        Shape.
    precision : str
        Which matrix-unit peak applies.
    width : float
        Bytes of an operand's number. [bytes]
    gpu : GpuSpec
    gemm : GemmParams
    memory_efficiency : float
        Share of the peak memory bandwidth that a kernel reaches.
    nbytes : float or array, optional
        What the kernel reads and writes, where that is not its operands and its result once. [bytes]
    layout : str
        How the operands lie in memory, which decides the leading dimensions (`alignment_rate`).

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


def clock_gain(others: Number, clock: ClockParams) -> Number:
    """Times that multiplies run faster than where they were measured, other kernels taking `others` times as long.

    A board that multiplies all the time lowers its clock until it draws no more than its limit. Where kernels that draw
    less take their turns, the limit holds for the mean, and multiplies may draw more: at a clock c times as high
    idle + (1 − idle) · c^exponent of the limit, for 1 / c of their time. Both together draw as much as is allowed:

        (1 − idle) · (c^exponent − 1) / c = others · (1 − others_power)

    On an H200 this gives what multiplies of whole training steps gained over the same multiplies alone, 12 to 24 %,
    within 3 % (calibration/data/h200-steps.csv).

    Parameters
    ----------
    others : float or array
        Seconds of other kernels over the multiplies' own, as they were measured.
    """
    usual = (1.0 - clock.multiplying) / clock.multiplying
    gains = []
    for load in (np.asarray(others, dtype=float), np.asarray(usual)):
        more, gain = load * (1.0 - clock.others_power) / (1.0 - clock.idle_power), np.ones_like(load)
        for _ in range(12):  # a contraction: its slope is below 1 / exponent
            gain = np.minimum((1.0 + more * gain) ** (1.0 / clock.exponent), clock.most)
        gains.append(gain)
    return gains[0] / gains[1]


def alignment_rate(
    m: Number, n: Number, k: Number, batch: Number, width: float, layout: Layout, bounds: Collection[AlignmentRate]
) -> Number:
    """Rate of a multiply's tiles over that of aligned operands; 1 where no bound holds.

    A kernel moves operands in vectors of up to 16 bytes a thread, which the rows of a matrix allow if their length (the
    leading dimension) is divisible by it; DRAM and cache move sectors of 32 [1]_ [2]_. The libraries' kernels for
    narrower vectors are slower, the narrower the vector. A padded size meets no bound that it did not meet before.

    Parameters
    ----------
    bounds : collection of AlignmentRate

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
