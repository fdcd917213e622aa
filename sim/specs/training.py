"""The training job: batch, sequence, precision, optimizer, token budget."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from sim.specs.base import Spec


class TrainingSpec(Spec):
    """What is computed in a step, and for how long."""

    global_batch_size: PositiveInt
    """Sequences per optimizer step, over all data-parallel replicas."""
    sequence_length: PositiveInt
    """Tokens per sequence."""
    precision: Literal["fp32", "fp16", "bf16", "fp8"] = "bf16"
    """Precision of the matrix multiplies; weights and activations are kept in 16 bits for fp8."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Its states decide memory and what an update moves: adam keeps two moments of every weight, sgd one."""
    tokens: PositiveFloat | None = None
    """Token budget of the whole run, for the days it takes."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step."""
        return self.global_batch_size * self.sequence_length

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation or weight in compute precision. [bytes]"""
        return 4 if self.precision == "fp32" else 2
