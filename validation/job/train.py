"""One rank of the job: builds its part, trains some steps, and says losses, times and what it did in which order.

The same code on CPUs with gloo and on GPUs with NCCL.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.device import now, take_device
from flopcast_validation.job.model import batch_of, place_in
from flopcast_validation.job.optimizer import Update
from flopcast_validation.job.runners import Event, build_stages, home_of_stages, trace

WARM_UP = 3
"""Steps that fault memory in, and that let torch's pipeline find out the shapes it sends."""


def train(shape: GptShape, cut: Configuration, device: str, steps: int) -> dict[str, Any]:
    """Train some steps, after a few to warm up; the same on all ranks.

    Returns
    -------
    dict
        losses : of every step, the warm-up included.
        seconds : the slowest rank's, of the steps after it. [s]
        orders : (pipeline rank, what it did in the last step: "2F0" …) of every rank.
    """
    here = take_device(device)
    place = place_in(cut, device)
    stages, runner = build_stages(shape, place, here)
    optimizer = Update([stage.submod for stage in stages], shape.hidden_size)
    events: list[Event] = []
    for stage in stages:
        trace(stage, events)
    home, rank = home_of_stages(cut), place.rank("pp")

    losses, seconds = [], []
    for step in range(WARM_UP + steps):
        batch = batch_of(shape, cut.global_batch_size, step)
        inputs, targets = (whole.chunk(cut.dp)[place.rank("dp")].to(here) for whole in batch)
        events.clear()
        dist.barrier()
        begin = now(device)
        optimizer.clear()
        loss = _run_pipeline(runner, inputs, targets, rank == home[0], rank == home[-1])
        optimizer.step()
        took = now(device) - begin
        # The mean over the replicas that hold the head, whose tensor-parallel group holds it tp times over.
        losses.append(_agreed(loss, dist.ReduceOp.SUM) / (cut.dp * cut.tp))
        seconds.append(_agreed(took, dist.ReduceOp.MAX))
    orders: list[Any] = [None] * cut.num_ranks
    done = [f"{stage}{kind}{microbatch}" for kind, stage, microbatch, *_ in sorted(events, key=lambda each: each[3])]
    dist.all_gather_object(orders, (rank, done))
    return {"losses": losses, "seconds": seconds[WARM_UP:], "orders": orders}


def _run_pipeline(runner: Any, inputs: Tensor, targets: Tensor, first: bool, last: bool) -> float:
    """One pass of the schedule; returns this rank's mean loss, or 0 where the head is elsewhere."""
    losses: list[Tensor] = []
    arguments = (inputs,) if first else ()
    runner.step(*arguments, **({"target": targets, "losses": losses} if last else {}), return_outputs=False)
    return float(torch.stack(losses).detach().mean()) if last else 0.0


def _agreed(number: float, operation: Any) -> float:
    """All ranks' numbers put together; the hosts tell each other, without the devices."""
    found = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(found, op=operation)
    return float(found)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train what `job` describes."""
    return train(GptShape(**job["shape"]), Configuration(**job["configuration"]), job["device"], job["steps"])
