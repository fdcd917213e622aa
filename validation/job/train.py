"""One process of the job, under torchrun: builds its part, trains some steps, writes down losses, times and a trace.

The same code on CPUs with gloo and on GPUs with NCCL.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.tensor import DTensor

from calibration.bench.machine import settle
from sim.schedules import build_order
from validation.job.configs import Configuration, GptShape
from validation.job.model import batch_of, build_part, cut_tensors, loss_of
from validation.job.quiet import Watch, bearable, wait_for_quiet

#: Our name -> torch's class, and whether it takes several stages a rank. A new schedule is one line.
SCHEDULES: dict[str, tuple[Any, bool]] = {
    "gpipe": (torch_schedules.ScheduleGPipe, False),
    "1f1b": (torch_schedules.Schedule1F1B, False),
    "interleaved": (torch_schedules.ScheduleInterleaved1F1B, True),
    "breadth_first": (torch_schedules.ScheduleLoopedBFS, True),
    "zb_interleaved": (torch_schedules.ScheduleInterleavedZeroBubble, True),
    "zb_v": (torch_schedules.ScheduleZBVZeroBubble, True),
}
SEED = 17
LEARNING_RATE = 1e-3
WARM_UP = 3
"""Steps that fault memory in, and that let torch's pipeline find out the shapes it sends."""
Event = tuple[str, int, int, float, float]
"""(F, B, I or W, stage, micro-batch, begin, end) [s]"""


def make_optimizers(parts: list[Any]) -> list[torch.optim.Optimizer]:
    """Adam over all that the parts hold: one for cut parameters, one for whole ones; no kernel takes both together."""
    params = [param for part in parts for param in part.parameters()]
    groups = [[param for param in params if isinstance(param, DTensor) is cut] for cut in (True, False)]
    return [torch.optim.Adam(group, lr=LEARNING_RATE, fused=True) for group in groups if group]


