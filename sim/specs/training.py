"""The training job: batch, sequence, precision, optimizer, token budget."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sim.specs.base import Spec

AdapterTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj"]


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
    adapter_rank: NonNegativeInt = 0
    """Rank of low-rank adapters (LoRA): the model is frozen, and only they are trained. 0: all weights are trained."""
    adapter_targets: tuple[AdapterTarget, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    """Linears with adapters, by Megatron's names: linear_qkv, all projections to queries, keys and values;
    linear_proj, attention's output; linear_fc1 and linear_fc2, of MLPs and experts; in_proj and out_proj, of layers
    that carry a state."""
    packed_length: PositiveInt | None = None
    """Where short sequences are packed into one of sequence_length, how long they are, as attention sees it: the sum of
    their squared lengths over that of their lengths. Default: none are packed."""
    tokens: PositiveFloat | None = None
    """Token budget of the whole run, for the days it takes."""

    @model_validator(mode="after")
    def _check(self) -> TrainingSpec:
        if not self.adapter_targets:
            raise ValueError("adapter_targets names no linear; name one, or set adapter_rank to 0")
        if self.packed_length is not None and self.packed_length > self.sequence_length:
            raise ValueError(
                f"packed_length {self.packed_length} exceeds sequence_length {self.sequence_length}, into which the "
                "sequences are packed; lower it, or leave it out"
            )
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step."""
        return self.global_batch_size * self.sequence_length

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation or weight in compute precision. [bytes]"""
        return 4 if self.precision == "fp32" else 2
