"""The GPT in PyTorch, a pipeline stage at a time, and how a stage is cut over ranks of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.experts import Experts, expert_weights

SEED = 17
_meshes = count()
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_COUNTED = 512
"""Tokens that occur in the sequences."""
_ENDS = 10_000
"""Where the seeds of embedding and head lie beside those of the layers."""
# torch 2.13 renames it.
_all_gather: Any = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's place among those that share its sequences, each of which gathers the others' keys and values.

    As Llama 3 was trained (arXiv:2407.21783, section 3.3.2): the sequence is cut into 2 · cp pieces, and a rank holds
    one from each end, so that causal attention gives all of them the same work. torch's own context_parallel takes the
    kernels of a GPU; this takes any.
    """

    group: Any
    rank: int
    size: int

    @property
    def pieces(self) -> tuple[int, int]:
        """The two of the 2 · size pieces of a sequence that this rank holds."""
        return self.rank, 2 * self.size - 1 - self.rank

    def positions(self, length: int, device: Any) -> Tensor:
        """Positions of the tokens that this rank holds, in a sequence of `length` tokens."""
        piece = length // (2 * self.size)
        return torch.cat([torch.arange(at * piece, (at + 1) * piece, device=device) for at in self.pieces])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of this rank's queries to all keys up to theirs; [batch, heads, tokens here, head_dim]."""
        keys, values = self._whole(torch.stack((k, v))).unbind()
        piece = q.shape[2] // 2
        mixed = []
        for at, queries in zip(self.pieces, q.split(piece, dim=2), strict=True):
            seen = (at + 1) * piece
            mask = causal_lower_right(piece, seen)
            mixed.append(
                functional.scaled_dot_product_attention(queries, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask)
            )
        return torch.cat(mixed, dim=2)

    def _whole(self, local: Tensor) -> Tensor:
        """All ranks' keys and values, [2, batch, heads, tokens, head_dim], in the sequence's order.

        Their gradients are summed over the ranks and scattered again.
        """
        gathered = _all_gather(local, gather_dim=3, group=self.group)
        pieces = gathered.chunk(2 * self.size, dim=3)
        # Rank by rank come pieces 0 and 2n-1, 1 and 2n-2, …
        return torch.cat([*pieces[0::2], *reversed(pieces[1::2])], dim=3)


@dataclass(frozen=True, slots=True)
class Place:
    """This rank among those of a configuration: its place and group along every kind of parallelism.

    axes : of the mesh, by what lies along them: pp, dp, cp, tp.
    replicas : mesh of the ranks that hold the same part of the model; None where there is one.
    """

    cut: Configuration
    mesh: Any
    axes: dict[str, str]
    replicas: Any
    pp: int
    dp: int
    cp: int
    tp: int

    def along(self, name: str) -> Any:
        """The mesh of this rank's group along a kind of parallelism."""
        return self.mesh[self.axes[name]]

    @property
    def context(self) -> Context | None:
        """Where sequences are shared."""
        return Context(self.along("cp").get_group(), self.cp, self.cut.cp) if self.cut.cp > 1 else None

    @property
    def expert_group(self) -> Any:
        """Ranks over which experts are dealt; None where each has all."""
        return self.along("dp").get_group() if self.cut.ep > 1 else None


def place_in(cut: Configuration, device: str) -> Place:
    """This rank's place, and the groups that it is in; all ranks of the job call this together.

    Tensor-parallel neighbours lie next to each other, then context, data, pipeline, as the simulator places them.
    """
    # DTensor remembers what it did on a mesh and takes another of the same axes for the same one; but where a process
    # has had several jobs, the groups of the earlier are gone. Each mesh has axes of its own name.
    number = next(_meshes)
    axes = {name: f"{name}{number}" for name in ("pp", "dp", "cp", "tp")}
    mesh = init_device_mesh(device, (cut.pp, cut.dp, cut.cp, cut.tp), mesh_dim_names=tuple(axes.values()))
    replicas = None
    if cut.cp > 1:
        replicas = mesh[axes["dp"], axes["cp"]]._flatten(f"replicas{number}")
    elif cut.dp > 1:
        replicas = mesh[axes["dp"]]
    return Place(cut, mesh, axes, replicas, *(mesh.get_local_rank(name) for name in axes.values()))


