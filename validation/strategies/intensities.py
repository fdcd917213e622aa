"""Which traffic hides behind compute: intensities after Lamy-Poirier 2021, "Layered gradient accumulation and modular
pipeline parallelism", arXiv:2106.02679.

Only the abstract was read; the body is reconstructed, checked by calculation, and not verified against the paper's
tables. Conventions: 16-bit numbers, bytes sent and received together, full recomputation (8 FLOPs a parameter and
token). An intensity is FLOPs done for each byte moved. Traffic hides if the intensity is at least the GPU's peak over
the link's bandwidth (both directions together). Otherwise it adds that ratio over the intensity to the compute time.
"""

from __future__ import annotations

import numpy as np

from sim.errors import require_positive
from sim.work.operations import Number


def needed_intensity(peak_flop_per_s: Number, bandwidth_bytes_per_s: Number) -> Number:
    """FLOPs a byte above which traffic hides; the bandwidth counts both directions.  [FLOP/byte]"""
    require_positive(peak_flop_per_s=peak_flop_per_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return np.asarray(peak_flop_per_s, dtype=float) / bandwidth_bytes_per_s


def data_parallel_intensity(tokens_per_microbatch: Number, microbatches: Number = 1) -> Number:
    """Intensity of the gradient's all-reduce: 6 FLOPs a token over 8 bytes, both a parameter.  [FLOP/byte]

    Layered accumulation reduces a layer when all its `microbatches` are done, so all of them hide it; the usual order
    hides it behind the last one only: give 1.
    """
    return 0.75 * np.asarray(microbatches, dtype=float) * tokens_per_microbatch


def pipeline_intensity(hidden_size: Number, layers_per_stage: Number = 1) -> Number:
    """Intensity of sends between stages; a modular stage has one layer and sends the most.  [FLOP/byte]"""
    return 12.0 * np.asarray(hidden_size, dtype=float) * layers_per_stage


def tensor_intensity(hidden_size: Number, tp: Number, recompute_collectives: bool = False) -> Number:
    """Intensity of four all-reduces a layer, six where recomputation repeats them; infinite for tp = 1.  [FLOP/byte]"""
    with np.errstate(divide="ignore"):
        return (2.0 if recompute_collectives else 3.0) * np.asarray(hidden_size, dtype=float) / (np.asarray(tp) - 1.0)


def pipeline_bubble(pp: Number, microbatches: Number, chunks: Number = 1) -> Number:
    """Idle over busy time of a pipeline that fills and drains once: (pp − 1)/(chunks · microbatches).

    Modular pipelines hold one layer a chunk: chunks = layers/pp, so pp (pp − 1)/(microbatches · layers).
    """
    return (np.asarray(pp, dtype=float) - 1) / (np.asarray(chunks, dtype=float) * microbatches)
