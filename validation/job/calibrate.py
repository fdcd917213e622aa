"""Measure this machine's building blocks and turn them into what predictions need."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from calibration.bench.machine import describe
from calibration.bench.ranks import Task, run_tasks
from calibration.build import calibrate
from calibration.measurement import Journal, Measurement, read_journal
from calibration.measurement import Shape as Measured
from sim.pricing.scenario import stage_costs
from sim.specs import Profile, load_preset
from validation.job.bench import tiny
from validation.job.configs import Configuration, GptShape
from validation.job.launch import launch
from validation.job.predict import CalibratedMachine, scenario_of

_SHARED_BY = 8
"""Processes at most for measuring how cores are shared."""


def calibrate_machine(
    shape: GptShape,
    suite: tuple[Configuration, ...],
    device: str,
    folder: Path,
    patience_s: float,
    report: Callable[[str], None],
) -> tuple[CalibratedMachine, dict[str, Any]]:
    """Kernels, collectives of two ranks, host times and the sharing of cores; never a configuration of the suite.

    Parameters
    ----------
    folder : Path
        Where the measurements are kept; those already there are not taken again.
    patience_s : float
        How long each kind of measurement waits for other programs to leave the machine alone. [s]
    report : function
        Told what is being measured.

    Returns
    -------
    CalibratedMachine, dict
        What to predict with, and the facts for the record: device, host times, how cores are shared.
    """
    node = "cpu-host" if device == "cpu" else _node_of(device)
    cpu = device == "cpu"
    base = _base(node)
    ranks = 2 if cpu else min(2, int(describe(device)["num_gpus"]))
    processors = min(_SHARED_BY, os.cpu_count() or 1)
    journal = folder / "kernels.jsonl"
    cuts = sorted({(cut.tp, cut.microbatch_size) for cut in suite})
    questions = [
        scenario_of(shape, Configuration(tp=tp, microbatch_size=size, microbatches=1), node, base, 1.0 if cpu else None)
        for tp, size in cuts
    ]
    ask = {"device": device, "shape": asdict(shape), "patience_s": patience_s}
    report("kernels")
    described = [question.model_dump(mode="json") for question in questions]
    launch("validation.job.bench", {**ask, "what": "kernels", "journal": str(journal), "scenarios": described}, 1)
    if ranks > 1:
        report("collectives")
        kept = Journal(journal, describe(device))
        tasks: list[Task] = [("collective", item) for item in _collectives(4 * 10**7, 1 if patience_s else 3)]
        left = [task for task in tasks if Measurement(*task, 1.0).key not in kept.done]
        run_tasks(kept, device, left, ranks)
    report("host times")
    host = launch("validation.job.bench", {**ask, "what": "host"}, ranks)
    cores: list[tuple[int, float]] = []
    sharing = []
    crowded = any(cut.num_ranks > processors for cut in suite)
    for processes in (processors, 2 * processors)[: 1 + crowded] if cpu else ():
        report(f"{processes} processes at once")
        found = launch("validation.job.bench", {**ask, "what": "capacity"}, processes)["capacity"]
        sharing.append(found)
        # A machine of one processor shares it from the second process on.
        cores.append((processes, min(processors, max(1.0, processes * found["alone_s"] / found["together_s"]))))
    data = read_journal(journal)
    fitted = calibrate("this machine", data, questions[0].cluster, base, draws=1)
    machine = CalibratedMachine(fitted.profile, node, tuple(cores), {})
    times = {
        (tp, False): _without_kernels(host[f"host_tp{tp}"], shape, tp, machine)
        for tp in (1, 2)
        if f"host_tp{tp}" in host
    }
    if cpu and crowded:
        report("host times on shared cores")
        crowd = launch("validation.job.bench", {**ask, "what": "host"}, 2 * processors)["host_tp2"]
        # Twice as many processes as processors, never idle together: what each takes of the cores is its work.
        share = machine.cores[-1][1] / (2 * processors)
        work = {name: value * share for name, value in crowd.items()} | {"waiting": 0.0}
        times[2, True] = _without_kernels(work, shape, 2, machine)
    facts = {
        **{name: data.machine[name] for name in ("device", "torch", "python", "date") if name in data.machine},
        "processors": os.cpu_count(),
        "cores": dict(cores),
        "sharing": sharing,
        "host_s": {f"tp{tp}{' crowded' if many else ''}": found for (tp, many), found in times.items()},
        "fit_median_error": {name: fit.median_error for name, fit in fitted.fits.items()},
    }
    return replace(machine, host=times), facts


def _without_kernels(
    measured: dict[str, float], shape: GptShape, tp: int, machine: CalibratedMachine
) -> dict[str, float]:
    """The host's share of the tiny model's times: without kernels and collectives that are priced on their own."""
    one, two = (
        stage_costs(
            scenario_of(tiny(shape, depth), Configuration(tp=tp, microbatches=8), machine.node, machine.profile, 1.0)
        )
        for depth in (1, 2)
    )
    forward, backward = (float((getattr(two, name) - getattr(one, name))[0]) for name in ("forward_s", "backward_s"))
    rest_forward = float(one.forward_s[0]) - forward
    rest_backward = float(one.backward_s[0]) - backward
    priced = {
        "layer_forward_s": forward,
        "layer_backward_s": backward,
        "visit_forward_s": rest_forward,
        "visit_backward_s": rest_backward,
        "layer_update_s": float((two.optimizer_s - one.optimizer_s)[0]),
        "update_s": float((2 * one.optimizer_s - two.optimizer_s)[0]),
    }
    return {name: max(0.0, value - priced.get(name, 0.0)) for name, value in measured.items()}


def _collectives(largest: float, doublings: int) -> list[Measured]:
    """Collectives and sends of two processes, in the sizes of the job's tensors, so many doublings apart."""
    operations = ("all_reduce", "all_gather", "reduce_scatter", "send")
    sizes = [2**exponent for exponent in range(12, 27, doublings) if 2**exponent <= largest]
    return [{"operation": name, "num_ranks": 2, "nbytes": size} for name in operations for size in sizes]


def _base(node: str) -> Profile:
    """Where values come from that are not measured here: the A100's, as in `flopcast calibrate run`."""
    gpu = load_preset("gpus", str(load_preset("nodes", node)["gpu"]))["name"]
    return Profile.read(load_preset("profiles", "a100"), "profile a100").replace(gpu=gpu)


def _node_of(device: str) -> str:
    """Node preset that has this machine's GPU."""
    from calibration.cli import _cluster

    return str(_cluster(None, describe(device)).node.name)
