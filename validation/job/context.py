"""Context parallelism: ranks share each sequence, and each gathers the others' keys and values for its own queries.

As Llama 3 was trained (arXiv:2407.21783, section 3.3.2): the sequence is cut into 2 · cp pieces, and a rank holds one
from each end, so that causal attention gives all of them the same work. torch's own context_parallel takes the kernels
of a GPU; this takes any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

# torch 2.13 renames it.
_all_gather: Any = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's place among those that share its sequences."""

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