def clear(optimizers: list[torch.optim.Optimizer]) -> None:
    """Zero the gradients and keep their memory: every micro-batch then adds to them, as the simulator counts it."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)


def update(optimizers: list[torch.optim.Optimizer]) -> None:
    """Step them all."""
    for optimizer in optimizers:
        optimizer.step()


def train(shape: GptShape, configuration: Configuration, device: str, steps: int, patience_s: float) -> dict[str, Any]:
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
    cut = configuration
    mesh = init_device_mesh(device, (cut.pp, cut.dp, cut.tp), mesh_dim_names=("pp", "dp", "tp"))
    place = {name: mesh.get_local_rank(name) for name in ("pp", "dp", "tp")}
    where = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    num_stages = cut.pp * cut.num_chunks
    share = shape.num_layers // num_stages
    stages = []
    home = build_order(cut.schedule, cut.pp, cut.num_chunks, cut.microbatches).rank_of_stage.tolist()
    for index in (stage for stage, rank in enumerate(home) if rank == place["pp"]):
        layers = range(index * share, (index + 1) * share)
        part = build_part(shape, layers, SEED, cut.recompute == "full").to(where)
        if cut.tp > 1:
            cut_tensors(part, mesh["tp"])
        if cut.dp > 1:
            _cut_data(part, mesh["dp"])
        stages.append(PipelineStage(part, index, num_stages, where, group=mesh.get_group("pp")))
    make, takes_several = SCHEDULES[cut.schedule]
    runner = make(stages if takes_several else stages[0], cut.microbatches, loss_fn=loss_of)
    optimizers = make_optimizers([stage.submod for stage in stages])
    events: list[Event] = []
    for stage in stages:
        trace(stage, events)

    losses, timed = [], []
    traces: list[Any] = []
    until, limit = time.monotonic() + patience_s, bearable(cut.num_ranks)
    for step in range(WARM_UP + (4 if patience_s else 1) * steps):
        inputs, targets = (
            whole.chunk(cut.dp)[place["dp"]].to(where) for whole in batch_of(shape, cut.global_batch_size, step)
        )
        events.clear()
        if step >= WARM_UP and dist.get_rank() == 0:
            wait_for_quiet(cut.num_ranks, until)
        dist.barrier()
        watch, begin = Watch(), _now(device)
        clear(optimizers)
        ends = (place["pp"] == home[0], place["pp"] == home[-1])
        loss = _run_pipeline(runner, inputs, targets, *ends)
        pipeline_end = _now(device)
        update(optimizers)
        end = _now(device)
        losses.append(_mean_loss(loss, where, cut))
        foreign = foreign_share(watch, where)
        if step < WARM_UP:
            continue
        timed.append((_slowest(end - begin, where), foreign))
        traces.append({**place, "begin": begin, "pipeline_end": pipeline_end, "end": end, "events": list(events)})
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


def foreign_share(watch: Watch, where: torch.device) -> float:
    """Share of the machine that went to programs outside the job since the watch began; the same on all ranks."""
    own = torch.tensor(watch.own_s(), dtype=torch.float64, device=where)
    dist.all_reduce(own)
    share = torch.tensor(watch.foreign_share(float(own)), dtype=torch.float64, device=where)
    dist.broadcast(share, src=0)
    return float(share)


def _cut_data(part: Any, mesh: Any) -> None:
    """FSDP2 over the data-parallel mesh: weights gathered and gradients scattered once a step (ZeRO stage 1's traffic).

    torch's pipeline stages know it: they leave the reduction to the last micro-batch. One group a stage, kept gathered
    between micro-batches.
    """
    fully_shard(part, mesh=mesh, reshard_after_forward=False)
    part.set_force_sum_reduction_for_comms(True)  # gloo has no averaging reduction
    part.set_gradient_divide_factor(float(mesh.size()))


def _run_pipeline(runner: Any, inputs: Tensor, targets: Tensor, first: bool, last: bool) -> float:
    """One pass of the schedule; returns this rank's mean loss, or 0 where the head is elsewhere."""
    losses: list[Tensor] = []
    arguments = (inputs,) if first else ()
    runner.step(*arguments, **({"target": targets, "losses": losses} if last else {}), return_outputs=False)
    return float(torch.stack(losses).detach().mean()) if last else 0.0


def _mean_loss(loss: float, where: torch.device, cut: Configuration) -> float:
    """Mean over the replicas that hold the head; the tensor-parallel group holds it tp times over."""
    total = torch.tensor(loss, dtype=torch.float64, device=where)
    dist.all_reduce(total)
    return float(total) / (cut.dp * cut.tp)


def _slowest(seconds: float, where: torch.device) -> float:
    time_ = torch.tensor(seconds, dtype=torch.float64, device=where)
    dist.all_reduce(time_, op=dist.ReduceOp.MAX)
    return float(time_)


def _now(device: str) -> float:
    """Seconds of a clock that all processes of a machine share."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def trace(stage: Any, events: list[Event]) -> None:
    """Have the stage note when each forward and backward begins and ends.

    On a GPU the end is when the host has launched them: waiting there would undo the overlap that is measured.
    """

    def noting(kind: str, call: Callable[..., Any], microbatch: int, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = call(microbatch, *args, **kwargs)
        kind = "I" if kind == "B" and not kwargs.get("full_backward", True) else kind
        events.append((kind, stage.stage_index, microbatch, begin, time.perf_counter()))
        return result

    stage.forward_one_chunk = partial(noting, "F", stage.forward_one_chunk)
    stage.backward_one_chunk = partial(noting, "B", stage.backward_one_chunk)
    stage.backward_weight_one_chunk = partial(noting, "W", stage.backward_weight_one_chunk)


def main(job_file: str, out: str) -> None:
    """Run what `job_file` describes; rank 0 writes the results to `out`."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    device = job["device"]
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        settle(device)  # a rank is one core's worth of work
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(minutes=5))
    try:
        result = train(
            GptShape(**job["shape"]), Configuration(**job["configuration"]), device, job["steps"], job["patience_s"]
        )
        if dist.get_rank() == 0:
            Path(out).write_text(json.dumps(result), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
