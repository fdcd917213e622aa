"""Building blocks of the job, measured on one or two processes; none of the predicted configurations is run here.

Kernels and collectives go through `flopcast_calibration.bench`. What that leaves out is here: the host's time (Python,
autograd, DTensor's and FSDP's dispatch, torch's pipeline runner, the optimizer's bookkeeping) from models so small that
computing is nothing, and what two processes on two cores cost each other.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from flopcast_calibration.bench.collectives import members, time_collective
from flopcast_calibration.bench.kernels import (
    Case,
    adam_case,
    attention_case,
    gemm_case,
    launch_case,
    memory_case,
    scenario_shapes,
)
from flopcast_calibration.bench.timing import Timing, describe, time_call
from flopcast_calibration.measurement import Journal, Measurement
from flopcast_calibration.measurement import Shape as Measured
from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.machine import Watch, let_go, now, quietly, take_device
from flopcast_validation.job.model import GptLayer, Place, build_part, loss_of, place_in
from flopcast_validation.job.optimizer import Update
from flopcast_validation.job.runners import PlainRunner, PlainStage, trace
from flopcast_validation.job.train import foreign_share, share_of_batch
from sim.specs import Scenario
from sim.work.sums import total_params

_TINY_TOKENS = 8
_TINY_WIDTH, _TINY_VOCABULARY = 512, 512
_TINY_LENGTH_ON_GPU = 32


def tiny(shape: GptShape, depth: int, device: str) -> GptShape:
    """The job's layers over a few tokens: computing takes microseconds, what is left is the host's time.

    On a CPU weights keep their size: passing through, they push the host's own code and data out of the processor's
    cache, as they do in the job. Layers that are narrow as well take a fifth less of the host's time. A GPU's weights
    do not pass by the host, and kernels that read wide ones would take longer than it: there they are narrow.
    """
    if device == "cpu":
        return replace(shape, num_layers=depth, sequence_length=_TINY_TOKENS)
    narrow = {"hidden_size": _TINY_WIDTH, "num_heads": 8, "vocab_size": _TINY_VOCABULARY}
    return replace(shape, num_layers=depth, sequence_length=_TINY_LENGTH_ON_GPU, **narrow)


_DEPTHS = (1, 5)
_TINY_MICROBATCHES = 8
_COPIES = 24
_MOST_UPDATED = 2 * 10**8
"""Parameters of the largest update that is timed on a GPU: more of them take as much more time, and memory."""


def job_cases(scenarios: Iterable[Scenario], device: str) -> list[Case]:
    """Kernels of one process, of the shapes the scenarios run."""
    scenarios = list(scenarios)
    dtype = "float32" if scenarios[0].training.precision == "fp32" else "bfloat16"
    cases: list[Case] = [launch_case(dtype)]
    for scenario in scenarios:
        model, plan = scenario.model, scenario.plan
        tokens = plan.microbatch_size * scenario.training.sequence_length // plan.cp
        cases += [gemm_case(m, n, k, dtype, layout) for m, n, k, layout in scenario_shapes(scenario)]
        cases += _expert_cases(scenario, tokens, dtype)
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
    unique = list({(case.kind, str(sorted(case.shape.items()))): case for case in cases}.values())
    total = {int(total_params(scenario.model) / scenario.plan.tp) for scenario in scenarios}
    if device != "cpu":
        return unique + [adam_case(params) for params in {min(most, _MOST_UPDATED) for most in total}]
    # The update runs over everything once: its data are as large as the model's, and cold by themselves.
    return [cold(case) for case in unique] + [adam_case(params // share) for params in total for share in (1, 4)]


def _expert_cases(scenario: Scenario, tokens: int, dtype: str) -> list[Case]:
    """An expert's multiplies: forward, input gradient and weight gradient, up and down."""
    model = scenario.model
    if not model.num_experts:
        return []
    each = tokens * model.experts_per_token // model.num_experts
    wide, narrow = model.expert_intermediate_size, model.hidden_size
    return [
        gemm_case(*size, dtype, layout)
        for n, k in ((wide, narrow), (narrow, wide))
        for size, layout in (((each, n, k), "nt"), ((each, k, n), "nn"), ((k, n, each), "tn"))
    ]


