"""Building blocks of the job, measured on one or two processes; none of the predicted configurations is run here.

Kernels and collectives go through `calibration.bench`. What that leaves out is here: the host's time (Python,
autograd, DTensor's dispatch, torch's pipeline runner, the optimizer's bookkeeping) from models so small that computing
is nothing, and what two processes on two cores cost each other.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from calibration.bench.kernels import (
    Case,
    adam_case,
    attention_case,
    gemm_case,
    launch_case,
    memory_case,
    scenario_shapes,
)
from calibration.bench.machine import describe, settle
from calibration.bench.timing import Timing, time_call
from calibration.measurement import Journal, Measurement
from sim.specs import Scenario
from sim.work.params import total_params
from validation.job.configs import GptShape
from validation.job.model import GptLayer, batch_of, build_part, cut_tensors, loss_of
from validation.job.quiet import Watch, quietly
from validation.job.train import clear, foreign_share, make_optimizers, trace, update

_TINY_TOKENS = 8


def tiny(shape: GptShape, depth: int) -> GptShape:
    """The job's layers over a few tokens: computing takes microseconds, what is left is the host's time.

    Weights keep their size: passing through, they push the host's own code and data out of the processor's cache, as
    they do in the job. Layers that are narrow as well take a fifth less of the host's time.
    """
    return replace(shape, num_layers=depth, sequence_length=_TINY_TOKENS)


_DEPTHS = (1, 5)
_TINY_MICROBATCHES = 8
_COPIES = 24


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Host time of a layer, and of a visit to a stage on top of its layers, by direction; of the update. [s]"""

    layer_forward_s: float
    layer_backward_s: float
    visit_forward_s: float
    visit_backward_s: float
    layer_update_s: float
    update_s: float
    waiting: float
    """Share of a layer's host time in which the process waits for messages, using no processor."""


