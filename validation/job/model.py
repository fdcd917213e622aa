"""The small GPT in PyTorch, a pipeline stage at a time, with its tensor-parallel plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from validation.job.configs import GptShape


class GptLayer(nn.Module):
    """Pre-norm attention and MLP. Queries, keys and values are one matrix, laid out by head so that it can be cut."""

    def __init__(self, shape: GptShape, recompute: bool) -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.head_dim = hidden // shape.num_heads
        self.recompute = recompute
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same; recomputed in the backward if asked."""
        if self.recompute and self.training:
            return checkpoint(self._run, x, use_reentrant=False)
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm_1(x))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # Under tensor parallelism this process sees its own heads only, so their number is not written down.
        heads = self.qkv(x).view(batch, length, -1, 3, self.head_dim)
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class GptPart(nn.Module):
    """Consecutive layers, with the embedding before the first and the head after the last."""

    def __init__(self, shape: GptShape, layers: range, recompute: bool = False) -> None:
        super().__init__()
        hidden = shape.hidden_size
        first, last = layers.start == 0, layers.stop == shape.num_layers
        self.tokens = nn.Embedding(shape.vocab_size, hidden) if first else None
        self.positions = nn.Embedding(shape.sequence_length, hidden) if first else None
        self.layers = nn.ModuleDict({str(index): GptLayer(shape, recompute) for index in layers})
        self.norm = nn.LayerNorm(hidden) if last else None
        self.head = nn.Linear(hidden, shape.vocab_size, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Token numbers or activations in; activations or logits out."""
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def build_part(shape: GptShape, layers: range, seed: int, recompute: bool = False) -> GptPart:
    """A part of the model with the weights it has in the whole, whoever builds it.

    The whole model is initialised everywhere, and a part copies its own: simple, and cheap at this size.
    """
    torch.manual_seed(seed)
    whole = GptPart(shape, range(shape.num_layers))
    part = GptPart(shape, layers, recompute)
    part.load_state_dict({name: value for name, value in whole.state_dict().items() if name in part.state_dict()})
    return part


def cut_tensors(part: GptPart, mesh: Any) -> None:
    """Cut the part's matrices over the tensor-parallel mesh: columns, then rows, as Megatron-LM does."""
    layer_plan = {
        "qkv": ColwiseParallel(),
        "out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for layer in part.layers.values():
        parallelize_module(layer, mesh, layer_plan)
    if part.tokens is not None:
        parallelize_module(part, mesh, {"tokens": RowwiseParallel(input_layouts=Replicate())})
    if part.head is not None:
        parallelize_module(part, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next token."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_of(shape: GptShape, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences a model can learn: each counts upwards from a random start, in random strides of 1 to 4."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(shape.vocab_size, (size, 1), generator=generator)
    stride = torch.randint(1, 5, (size, 1), generator=generator)
    sequence = (start + stride * torch.arange(shape.sequence_length + 1)) % shape.vocab_size
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()
