"""One rank of the job: builds its part, trains some steps, and says losses, times and what it did when.

The plain job is here too, one process without wrappers: every cut of it must give the same losses.
The same code on CPUs with gloo and on GPUs with NCCL.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.machine import Watch, bearable, between, mark, now, take_device, wait_for_quiet
from flopcast_validation.job.model import Place, batch_of, build_part, loss_of, place_in
from flopcast_validation.job.optimizer import Update
from flopcast_validation.job.runners import Event, build_stages, home_of_stages, trace

WARM_UP = 3
"""Steps that fault memory in, and that let torch's pipeline find out the shapes it sends."""


def train(shape: GptShape, cut: Configuration, device: str, steps: int, patience_s: float) -> dict[str, Any]:
    """Train until `steps` steps were timed while the machine was ours, after a few to warm up; the same on all ranks.

    Where others do not let it be for `patience_s` [s], the quietest steps of four times as many count.

    Returns
    -------
    dict
        losses : of every step, the warm-up included.
        seconds : the slowest rank's, of the steps that count. [s]
        foreign_share : of the machine's processor time, what other programs used during the loudest of them.
        trace : of a typical one, what each rank did when. [s]
    """
    here = take_device(device)
    place = place_in(cut, device)
    stages, runner = build_stages(shape, place, here)
    optimizer = Update([stage.submod for stage in stages], shape.hidden_size, cut.num_replicas)
    events: list[Event] = []
    for stage in stages:
        trace(stage, events, partial(mark, device))
    home = home_of_stages(place)
    ends = (place.pp == home[0], place.pp == home[-1])

    where = {name: getattr(place, name) for name in ("pp", "dp", "cp", "tp")}
    losses, timed = [], []
    traces: list[Any] = []
    until, limit = time.monotonic() + patience_s, bearable(cut.num_ranks)
    for step in range(WARM_UP + (4 if patience_s else 1) * steps):
        inputs, targets = (tensor.to(here) for tensor in share_of_batch(shape, place, step))
        events.clear()
        if step >= WARM_UP and dist.get_rank() == 0:
            wait_for_quiet(cut.num_ranks, until)
        dist.barrier()
        watch, begin = Watch(), now(device)
        first = mark(device)
        optimizer.clear()
        loss = _run_pipeline(runner, inputs, targets, *ends)
        pipeline_end = now(device)
        optimizer.step()
        end = now(device)
        # The mean over the replicas that hold the head, whose tensor-parallel group holds it tp times over.
        losses.append(_agreed(loss, dist.ReduceOp.SUM) / (cut.num_replicas * cut.tp))
        foreign = foreign_share(watch)
        if step < WARM_UP:
            continue
        timed.append((_agreed(end - begin, dist.ReduceOp.MAX), foreign))
        done = [(*what, *(begin + between(first, moment) for moment in (start, stop))) for *what, start, stop in events]
        traces.append({**where, "begin": begin, "pipeline_end": pipeline_end, "end": end, "events": done})
        quiet = sum(share <= limit for _, share in timed)
        if len(timed) >= steps and quiet >= steps:
            break
    kept = sorted(range(len(timed)), key=lambda index: max(timed[index][1], limit))[:steps]
    seconds = [timed[index][0] for index in kept]
    typical = kept[int(torch.tensor(seconds).argsort()[len(kept) // 2])]
    gathered: list[Any] = [None] * cut.num_ranks
    dist.all_gather_object(gathered, traces[typical])
    return {
        "losses": losses,
        "seconds": seconds,
        "foreign_share": max(timed[index][1] for index in kept),
        "trace": gathered,
    }


def share_of_batch(shape: GptShape, place: Place, step: int) -> list[Tensor]:
    """Inputs and targets of a step that this rank works on: of its replica, and of each sequence its part."""
    share = [whole.chunk(place.cut.dp)[place.dp] for whole in batch_of(shape, place.cut.global_batch_size, step)]
    if place.context is None:
        return share
    held = place.context.positions(shape.sequence_length, "cpu")
    return [sequences[:, held] for sequences in share]


def foreign_share(watch: Watch) -> float:
    """Share of the machine that went to programs outside the job since the watch began; the same on all ranks."""
    own = _agreed(watch.own_s(), dist.ReduceOp.SUM)
    share = torch.tensor(watch.foreign_share(own), dtype=torch.float64)
    dist.broadcast(share, src=0)
    return float(share)


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


def run(job: dict[str, Any]) -> dict[str, Any] | list[float] | None:
    """Train what `job` describes; of one process that sees a whole `batch` the losses, None where memory is short."""
    shape, cut = GptShape(**job["shape"]), Configuration(**job["configuration"])
    if "batch" not in job:
        return train(shape, cut, job["device"], job["steps"], job["patience_s"])
    here = take_device(job["device"])
    # A GPU that the model fills has no room for a whole batch's activations.
    at_once = None if job["device"] == "cpu" else 1
    try:
        return single_process(shape, cut, job["batch"], job["steps"], here, at_once)
    except torch.OutOfMemoryError:
        return None
