"""A mixture of experts: a router, tokens to their experts on other ranks and back, an MLP for each expert.

Each rank holds some of the experts, whole [1]_. Which experts a token goes to is forced to be even, as benchmarks of
other frameworks do [2]_, so that all ranks have the same to do; the router's scores weigh what they give, and learn.

.. [1] Lepikhin et al. 2021, "GShard", arXiv:2006.16668, section 2.2.
.. [2] NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py, moe_router_force_load_balancing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class AllToAll(torch.autograd.Function):
    """Rows to other ranks, so many to each; their gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        """`sent` rows to each rank of the group, `received` from each."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The rows' gradients."""
        return _exchange(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    out = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
    return out


class Experts(nn.Module):
    """The block of experts of one layer: those of this rank, each `width` wide, and the router, which every rank has.

    The experts are dealt over `group`; without one all are here.
    """

    def __init__(self, hidden: int, width: int, num_experts: int, per_token: int, group: Any = None) -> None:
        super().__init__()
        self.num_experts, self.per_token, self.group = num_experts, per_token, group
        self.ranks, place = (1, 0) if group is None else (group.size(), group.rank())
        self.router = nn.Linear(hidden, num_experts)
        # All are made, and those of this rank kept: the same weights, however they are dealt.
        every = [
            nn.Sequential(nn.Linear(hidden, width), nn.GELU(approximate="tanh"), nn.Linear(width, hidden))
            for _ in range(num_experts)
        ]
        here = num_experts // self.ranks
        self.experts = nn.ModuleList(every[place * here : (place + 1) * here])

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] to the same."""
        tokens = x.flatten(0, 1)
        chosen, weights = self._route(tokens)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        rows = self._through_experts(tokens.index_select(0, order // self.per_token), counts)
        home = torch.empty_like(order)
        home[order] = torch.arange(len(order), device=order.device)
        mixed = rows.index_select(0, home).unflatten(0, (-1, self.per_token)) * weights.unsqueeze(-1)
        return mixed.sum(dim=1).view_as(x)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(experts of every token, their weights)."""
        scores = self.router(tokens).float().softmax(dim=-1)
        turn = torch.arange(len(tokens), device=tokens.device).unsqueeze(1) * self.per_token
        forced = (torch.arange(self.num_experts, device=tokens.device) - turn) % self.num_experts < self.per_token
        chosen = (scores + forced).topk(self.per_token, dim=-1).indices
        weights = scores.gather(1, chosen)
        return chosen, (weights / weights.sum(dim=-1, keepdim=True)).to(tokens.dtype)

    def _through_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows, sorted by expert and so many to each, through the experts, wherever these are."""
        if self.ranks == 1:
            return self._apply_experts(rows, counts.tolist())
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts, group=self.group)
        here = self.num_experts // self.ranks
        sent, received = (each.view(self.ranks, here).sum(dim=1).tolist() for each in (counts, there))
        arrived = AllToAll.apply(rows, sent, received, self.group)
        # From every rank they come sorted by expert: lay them out by expert over all ranks, and back again.
        expert = torch.arange(here, device=rows.device).repeat(self.ranks).repeat_interleave(there)
        order = expert.argsort(stable=True)
        through = self._apply_experts(arrived.index_select(0, order), there.view(self.ranks, here).sum(dim=0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return AllToAll.apply(through.index_select(0, back), received, sent, self.group)

    def _apply_experts(self, rows: Tensor, counts: list[int]) -> Tensor:
        parts = rows.split(counts)
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])


def expert_weights(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that only one rank holds."""
    dealt = [block for block in module.modules() if isinstance(block, Experts) and block.ranks > 1]
    return [param for block in dealt for param in block.experts.parameters()]


def add_up_weights(part: nn.Module, replicas: int) -> None:
    """Nothing is averaged over ranks that hold an expert alone: its gradient has all replicas' tokens already."""
    for param in expert_weights(part):
        if param.grad is not None:
            param.grad.div_(replicas)