def measure_kernels(journal: Journal, cases: list[Case], device: str, patience_s: float) -> None:
    """Time what the journal does not hold yet, while others are quiet; waits at most `patience_s` in all. [s]"""
    until = time.monotonic() + patience_s
    for case in cases:
        if Measurement(case.kind, case.shape, 1.0).key in journal.done:
            continue
        try:
            call = case.prepare(device)
            timing, foreign = quietly(
                lambda call=call: time_call(call, device, budget_s=0.2 if patience_s else 0.04),
                _alone,
                1,
                until - time.monotonic(),
            )
        except torch.OutOfMemoryError:
            continue  # the others stand for it
        journal.add(Measurement(case.kind, case.shape, *timing, source=device, extra={"foreign_share": foreign}))


def cold(case: Case) -> Case:
    """The case over many copies of its data, its results kept alive, as a model's layers follow each other.

    Timed on one set of data a kernel finds weights and results of its last run in the processor's cache. In a step it
    meets each layer's weights once, and writes activations that are kept for the backward.
    """

    def prepare(device: str) -> Callable[[], Any]:
        calls = itertools.cycle([case.prepare(device) for _ in range(_COPIES)])
        kept = deque[Any](maxlen=_COPIES)
        return lambda: kept.append(next(calls)())

    return Case(case.kind, case.shape, prepare)


def _alone(watch: Watch) -> float:
    return watch.foreign_share(watch.own_s())


def measure_collectives(
    journal: Journal | None, tasks: list[Measured], per_node: int, device: str, patience_s: float
) -> None:
    """Collectives and sends of groups of the ranks that call this together; the first of them keeps the journal."""
    groups: dict[tuple[int, ...], Any] = {}
    for shape in tasks:
        (who,) = members(shape, per_node)
        if who not in groups:
            groups[who] = dist.new_group(list(who))
        if dist.get_rank() in who:
            group, budget_s = groups[who], 0.25 if patience_s else 0.05
            timing, _ = time_collective(shape, group, group, dist.get_rank(), device, budget_s)
            if journal is not None:
                source = f"{dist.get_world_size()} {device} ranks, {'nccl' if device == 'cuda' else 'gloo'}"
                journal.add(Measurement("collective", shape, *timing, source=source))
        dist.barrier()


