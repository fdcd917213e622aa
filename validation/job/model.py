"""The GPT in PyTorch, a pipeline stage at a time, and how a stage is cut over ranks of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from flopcast_validation.job.configs import Configuration, GptShape

SEED = 17
_meshes = count()
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_COUNTED = 512
"""Tokens that occur in the sequences."""
_ENDS = 10_000
"""Where the seeds of embedding and head lie beside those of the layers."""


@dataclass(frozen=True, slots=True)
class Place:
    """This rank among those of a configuration: its place and group along every kind of parallelism.

    along : meshes of this rank's groups, by what lies along them: pp, dp, tp.
    """

    cut: Configuration
    along: dict[str, Any]

    def rank(self, name: str) -> int:
        """Its number along a kind of parallelism."""
        return int(self.along[name].get_local_rank())

    @property
    def replicas(self) -> Any:
        """Mesh of the ranks that hold the same part of the model; None where there is one."""
        return self.along["dp"] if self.cut.dp > 1 else None


def place_in(cut: Configuration, device: str) -> Place:
    """This rank's place, and the groups that it is in; all ranks of the job call this together.

    Tensor-parallel neighbours lie next to each other, then data, pipeline, as the simulator places them.
    """
    # DTensor remembers what it did on a mesh and takes another of the same axes for the same one; but where a process
    # has had several jobs, the groups of the earlier are gone. Each mesh has axes of its own name.
    number = next(_meshes)
    axes = {name: f"{name}{number}" for name in ("pp", "dp", "tp")}
    mesh = init_device_mesh(device, (cut.pp, cut.dp, cut.tp), mesh_dim_names=tuple(axes.values()))
    return Place(cut, {name: mesh[axis] for name, axis in axes.items()})


class GptLayer(nn.Module):
    """Pre-norm attention and MLP. Queries, keys and values are one matrix, laid out by head to be cut."""

    def __init__(self, shape: GptShape, recompute: str = "none") -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.head_dim = hidden // shape.num_heads
        self.recompute = recompute == "full"
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

    def __init__(self, shape: GptShape, layers: range, recompute: str) -> None:
        super().__init__()
        hidden = shape.hidden_size
        first, last = layers.start == 0, layers.stop == shape.num_layers
        torch.manual_seed(SEED + _ENDS)
        self.tokens = nn.Embedding(shape.vocab_size, hidden) if first else None
        self.positions = nn.Embedding(shape.sequence_length, hidden) if first else None
        self.layers = nn.ModuleDict()
        for index in layers:
            torch.manual_seed(SEED + index)  # a layer has the same weights, whoever builds it and what else
            self.layers[str(index)] = GptLayer(shape, recompute)
        torch.manual_seed(SEED + _ENDS + 1)
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


def build_part(shape: GptShape, layers: range, device: torch.device, place: Place | None = None) -> GptPart:
    """A part of the model with the weights it has in the whole, cut over the ranks of `place`, whole without one."""
    cut = Configuration() if place is None else place.cut
    with device:
        part = GptPart(shape, layers, cut.recompute).to(_DTYPES[shape.precision])
    if place is not None and cut.tp > 1:
        cut_tensors(part, place.along["tp"])
    if place is not None and place.replicas is not None:
        shard(part, place.replicas, cut.zero_stage)
    return part


def shard(part: GptPart, mesh: Any, zero_stage: int) -> None:
    """FSDP2 over the ranks that hold the same.

    Stage 1: one group a stage, kept gathered between micro-batches, whose weights are gathered and gradients scattered
    once a step. torch's pipeline stages know it: they leave the reduction to the last micro-batch. Stage 3: one group a
    layer, gathered whenever it is needed.
    """
    each_layer = list(part.layers.values()) if zero_stage == 3 else []
    for module in (*each_layer, part):
        fully_shard(module, mesh=mesh, reshard_after_forward=zero_stage == 3)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no averaging reduction
        module.set_gradient_divide_factor(float(mesh.size()))


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
    """Mean cross-entropy of the next token, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batch_of(shape: GptShape, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences a model can learn: each counts upwards from a random start, in random strides of 1 to 4.

    Of a large vocabulary only some is used, so that the loss falls within a few steps.
    """
    used = min(shape.vocab_size, _COUNTED)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(used, (size, 1), generator=generator)
    stride = torch.randint(1, 5, (size, 1), generator=generator)
    sequence = (start + stride * torch.arange(shape.sequence_length + 1)) % used
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()
