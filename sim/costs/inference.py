"""Seconds of an inference engine's steps: a roofline of the bytes that a step reads and the FLOPs it does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.costs.collectives import Fabric, all_reduce
from sim.network.placement import Group
from sim.specs import ModelSpec
from sim.specs.profile import GemmParams
from sim.work.inference import (
    SAMPLING_PASSES,
    cache_bytes,
    decode_all_reduces,
    decode_flop,
    decode_kernels,
    prefill_flop,
    weights_held,
    weights_read,
)

WIDTHS = {"bf16": 2.0, "fp8": 1.0}
"""Bytes of a weight or of a number in the cache, by format. [bytes]"""
ACTIVATION_WIDTH = 2.0
"""Width of activations sent between GPUs: 16 bits. [bytes]"""


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica of an inference engine: a model on `tp` GPUs that decode together.

    weight_format, cache_format : bf16 or fp8.
    peak_flop_per_s : of one GPU in the weights' format. [FLOP/s]
    bandwidth_bytes_per_s : of its memory, at its peak. [bytes/s]
    memory_share : share of that bandwidth that the kernels of a step reach.
    group : the tensor-parallel group.
    step_overhead_s : what the GPUs wait for the host in every step: scheduling, drawing, handing out tokens. [s]
    """

    model: ModelSpec
    tp: int
    weight_format: str
    cache_format: str
    peak_flop_per_s: float
    bandwidth_bytes_per_s: float
    memory_share: float
    gemm: GemmParams
    fabric: Fabric
    group: Group
    step_overhead_s: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of one GPU's part of the model. [bytes]"""
        return float(WIDTHS[self.weight_format] * weights_held(self.model, self.tp))

    def cache_bytes(self, context: Number) -> Number:
        """Bytes of a sequence's cache on one GPU. [bytes]"""
        return cache_bytes(self.model, context, WIDTHS[self.cache_format], self.tp)

    def decode_s(self, batch: Number, context: Number) -> Number:
        """One step of decoding: a token for each of `batch` sequences of `context` tokens on average.  [s]

        Bytes (weights, caches, logits) at the memory's bandwidth and FLOPs at the matrix units' best, of which each
        hides the other only in part (`sim.costs.compute.gemm_time`), no kernel shorter than the launch floor of a
        CUDA graph's; behind every mixer and MLP a sum over the tensor-parallel group.

        Takes arrays. Cost grows more slowly than the batch: a larger batch is never less efficient.
        """
        batch = np.asarray(batch, dtype=float)
        read = WIDTHS[self.weight_format] * weights_read(self.model, batch, self.tp)
        logits = 4.0 * SAMPLING_PASSES * batch * self.model.vocab_size / self.tp
        nbytes = read + batch * self.cache_bytes(context) + logits
        moved = nbytes / (self.memory_share * self.bandwidth_bytes_per_s)
        computed = batch * decode_flop(self.model, context) / self.tp / self._rate
        floor = decode_kernels(self.model) * self.gemm.kernel_floor_s
        return np.hypot(moved, computed) + floor + self._sums_s(batch) + self.step_overhead_s

    def prefill_s(self, prompt: float, count: Number = 1.0) -> Number:
        """Reading `count` prompts of so many tokens, many at once: their FLOPs, and the sums between GPUs.  [s]"""
        computed = prefill_flop(self.model, prompt) / self.tp / self._rate
        tokens = 8192.0  # of a step, which mixes prompts: latency hardly counts
        return count * (computed + self._sums_s(tokens) * prompt / tokens)

    @property
    def _rate(self) -> float:
        """FLOP/s that the matrix units reach at their best. [FLOP/s]"""
        precision = {"fp8": "fp8"}.get(self.weight_format, "bf16")
        return self.peak_flop_per_s * self.gemm.of(precision).max_efficiency

    def _sums_s(self, tokens: Number) -> Number:
        if self.tp == 1:
            return 0.0
        nbytes = ACTIVATION_WIDTH * np.asarray(tokens, dtype=float) * self.model.hidden_size
        return decode_all_reduces(self.model) * all_reduce(nbytes, self.group, self.fabric)
