"""Bytes on one GPU, by purpose; activations of parts of a model, logits, and what is alive for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, Scenario, StackSpec
from sim.work.layers import FIRST_KIND
from sim.work.operations import Block, Operation
from sim.work.pieces import Cut, key_value_width, vocabulary_rows
from sim.work.recompute import NOTHING, Recompute
from sim.work.sums import gradients_alive, layer_bytes

CACHED = 0.058
"""What PyTorch's allocator keeps of tensors that are gone, as a share of what tensors hold at the peak: the median of
60 steps on one H100 and one H200 (calibration/data, reserved_gb over peak_gb less 1; from 0.015 to 0.29)."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peak memory of one GPU of a pipeline rank, by purpose; floats, or arrays over plans. [bytes]"""

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    """Kept for the backward, micro-batches in flight times layers."""
    logits: Number
    working: Number
    """Alive for a moment: the layer being recomputed, gathered weights, the optimizer's temporaries."""
    buffers: Number
    """Pipeline receive buffers."""
    framework: Number
    """Allowance for the CUDA context, workspaces and NCCL, from the stack."""
    fragmentation: Number
    """Allowance for the allocator's losses, from the stack."""

    @property
    def total(self) -> Number:
        """All of it. [bytes]"""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def allocated(self) -> Number:
        """What tensors hold, as PyTorch's max_memory_allocated counts: no context, and nothing its allocator loses.
        [bytes]"""
        return self.total - self.framework - self.fragmentation

    @property
    def reserved(self) -> Number:
        """What PyTorch's allocator has of the GPU, as max_memory_reserved counts. [bytes]

        It gives back the blocks of tensors that are gone before it runs out (pytorch/pytorch:c10/cuda/
        CUDACachingAllocator.cpp, release_cached_blocks), so what is needed, `total`, has no such blocks. A stack
        without fragmentation has no such allocator.
        """
        cached = CACHED * self.allocated * (self.fragmentation > 0)
        return self.allocated + np.maximum(self.fragmentation, cached)

    @property
    def in_use(self) -> Number:
        """What is taken of the GPU, as nvidia-smi counts: the context and all that the allocator has. [bytes]"""
        return self.framework + self.reserved

    def to_dict(self) -> dict[str, float]:
        """Bytes by purpose, and their total."""
        return {name: float(getattr(self, name)) for name in (*(field.name for field in fields(self)), "total")}


def by_rank(use: MemoryUse, num_ranks: int) -> tuple[MemoryUse, ...]:
    """Memory of ranks, whose numbers are arrays over them, one by one."""
    values = (np.asarray(getattr(use, field.name)) for field in fields(use))
    columns = [each.tolist() if each.shape == (num_ranks,) else [each.item()] * num_ranks for each in values]
    return tuple(MemoryUse(*numbers) for numbers in zip(*columns, strict=True))


def logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits of one micro-batch: 16-bit, and their fp32 probabilities unless the loss is fused. [bytes]

    PyTorch's own loss has log-probabilities, their gradient and the loss's in fp32 at once when its backward begins (4
    bytes each); `stack.loss_width` says so. Losses of multi-token prediction follow one another (NVIDIA/Megatron-LM:
    megatron/core/transformer/multi_token_prediction.py, process_mtp_loss).

    A loss on gathered logits holds them whole: 16 bits, and in its backward the cast to fp32, log-probabilities, their
    gradient and the cast's gradient (4 bytes each); the 16-bit gradient takes the place of the second. The gather's own
    buffers, one flat and as much in a list (pytorch/pytorch:torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
    allgather), are let go only when the GPU has passed them (recordStream), and the host is ahead of it by then.
    """
    if stack.chunked_loss:
        return 0.0
    if not stack.vocab_parallel_loss:
        buffers = 2 * cut.width * (np.asarray(cut.tp) > 1)
        columns = vocabulary_rows(model, stack, cut) * cut.tp
        return held_logits_bytes(model, stack, cut) + (buffers + 16) * cut.tokens * columns
    # Every module of multi-token prediction has a loss besides, which keeps its probabilities for its gradient. Its
    # 16-bit logits go when the next loss begins, unless the fused loss writes the gradient into them.
    kept = cut.width if stack.fused_cross_entropy else 4
    per_logit = stack.loss_width or cut.width + (0 if stack.fused_cross_entropy else 4)
    per_token = per_logit + model.num_mtp_layers * (stack.loss_width or kept)
    return per_token * cut.tokens * vocabulary_rows(model, stack, cut)


def held_logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits that the training loop still holds while the layers' backward runs: the 16-bit ones. [bytes]"""
    if stack.chunked_loss or (stack.loss_width is not None and stack.vocab_parallel_loss):
        return 0.0
    own = cut.width
    gathered = cut.width * cut.tp * (np.asarray(cut.tp) > 1) * (not stack.vocab_parallel_loss)
    return cut.tokens * vocabulary_rows(model, stack, cut) * (own + gathered)


def working_bytes(
    blocks: Sequence[Block], model: ModelSpec, stack: StackSpec, cut: Cut, recompute: Recompute = NOTHING
) -> Number:
    """The largest short-lived buffer besides what is kept. [bytes]

    blocks : those of the cut.
    """
    again: Number = 0.0
    backward: Number = 0.0
    pool: Number = 0.0
    for layer in (block.layer for block in blocks[FIRST_KIND : FIRST_KIND + len(model.layer_kinds)]):
        if recompute.mode == "full":  # a group of layers, whose inputs but the first one's are alive only then
            again = np.maximum(again, recompute.group * layer_bytes(layer))
        elif recompute.mode != "none":
            again = np.maximum(again, layer_bytes(layer) - layer_bytes(layer, recompute))
        if stack.cuda_graph_scope:
            pool = np.maximum(pool, graph_bytes(layer, model, cut))
            layer = tuple(each._replace(scratch=0.0) for each in layer)
        backward = np.maximum(backward, gradients_alive(layer))
    return again + backward + pool


def graph_bytes(layer: Sequence[Operation], model: ModelSpec, cut: Cut) -> Number:
    """What CUDA graphs of parts of a layer hold beside what they keep for the backward. [bytes]

    Graphs have a pool of their own, whose temporaries nothing outside can use (the gradients of queries, keys, values
    and context, and what the core holds for a moment), and read and write at fixed places: a layer's input and output,
    and the gradients of both. All graphs share the pool and, as they follow each other, the places (NVIDIA/
    TransformerEngine:transformer_engine/pytorch/graph.py, _reuse_graph_input_output_buffers): those of one layer are
    counted. Assumed.
    """
    columns = model.num_heads * (model.head_dim + model.value_head_dim) / cut.tp + key_value_width(model, cut.tp)
    scratch: Number = 0.0
    for each in layer:
        scratch = np.maximum(scratch, each.scratch)
    return scratch + cut.width * (cut.tokens * columns + 4 * cut.norm_tokens * model.hidden_size)


def assumed(scenario: Scenario) -> Iterator[str]:
    """What graphs keep; see `graph_bytes`."""
    if scenario.stack.cuda_graph_scope:
        yield (
            f"CUDA graphs of {', '.join(scenario.stack.cuda_graph_scope)} keep memory of their own: temporaries, and "
            "one layer's input, output and their gradients"
        )