def host_times(
    shape: GptShape, cut: Configuration, device: str, here: torch.device, patience_s: float
) -> dict[str, float]:
    """The host's time over models of two depths: the slope is a layer's, the rest a visit's to a stage.  [s]

    Every rank calls this at once. Where they are more than the cut has, they are so many jobs of it side by side, of
    which each rank takes part in its own.
    """
    place = place_in(replace(cut, dp=cut.dp * (dist.get_world_size() // cut.num_ranks)), device)
    place = replace(place, cut=cut, replicas=place.replicas if cut.num_replicas > 1 else None)
    shallow, deep = (_tiny_times(tiny(shape, depth, device), place, device, here, patience_s) for depth in _DEPTHS)
    more = _DEPTHS[1] - _DEPTHS[0]
    slope = {name: (deep[name] - shallow[name]) / more for name in shallow}
    rest = {name: shallow[name] - _DEPTHS[0] * slope[name] for name in shallow}
    return {
        "layer_forward_s": slope["F"],
        "layer_backward_s": slope["B"],
        "visit_forward_s": rest["F"],
        "visit_backward_s": rest["B"],
        # What torch's pipeline takes around a micro-batch's forward and backward.
        "runner_s": deep["step"] / _TINY_MICROBATCHES - deep["F"] - deep["B"],
        "layer_update_s": slope["update"],
        "update_s": rest["update"],
        # Share of a layer's host time in which the process waits for messages, using no processor.
        "waiting": max(0.0, 1.0 - slope["cpu"] / slope["step"]),
    }


def _tiny_times(shape: GptShape, place: Place, device: str, here: torch.device, patience_s: float) -> dict[str, float]:
    """Median seconds of forward, backward, the pipeline's step and the update of a tiny model of one stage.

    On a GPU these are the host's: it does not wait for the kernels that it launches.
    """
    part = build_part(shape, range(shape.num_layers), place.cut, here, place)
    stage, runner = _tiny_runner(part, place, here)
    optimizer = Update([part], shape.hidden_size, place.cut.num_replicas)
    events: list[Any] = []
    trace(stage, events)
    batched = replace(place, cut=Configuration(cp=place.cut.cp, microbatches=_TINY_MICROBATCHES), dp=0)
    inputs, targets = (tensor.to(here) for tensor in share_of_batch(shape, batched, 0))

    def step() -> dict[str, float]:
        samples: dict[str, list[float]] = {"F": [], "B": [], "step": [], "update": [], "cpu": []}
        for _ in range(12 if patience_s else 5):
            events.clear()
            begin = now(device)
            optimizer.clear()
            cleared, used = time.perf_counter(), time.process_time()
            runner.step(inputs, target=targets, losses=[], return_outputs=False)
            ran = time.perf_counter()
            samples["cpu"].append(time.process_time() - used)
            optimizer.step()
            samples["update"].append(time.perf_counter() - ran + cleared - begin)
            samples["step"].append(ran - cleared)
            for kind in "FB":
                samples[kind].append(statistics.median(end - start for k, _, _, start, end in events if k == kind))
        return {name: statistics.median(values[2:]) for name, values in samples.items()}

    if patience_s:
        step()
    return quietly(step, foreign_share, dist.get_world_size(), patience_s)[0]


def _tiny_runner(part: Any, place: Place, here: torch.device) -> tuple[Any, Any]:
    """A stage of this rank's own, and what runs it."""
    if place.cut.zero_stage == 3:
        plain = PlainStage(part, _TINY_MICROBATCHES)
        return plain, PlainRunner(plain)
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    stage = PipelineStage(part, 0, 1, here, group=alone)
    return stage, ScheduleGPipe(stage, _TINY_MICROBATCHES, loss_fn=loss_of)


def stack_call(shape: GptShape, here: torch.device) -> Callable[[], Any]:
    """Forward and backward of some layers of the job: the mix of work that processes share cores and memory for."""
    layers = torch.nn.Sequential(*(GptLayer(shape, Configuration()) for _ in range(4))).to(here)
    x = torch.randn(1, shape.sequence_length, shape.hidden_size, device=here, requires_grad=True)
    return lambda: layers(x).sum().backward()


def capacity(shape: GptShape, device: str, here: torch.device, patience_s: float) -> dict[str, float]:
    """Some layers on one process alone, then on all at once: how many cores' worth of work the machine does. [s]"""
    call = stack_call(shape, here)
    quiet: dict[str, float] = {}

    def timed(active: bool) -> Timing | None:
        dist.barrier()
        timing = time_call(call, device, budget_s=3.0 if patience_s else 0.7, most=500) if active else None
        dist.barrier()
        return timing

    alone, quiet["alone"] = quietly(lambda: timed(dist.get_rank() == 0), foreign_share, 1, patience_s)
    crowd, quiet["crowd"] = quietly(lambda: timed(True), foreign_share, dist.get_world_size(), patience_s)
    together = torch.tensor(crowd.median_s, dtype=torch.float64)
    dist.all_reduce(together)
    size = dist.get_world_size()
    single = alone.median_s if alone is not None else float("nan")
    return {"alone_s": single, "together_s": float(together) / size, "processes": size, **quiet}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Measure what `job` asks for on every rank; kernels and collectives go to their journal, the rest is answered."""
    device, patience_s = job["device"], job["patience_s"]
    here = take_device(device)
    journal = Journal(Path(job["journal"]), describe(device)) if "journal" in job and dist.get_rank() == 0 else None
    if job["what"] == "kernels":
        scenarios = [Scenario.model_validate(item) for item in job["scenarios"]]
        measure_kernels(journal, job_cases(scenarios, device), device, patience_s)
        return {}
    if job["what"] == "collectives":
        measure_collectives(journal, job["tasks"], job["ranks_per_node"], device, patience_s)
        return {}
    shape = GptShape(**job["shape"])
    if job["what"] == "capacity":
        return capacity(shape, device, here, patience_s)
    found = []
    for cut in job["cuts"]:
        found.append(host_times(shape, Configuration(**cut), device, here, patience_s))
        let_go(device)
    return {"host": found}
