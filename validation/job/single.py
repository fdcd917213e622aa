"""The plain job: one process, no wrappers. Every cut of it must give the same losses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.machine import take_device
from flopcast_validation.job.model import batch_of, build_part, loss_of
from flopcast_validation.job.optimizer import Update


def single_process(
    shape: GptShape, cut: Configuration, batch: int, steps: int, here: torch.device, at_once: int | None = None
) -> list[float]:
    """Loss of every step, with the experts of `cut` and `at_once` sequences together (default: all of the batch)."""
    model = build_part(shape, range(shape.num_layers), Configuration(num_experts=cut.num_experts), here)
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


def described(shape: GptShape, cut: Configuration, device: str, steps: int) -> dict[str, Any]:
    """The job of the single process that a configuration is held against."""
    plain = asdict(Configuration(num_experts=cut.num_experts))
    return {
        "shape": asdict(shape), "configuration": plain, "device": device, "steps": steps, "batch": cut.global_batch_size
    }  # fmt: skip


def run(job: dict[str, Any]) -> list[float] | None:
    """The losses of what `job` describes; None where it does not fit the device's memory."""
    here = take_device(job["device"])
    # A GPU that the model fills has no room for a whole batch's activations.
    at_once = None if job["device"] == "cpu" else 1
    shape, cut = GptShape(**job["shape"]), Configuration(**job["configuration"])
    try:
        return single_process(shape, cut, job["batch"], job["steps"], here, at_once)
    except torch.OutOfMemoryError:
        return None
