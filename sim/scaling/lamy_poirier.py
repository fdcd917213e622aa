"""Lamy-Poirier's family of models X_x, and when its traffic hides behind its arithmetic.

Lamy-Poirier 2021, "Layered gradient accumulation and modular pipeline parallelism", arXiv:2106.02679. Only the abstract
was read; the body is reconstructed, checked by calculation, and not verified against the paper's tables.

Conventions: 16-bit numbers, bytes sent and received together, full recomputation (8 FLOPs a parameter and token). An
intensity is FLOPs done for each byte moved; traffic hides where it is at least the GPU's peak over the link's bandwidth
(both directions together), and else adds that ratio over the intensity to the compute time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_positive
from sim.scaling.critical_batch import lamy_poirier_2021
from sim.work.operations import Number

HARDWARE_FLOP_PER_PARAM_TOKEN = 8.0
STEPS = 100_000
"""Length of a run at the critical batch that the paper assumes (not verified)."""
LARGEST = 2_000
"""Of the family, the largest that is drawn or searched: centuries on any machine."""
STATE_BYTES_PER_PARAM = 12.0
"""Master weight and two moments in 32 bits."""


@dataclass(frozen=True, slots=True)
class Shape:
    """X_x: x layers, x heads of size x, hidden size x², sequences of 16x tokens, MLP of four times the hidden size."""

    x: int
    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int

    @property
    def params(self) -> float:
        """12 x⁵, without embeddings, norms and biases."""
        return 12.0 * self.x**5

    @property
    def critical_batch_tokens(self) -> float:
        """573 tokens times the cube root of the parameters: 82.0 x^(2/3) sequences.  [tokens]"""
        return float(lamy_poirier_2021(self.params))

    @property
    def critical_batch_sequences(self) -> float:
        """The same in sequences."""
        return self.critical_batch_tokens / self.sequence_length

    @property
    def training_flop(self) -> float:
        """100,000 steps at the critical batch, with recomputation.  [FLOP]"""
        return HARDWARE_FLOP_PER_PARAM_TOKEN * self.params * self.critical_batch_tokens * STEPS

    @property
    def state_bytes(self) -> float:
        """Optimizer state.  [bytes]"""
        return STATE_BYTES_PER_PARAM * self.params


def family(x: int) -> Shape:
    """X_x of the family; X_160 has 1.26 trillion parameters.

    Raises
    ------
    SpecError
        x is not a whole number above zero, or beyond LARGEST.
    """
    require_positive(x=x)
    if x != int(x):
        raise SpecError(f"x = {x} layers is no whole number; nearest: {max(1, round(float(x)))}")
    x = int(x)
    if x > LARGEST:
        raise SpecError(f"x = {x:,} is beyond X_{LARGEST:,} of {12.0 * LARGEST**5:.2g} parameters; choose up to that")
    return Shape(x, x, x * x, x, 16 * x)


def needed_intensity(peak_flop_per_s: Number, bandwidth_bytes_per_s: Number) -> Number:
    """FLOPs a byte above which traffic hides; the bandwidth counts both directions.  [FLOP/byte]"""
    require_positive(peak_flop_per_s=peak_flop_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return np.asarray(peak_flop_per_s, dtype=float) / bandwidth_bytes_per_s


def data_parallel_intensity(tokens_per_microbatch: Number, microbatches: Number = 1) -> Number:
    """Of the gradient's all-reduce: 6 FLOPs a token over 8 bytes, both a parameter.  [FLOP/byte]

    Layered accumulation reduces a layer when all its `microbatches` are done, so all of them hide it; the usual order
    hides it behind the last one only: give 1.
    """
    return 0.75 * np.asarray(microbatches, dtype=float) * tokens_per_microbatch


def gather_intensity(tokens_per_microbatch: Number, microbatches: Number = 1) -> Number:
    """Of gathering partitioned weights for the forward: 2 FLOPs a token over 4 bytes.  [FLOP/byte]

    `microbatches` as in `data_parallel_intensity`. The backward's gather and reduce hide like the all-reduce.
    """
    return 0.5 * np.asarray(microbatches, dtype=float) * tokens_per_microbatch


def pipeline_intensity(hidden_size: Number, layers_per_stage: Number = 1) -> Number:
    """Of sends between stages; a modular stage has one layer and sends the most.  [FLOP/byte]"""
    return 12.0 * np.asarray(hidden_size, dtype=float) * layers_per_stage


def tensor_intensity(hidden_size: Number, tp: Number, recompute_collectives: bool = False) -> Number:
    """Of four all-reduces a layer, six where recomputation repeats the forward's; infinite for tp = 1.  [FLOP/byte]"""
    with np.errstate(divide="ignore"):
        return (2.0 if recompute_collectives else 3.0) * np.asarray(hidden_size, dtype=float) / (np.asarray(tp) - 1.0)


def pipeline_bubble(pp: Number, microbatches: Number, chunks: Number = 1) -> Number:
    """Idle over busy time of a pipeline that fills and drains once: (pp − 1)/(chunks · microbatches).

    Modular pipelines hold one layer a chunk: chunks = layers/pp, so pp (pp − 1)/(microbatches · layers).
    """
    return (np.asarray(pp, dtype=float) - 1) / (np.asarray(chunks, dtype=float) * microbatches)


def training_time(shape: Shape, num_gpus: Number, overhead: Number, peak_flop_per_s: float) -> Number:
    """Time of the whole run on GPUs at their peak, stretched by overheads (bubble, tensor-parallel).  [s]"""
    require_positive(num_gpus=num_gpus, peak_flop_per_s=peak_flop_per_s)
    stretched = shape.training_flop * (1 + np.asarray(overhead, dtype=float))
    return stretched / (np.asarray(num_gpus, dtype=float) * peak_flop_per_s)
