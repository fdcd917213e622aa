"""The plain job: one process, no wrappers. Every cut of it must give the same losses."""

from __future__ import annotations

from typing import Any

import torch

from flopcast_validation.job.configs import GptShape
from flopcast_validation.job.device import take_device
from flopcast_validation.job.model import batch_of, build_part, loss_of
from flopcast_validation.job.optimizer import Update


def single_process(
    shape: GptShape, batch: int, steps: int, here: torch.device, at_once: int | None = None
) -> list[float]:
    """Loss of every step, with `at_once` sequences together (default: all of the batch)."""
    model = build_part(shape, range(shape.num_layers), here)
    optimizer = Update([model], shape.hidden_size)
    losses = []
    for step in range(steps):
        inputs, targets = (tensor.to(here).split(at_once or batch) for tensor in batch_of(shape, batch, step))
        optimizer.clear()
        pieces = []
        for some, wanted in zip(inputs, targets, strict=True):
            loss = loss_of(model(some), wanted) * (len(some) / batch)
            loss.backward()
            pieces.append(loss.detach())
        optimizer.step()
        losses.append(float(torch.stack(pieces).sum()))
    return losses


def run(job: dict[str, Any]) -> list[float] | None:
    """The losses of what `job` describes; None where it does not fit the device's memory."""
    here = take_device(job["device"])
    # A GPU that the model fills has no room for a whole batch's activations.
    at_once = None if job["device"] == "cpu" else 1
    try:
        return single_process(GptShape(**job["shape"]), job["batch"], job["steps"], here, at_once)
    except torch.OutOfMemoryError:
        return None