class GptLayer(nn.Module):
    """Pre-norm attention and MLP, or experts. Queries, keys and values are one matrix, laid out by head to be cut."""

    def __init__(self, shape: GptShape, cut: Configuration, place: Place | None = None) -> None:
        super().__init__()
        hidden = shape.hidden_size
        self.head_dim = hidden // shape.num_heads
        self.recompute = cut.recompute == "full"
        self.context = place.context if place is not None else None
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        if cut.num_experts:
            width = expert_width(shape, cut)
            group = place.expert_group if place is not None else None
            self.experts = Experts(hidden, width, cut.num_experts, cut.experts_per_token, group)
        else:
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same; recomputed in the backward if asked."""
        if self.recompute and self.training:
            return checkpoint(self._run, x, use_reentrant=False)
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm_1(x))
        return x + self._widen(self.norm_2(x))

    def _widen(self, x: Tensor) -> Tensor:
        if hasattr(self, "experts"):
            return self.experts(x)
        return self.down(functional.gelu(self.up(x), approximate="tanh"))

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # Under tensor parallelism this process sees its own heads only, so their number is not written down.
        heads = self.qkv(x).view(batch, length, -1, 3, self.head_dim)
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(3))
        if self.context is not None:
            mixed = self.context.attend(q, k, v)
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


def expert_width(shape: GptShape, cut: Configuration) -> int:
    """Width of one expert: the experts of a token are together as wide as the MLP that they replace."""
    return 4 * shape.hidden_size // cut.experts_per_token


class GptPart(nn.Module):
    """Consecutive layers, with the embedding before the first and the head after the last."""

    def __init__(self, shape: GptShape, layers: range, cut: Configuration, place: Place | None = None) -> None:
        super().__init__()
        hidden = shape.hidden_size
        first, last = layers.start == 0, layers.stop == shape.num_layers
        self.context = place.context if place is not None else None
        self.length = shape.sequence_length
        torch.manual_seed(SEED + _ENDS)
        self.tokens = nn.Embedding(shape.vocab_size, hidden) if first else None
        self.positions = nn.Embedding(shape.sequence_length, hidden) if first else None
        self.layers = nn.ModuleDict()
        for index in layers:
            torch.manual_seed(SEED + index)  # a layer has the same weights, whoever builds it and what else
            self.layers[str(index)] = GptLayer(shape, cut, place)
        torch.manual_seed(SEED + _ENDS + 1)
        self.norm = nn.LayerNorm(hidden) if last else None
        self.head = nn.Linear(hidden, shape.vocab_size, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Token numbers or activations in; activations or logits out."""
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(self._positions(x))
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def _positions(self, x: Tensor) -> Tensor:
        if self.context is not None:
            return self.context.positions(self.length, x.device)
        return torch.arange(x.shape[1], device=x.device)


def build_part(
    shape: GptShape, layers: range, cut: Configuration, device: torch.device, place: Place | None = None
) -> GptPart:
    """A part of the model with the weights it has in the whole, cut over the ranks of `place`, whole without one."""
    with device:
        part = GptPart(shape, layers, cut, place).to(_DTYPES[shape.precision])
    if place is not None and cut.tp > 1:
        cut_tensors(part, place.along("tp"))
    if place is not None and place.replicas is not None:
        shard(part, place.replicas, cut.zero_stage)
    return part


def shard(part: GptPart, mesh: Any, zero_stage: int) -> None:
    """FSDP2 over the ranks that hold the same.

    Stage 1: one group a stage, kept gathered between micro-batches, whose weights are gathered and gradients scattered
    once a step. torch's pipeline stages know it: they leave the reduction to the last micro-batch. Stage 3: one group a
    layer, gathered whenever it is needed. Experts that one rank has alone are left as they are.
    """
    alone = set(expert_weights(part))
    each_layer = list(part.layers.values()) if zero_stage == 3 else []
    for module in (*each_layer, part):
        fully_shard(module, mesh=mesh, reshard_after_forward=zero_stage == 3, ignored_params=alone)
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
