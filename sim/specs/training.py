"""The training job: batch, sequence, precision, optimizer, token budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sim.specs.base import FORMATS, Format, Spec

AdapterTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj"]


class TrainingSpec(Spec):
    """What is computed in a step, and for how long."""

    global_batch_size: PositiveInt = Field(le=1_000_000_000)
    """Sequences per optimizer step, over all data-parallel replicas."""
    sequence_length: PositiveInt
    """Tokens per sequence."""
    precision: Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4"] = "bf16"
    """Precision of the matrix multiplies; in 8 and 4 bits those of attention and of the head, weights and activations
    stay in 16. fp8 has a scale a tensor or a block, mxfp8 and mxfp4 one for 32 numbers, nvfp4 for 16."""
    fp32_activations: bool = False
    """Where multiplies are in 8 or 4 bits, weights and activations stay in 32 bits instead of 16 (Megatron-LM with
    --fp8-format and neither --bf16 nor --fp16)."""
    high_precision_layers: NonNegativeInt = 0
    """Layers whose multiplies stay in 16 bits where precision is less, such as the first and the last."""
    optimizer: Literal["adam", "adafactor", "muon", "sgd"] = "adam"
    """Its states decide memory and what an update moves: adam keeps two moments of every weight, sgd one, adafactor a
    row and a column of every matrix, muon one moment of every matrix in layers, which it orthogonalises, and adam's two
    of the rest."""
    moment_precision: Literal["fp32", "bf16", "fp16", "fp8", "int8"] = "fp32"
    """Number format of the moments: int8 in blocks of 256 with an fp32 scale (8-bit Adam of bitsandbytes and torchao),
    the others as in Megatron-Core's precision-aware optimizer."""
    second_moment_precision: Literal["fp32", "bf16", "fp16", "fp8"] | None = None
    """Number format of Adam's second moments, where it differs from the first moments' (Megatron-Core's
    exp-avg-sq-dtype beside exp-avg-dtype). Default: moment_precision."""
    master_precision: Literal["fp32", "fp16", "none"] = "fp32"
    """Number format of the weights that the optimizer keeps beside 16-bit ones; none: it updates those themselves."""
    adapter_rank: NonNegativeInt = 0
    """Rank of low-rank adapters (LoRA): the model is frozen, and only they are trained. 0: all weights are trained."""
    num_adapters: PositiveInt = 1
    """Adapters that are trained side by side, every sequence by one of them (prime-rl's max_concurrent_runs). All of
    them are in memory and updated."""
    adapter_targets: tuple[AdapterTarget, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    """Linears with adapters, by Megatron's names: linear_qkv, all projections to queries, keys and values;
    linear_proj, attention's output; linear_fc1 and linear_fc2, of MLPs and experts; in_proj and out_proj, of layers
    that carry a state."""
    frozen_precision: Literal["nf4", "fp8", "nvfp4", "mxfp4"] | None = None
    """Number format in which the frozen matrices of layers lie beside adapters: nf4, QLoRA's 4 bits (Dettmers et al.
    2023, arXiv:2305.14314), or a format that is multiplied. Matrices that are multiplied in another format are written
    out in 16 bits before every multiply. Default: that of the activations."""
    packed_length: PositiveInt | None = None
    """Length that attention sees where short sequences are packed into one of sequence_length: the sum of their squared
    lengths over the sum of their lengths. Default: none are packed."""
    expert_skew: NonNegativeFloat = 0.0
    """Exponent of a Zipf law by which tokens go to experts: the n-th most popular expert of a layer gets n to the power
    of minus this of what the first one gets. Which experts are popular differs from layer to layer. 0: all get the
    same."""
    expert_load: tuple[NonNegativeFloat, ...] = ()
    """Measured load instead of a law: tokens of every expert of a layer, in the order in which experts are dealt to
    GPUs."""
    expert_capacity_factor: PositiveFloat | None = None
    """Tokens that an expert takes at most, in even shares; those that come beyond are dropped (Megatron-Core's
    moe_expert_capacity_factor). Default: none are."""
    pad_to_capacity: bool = False
    """Experts multiply as many tokens as they have capacity for, whatever came (Megatron-Core's
    moe_pad_expert_input_to_capacity)."""
    bytes_per_token: PositiveFloat | None = None
    """What a token takes in the data that are read: more than its number where images or sound become tokens. Default:
    2 for a vocabulary of up to 65,500, else 4 (Megatron-LM's indexed datasets). [bytes]"""
    tokens: float | None = Field(default=None, ge=1)
    """Token budget of the whole run, for the days it takes: 300e9, 15T."""

    NAMES = ("adapter_targets",)

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule between fields of the job."""
        if not self.adapter_targets:
            yield "adapter_targets names no linear; name one, or set adapter_rank to 0"
        if self.packed_length is not None and self.packed_length > self.sequence_length:
            yield (
                f"packed_length {self.packed_length} exceeds sequence_length {self.sequence_length}, into which the "
                "sequences are packed; lower it, or leave it out"
            )
        if self.expert_load and self.expert_skew:
            yield (
                f"expert_skew {self.expert_skew:g} and expert_load both say which experts tokens go to; leave one out"
            )
        if self.expert_load and not sum(self.expert_load):
            yield "expert_load counts no tokens; give the tokens of every expert of a layer"
        if self.pad_to_capacity and self.expert_capacity_factor is None:
            yield "pad_to_capacity needs expert_capacity_factor; set it, or leave pad_to_capacity out"
        for without, name, why in self._without_effect():
            value = getattr(self, name)
            if without and value != type(self).model_fields[name].default:
                yield f"{name}{'' if value is True else f' {value}'} has no effect {why}"

    def _without_effect(self) -> tuple[tuple[bool, str, str], ...]:
        """(whether a field has no effect, its name, with what it has none and what to do)."""
        narrow, apart = "fp8, mxfp8, nvfp4 or mxfp4", not self.adapter_rank
        wide, precision = self.format is None, f"with precision {self.precision}; leave it out, or set precision to"
        adapters = "leave it out, or set adapter_rank"
        kept = "with adafactor, whose rows and columns are kept in fp32; leave it out"
        other = f"with {self.optimizer}; leave it out, or set optimizer to adam"
        copies = "with weights in fp32, which have no copies; leave it out, or set precision to bf16"
        return (
            (wide, "high_precision_layers", f"{precision} {narrow}"),
            (wide, "fp32_activations", f"{precision} fp32, {narrow}"),
            (apart, "frozen_precision", f"without adapters, beside which weights are frozen; {adapters}"),
            (apart, "num_adapters", f"without adapters; {adapters}"),
            (self.optimizer == "adafactor", "moment_precision", kept),
            (self.optimizer != "adam", "second_moment_precision", other),
            (self.precision == "fp32", "master_precision", copies),
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step."""
        return self.global_batch_size * self.sequence_length

    @property
    def routes_evenly(self) -> bool:
        """Whether every expert gets as many tokens as any other."""
        told = self.expert_skew or self.expert_load or self.pad_to_capacity
        return not told and (self.expert_capacity_factor or 1.0) >= 1.0

    @property
    def format(self) -> Format | None:
        """Number format of multiplies in 8 or 4 bits; None for 16 bits and more."""
        return FORMATS.get(self.precision)

    @property
    def peak_precision(self) -> str:
        """Precision of the matrix units that run the layers' multiplies."""
        return self.format.peak if self.format else self.precision

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation or weight in compute precision. [bytes]"""
        return 4 if self.precision == "fp32" or self.fp32_activations else 2
