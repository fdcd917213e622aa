"""Adam over what a rank holds: fp32 weights themselves, or fp32 masters of bf16 weights.

With masters the update is that of mixed-precision training [1]_: 16-bit gradients are cast, Adam updates masters and
moments in fp32, and the weights are the masters, rounded.

.. [1] Micikevicius et al. 2018, "Mixed precision training", arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from flopcast_validation.job.experts import add_up_weights

_WIDTH = 384
_LEARNING_RATE = 1e-3
"""At the default model's width; wider ones take smaller steps, in inverse proportion."""
_BUCKET_PARAMS = 1 << 26
"""Masters that are updated together: their gradients in fp32 are there for a moment only."""


class Update:
    """The optimizer of the parts of a model that one rank holds."""

    def __init__(self, parts: Iterable[nn.Module], hidden_size: int, replicas: int = 1) -> None:
        self.parts, self.replicas = list(parts), replicas
        params = [param for part in self.parts for param in part.parameters()]
        self.masters: list[_Masters] = []
        self.adams: list[torch.optim.Optimizer] = []
        rate = _LEARNING_RATE * min(1.0, _WIDTH / hidden_size)
        if params[0].dtype == torch.float32:
            # One for cut parameters, one for whole ones: no kernel takes both together.
            groups = [[param for param in params if isinstance(param, DTensor) is cut] for cut in (True, False)]
            self.adams = [torch.optim.Adam(group, lr=rate, fused=True) for group in groups if group]
        else:
            self.masters = [_Masters(bucket, rate) for bucket in _buckets(params)]

    def clear(self) -> None:
        """Zero the gradients and keep their memory: every micro-batch adds to them, as the simulator counts it."""
        for adam in self.adams:
            adam.zero_grad(set_to_none=False)
        for masters in self.masters:
            masters.clear()

    def step(self) -> None:
        """Update all weights."""
        for part in self.parts:
            add_up_weights(part, self.replicas)
        for adam in self.adams:
            adam.step()
        for masters in self.masters:
            masters.step()


class _Masters:
    """Adam over fp32 copies of some bf16 weights: of a cut parameter, over this rank's share."""

    def __init__(self, params: list[nn.Parameter], rate: float) -> None:
        self.params = params
        self.masters = [_local(param).detach().float() for param in params]
        self.adam = torch.optim.Adam(self.masters, lr=rate, fused=True)

    def clear(self) -> None:
        gradients = [_local(param.grad) for param in self.params if param.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)

    @torch.no_grad()
    def step(self) -> None:
        gradients = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(gradients, [_gradient(param) for param in self.params])
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.adam.step()
        torch._foreach_copy_([_local(param.detach()) for param in self.params], self.masters)
        for master in self.masters:
            master.grad = None


def _gradient(param: nn.Parameter) -> Tensor:
    """Gradient of this rank's share of a parameter; where ranks cut a table, its gradient may not be cut yet."""
    gradient = param.grad
    if isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=param.placements)
    return _local(gradient)


def _local(tensor: Tensor | None) -> Tensor:
    """This rank's share of a tensor."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _buckets(params: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The parameters, in order, about `_BUCKET_PARAMS` numbers at a time."""
    bucket: list[nn.Parameter] = []
    for param in params:
        bucket.append(param)
        if sum(each.numel() for each in bucket) >= _BUCKET_PARAMS:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