def job_cases(scenarios: Iterable[Scenario], device: str) -> list[Case]:
    """Kernels of one process, of the shapes the scenarios run."""
    dtype = "float32"
    cases: list[Case] = [launch_case(dtype)]
    for scenario in scenarios:
        model, plan = scenario.model, scenario.plan
        tokens = plan.microbatch_size * scenario.training.sequence_length
        cases += [gemm_case(m, n, k, dtype, layout) for m, n, k, layout in scenario_shapes(scenario)]
        heads = plan.microbatch_size * model.num_heads // plan.tp
        cases += [
            attention_case(heads, scenario.training.sequence_length, model.head_dim, dtype, True, backward)
            for backward in (False, True)
        ]
        inner = model.intermediate_size // plan.tp
        for name, hidden in (("copy", model.hidden_size), ("add", model.hidden_size), ("norm", model.hidden_size)):
            cases.append(memory_case(name, tokens, hidden, dtype))
        cases += [memory_case("gelu", tokens, inner, dtype), memory_case("softmax", tokens, model.vocab_size, dtype)]
        cases.append(memory_case("add", model.hidden_size, inner, dtype))
    unique = {(case.kind, str(sorted(case.shape.items()))): case for case in cases}.values()
    total = {int(total_params(scenario.model) / scenario.plan.tp) for scenario in scenarios}
    # The update runs over everything once: its data are as large as the model's, and cold by themselves.
    return [cold(case) for case in unique] + [adam_case(params // share) for params in total for share in (1, 4)]


def measure_kernels(journal: Journal, cases: list[Case], device: str, patience_s: float) -> None:
    """Time what the journal does not hold yet, while others are quiet; waits at most `patience_s` in all. [s]"""
    until = time.monotonic() + patience_s
    for case in cases:
        if Measurement(case.kind, case.shape, 1.0).key in journal.done:
            continue
        call = case.prepare(device)
        timing, foreign = quietly(
            lambda call=call: time_call(call, device, budget_s=0.2 if patience_s else 0.04),
            _alone,
            1,
            until - time.monotonic(),
        )
        journal.add(Measurement(case.kind, case.shape, *timing, source=device, extra={"foreign_share": foreign}))


def cold(case: Case) -> Case:
    """The case over many copies of its data, its results kept alive, as a model's layers follow each other.

    Timed on one set of data a kernel finds weights and results of its last run in the processor's cache. In a step it
    meets each layer's weights once, and writes activations that are kept for the backward.
    """

    def prepare(device: str) -> Callable[[], Any]:
        calls = [case.prepare(device) for _ in range(_COPIES)]
        kept: list[Any] = [None] * _COPIES
        turn = 0

        def call() -> None:
            nonlocal turn
            kept[turn] = calls[turn]()
            turn = (turn + 1) % _COPIES

        return call

    return Case(case.kind, case.shape, prepare)


def _alone(watch: Watch) -> float:
    return watch.foreign_share(watch.own_s())


def _together(watch: Watch) -> float:
    return foreign_share(watch, torch.device("cpu"))


def host_times(shape: GptShape, tp: int, device: str, patience_s: float) -> HostTimes:
    """The host's time over models of two depths: the slope is a layer's, the rest a visit's.

    Every rank calls this at once, in as many tensor-parallel groups as there are.
    """
    shallow, deep = (_tiny_times(tiny(shape, depth), tp, device, patience_s) for depth in _DEPTHS)
    more = _DEPTHS[1] - _DEPTHS[0]
    slope = {name: (deep[name] - shallow[name]) / more for name in shallow}
    rest = {name: shallow[name] - _DEPTHS[0] * slope[name] for name in shallow}
    runner = deep["step"] / _TINY_MICROBATCHES - deep["F"] - deep["B"]
    return HostTimes(
        slope["F"],
        slope["B"],
        rest["F"] + runner / 2,
        rest["B"] + runner / 2,
        slope["update"],
        rest["update"],
        max(0.0, 1.0 - slope["cpu"] / slope["step"]),
    )


def _tiny_times(shape: GptShape, tp: int, device: str, patience_s: float) -> dict[str, float]:
    """Median seconds of forward, backward, the pipeline's step and the update of a tiny model of one stage."""
    part = build_part(shape, range(shape.num_layers), 0).to(device)
    if tp > 1:
        mesh = init_device_mesh(device, (dist.get_world_size() // tp, tp), mesh_dim_names=("group", "tp"))
        cut_tensors(part, mesh["tp"])
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    stage = PipelineStage(part, 0, 1, torch.device(device), group=alone)
    runner = ScheduleGPipe(stage, _TINY_MICROBATCHES, loss_fn=loss_of)
    optimizers = make_optimizers([part])
    events: list[Any] = []
    trace(stage, events)
    inputs, targets = (tensor.to(device) for tensor in batch_of(shape, _TINY_MICROBATCHES, 0))

    def step() -> dict[str, float]:
        samples: dict[str, list[float]] = {"F": [], "B": [], "step": [], "update": [], "cpu": []}
        for _ in range(12 if patience_s else 5):
            events.clear()
            begin = time.perf_counter()
            clear(optimizers)
            cleared, used = time.perf_counter(), time.process_time()
            runner.step(inputs, target=targets, return_outputs=False)
            ran = time.perf_counter()
            samples["cpu"].append(time.process_time() - used)
            update(optimizers)
            samples["update"].append(time.perf_counter() - ran + cleared - begin)
            samples["step"].append(ran - cleared)
            for kind in "FB":
                samples[kind].append(statistics.median(end - start for k, _, _, start, end in events if k == kind))
        return {name: statistics.median(values[2:]) for name, values in samples.items()}

    step()
    return quietly(step, _together, dist.get_world_size(), patience_s)[0]


def stack_call(shape: GptShape, device: str) -> Callable[[], Any]:
    """Forward and backward of some layers of the job: the mix of work that processes share cores and memory for."""
    layers = torch.nn.Sequential(*(GptLayer(shape, recompute=False) for _ in range(4))).to(device)
    x = torch.randn(1, shape.sequence_length, shape.hidden_size, device=device, requires_grad=True)
    return lambda: layers(x).sum().backward()


def capacity(shape: GptShape, device: str, patience_s: float) -> dict[str, float]:
    """Some layers on one process alone, then on all at once: how many cores' worth of work the machine does. [s]"""
    call = stack_call(shape, device)
    quiet: dict[str, float] = {}

    def timed(active: bool) -> Timing | None:
        dist.barrier()
        timing = time_call(call, device, budget_s=0.7, most=500) if active else None
        dist.barrier()
        return timing

    alone, quiet["alone"] = quietly(lambda: timed(dist.get_rank() == 0), _together, 1, patience_s)
    crowd, quiet["crowd"] = quietly(lambda: timed(True), _together, dist.get_world_size(), patience_s)
    assert crowd is not None
    together = torch.tensor(crowd.median_s, dtype=torch.float64)
    dist.all_reduce(together)
    size = dist.get_world_size()
    single = alone.median_s if alone is not None else float("nan")
    return {"alone_s": single, "together_s": float(together) / size, "processes": size, **quiet}


def main(job_file: str, out: str) -> None:
    """Measure on every rank; rank 0 writes host times and capacity to `out`, kernels to their journal."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    device, shape = job["device"], GptShape(**job["shape"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        settle(device)
    if job["what"] == "kernels":
        journal = Journal(Path(job["journal"]), describe(device))
        measure_kernels(
            journal,
            job_cases([Scenario.model_validate(item) for item in job["scenarios"]], device),
            device,
            job["patience_s"],
        )
        Path(out).write_text("{}", encoding="utf-8")
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(minutes=5))
    try:
        result: dict[str, Any] = {}
        if job["what"] == "capacity":
            result["capacity"] = capacity(shape, device, job["patience_s"])
        for tp in (1, 2)[:world] if job["what"] == "host" else ():
            times = host_times(shape, tp, device, job["patience_s"])
            result[f"host_tp{tp}"] = {name: getattr(times, name) for name in HostTimes.__slots__}
        if rank == 0:
            Path(out).write_text(json.dumps(result), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
