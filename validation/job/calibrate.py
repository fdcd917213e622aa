"""Measure this machine's building blocks and turn them into what predictions need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flopcast_calibration.bench.timing import describe
from flopcast_calibration.build import calibrate
from flopcast_calibration.measurement import Journal, Measurement, read_journal
from flopcast_calibration.measurement import Shape as Measured
from flopcast_calibration.node import measured_cluster
from flopcast_validation.job.bench import tiny
from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.launch import joined_world, launch
from flopcast_validation.job.predict import CalibratedMachine, scenario_of, with_update
from sim.pricing.stages import StageSeconds, stage_costs
from sim.specs import Profile, Scenario, load_preset
from sim.specs.loading import profile_of_gpu

_SHARED_BY = 8
"""Processes at most for measuring how cores are shared."""
_BENCH = "flopcast_validation.job.bench"


@dataclass(frozen=True, slots=True)
class Bench:
    """A calibration under way.

    node : preset of this machine.
    ranks, ranks_per_node : processes that may measure together, and of these on one machine.
    journal : file of kernels and collectives.
    """

    shape: GptShape
    suite: tuple[Configuration, ...]
    device: str
    node: str
    ranks: int
    ranks_per_node: int
    journal: Path
    patience_s: float
    report: Callable[[str], None]

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Machines that the ranks are on, and ranks on each; None where they are on one."""
        return (self.ranks // self.ranks_per_node, self.ranks_per_node) if self.ranks > self.ranks_per_node else None

    def ask(self, what: str, ranks: int, **more: Any) -> Any:
        """Have `ranks` processes measure something together."""
        common = {"device": self.device, "shape": asdict(self.shape), "patience_s": self.patience_s}
        return launch(_BENCH, {**common, "what": what, **more}, ranks)

    def scenario(self, cut: Configuration, shape: GptShape | None = None, profile: Profile | None = None) -> Scenario:
        """What the simulator is asked about a configuration on this machine, nothing shared."""
        base = profile or base_profile(self.node)
        cores = 1.0 if self.device == "cpu" else None
        return scenario_of(shape or self.shape, cut, self.node, base, cores, self.nodes)


def calibrate_machine(
    shape: GptShape,
    suite: tuple[Configuration, ...],
    device: str,
    folder: Path,
    patience_s: float,
    report: Callable[[str], None],
) -> tuple[CalibratedMachine, dict[str, Any]]:
    """Kernels, collectives, host times and the sharing of cores; never a configuration of the suite.

    Measurements are kept in `folder`, and those already there are not taken again. Each kind waits up to `patience_s`
    [s] for other programs to leave the machine alone. Returns what to predict with, and the facts for the record:
    device, host times, how cores are shared.
    """
    found = describe(device)
    ranks, per_node = ranks_there_are(device, found)
    node = str(measured_cluster(found).node.name)
    bench = Bench(shape, suite, device, node, ranks, per_node, folder / "kernels.jsonl", patience_s, report)
    questions = _measure_kernels(bench)
    _measure_collectives(bench)
    cores, sharing = _measure_sharing(bench)
    data = read_journal(bench.journal)
    fitted = calibrate("this machine", data, questions[0].cluster, base_profile(node), draws=1)
    machine = CalibratedMachine(fitted.profile, node, cores, {}, bench.nodes)
    machine = replace(machine, host=_measure_host(bench, machine))
    facts = {
        **{name: data.machine[name] for name in ("device", "torch", "python", "date") if name in data.machine},
        "processors": os.cpu_count(),
        "ranks": ranks,
        "cores": dict(cores),
        "sharing": sharing,
        "host_s": {f"{cut.name}{' crowded' if many else ''}": times for (cut, many), times in machine.host.items()},
        "fit_median_error": {name: fit.median_error for name, fit in fitted.fits.items()},
    }
    return machine, facts


def ranks_there_are(device: str, found: dict[str, Any]) -> tuple[int, int]:
    """(processes that may work together, on one machine): torchrun's, or one a GPU; two on a CPU.

    found : what `describe` says of the machine.
    """
    others = joined_world()
    if others is not None:
        return others.size, others.ranks_per_node
    ranks = 2 if device == "cpu" else int(found["num_gpus"])
    return ranks, ranks


def _measure_kernels(bench: Bench) -> list[Scenario]:
    """Time the kernels of one process; the scenarios whose kernels they are."""
    names = ("tp", "cp", "microbatch_size", "num_experts")
    alike = dict.fromkeys(tuple(getattr(cut, name) for name in names) for cut in bench.suite)
    cuts = [Configuration(microbatches=1, **dict(zip(names, values, strict=True))) for values in alike]
    questions = [bench.scenario(cut) for cut in cuts]
    bench.report("kernels")
    described = [question.model_dump(mode="json") for question in questions]
    bench.ask("kernels", 1, journal=str(bench.journal), scenarios=described)
    return questions


def _measure_collectives(bench: Bench) -> None:
    """Time the collectives and sends of groups that the suite has, or of two processes of a CPU."""
    most = min(bench.ranks, max(cut.num_ranks for cut in bench.suite))
    if most == 1:
        return
    kept = Journal(bench.journal, describe(bench.device))
    left = [task for task in _collectives(bench, most) if Measurement("collective", task, 1.0).key not in kept.done]
    if left:
        bench.report("collectives")
        together = bench.ranks if bench.nodes else max(int(task["num_ranks"]) for task in left)
        bench.ask("collectives", together, journal=str(bench.journal), tasks=left, ranks_per_node=bench.ranks_per_node)


def _collectives(bench: Bench, most: int) -> list[Measured]:
    """Collectives and sends in the sizes of the job's tensors, a doubling apart, or two where time is short.

    most : ranks of the largest group.
    """
    gpu = bench.device == "cuda"
    experts = ("all_to_all",) if any(cut.ep > 1 for cut in bench.suite) else ()
    operations = ("all_reduce", "all_gather", "reduce_scatter", "send", *experts)
    largest = 30 if gpu and bench.patience_s else 25
    sizes = [2**exponent for exponent in range(12, largest + 1, 1 if bench.patience_s else 2)]
    inside = [size for size in (2, 4, 8) if size <= min(most, bench.ranks_per_node)] if gpu else [2]
    groups = [{"num_ranks": size, "num_nodes": 1} for size in inside]
    if most > bench.ranks_per_node:
        groups.append({"num_ranks": 2 * bench.ranks_per_node, "num_nodes": 2})
    pairs = [{"num_ranks": 2, "num_nodes": nodes} for nodes in (1, 2) if nodes == 1 or most > bench.ranks_per_node]
    return [
        {"operation": name, **group, "nbytes": size}
        for name in operations
        for group in (pairs if name == "send" else groups)
        for size in sizes
    ]


def _measure_sharing(bench: Bench) -> tuple[tuple[tuple[int, float], ...], list[dict[str, float]]]:
    """How many cores' worth of work processes get that share a CPU: (by number of processes, what was measured)."""
    if bench.device != "cpu":
        return (), []
    processors = min(_SHARED_BY, os.cpu_count() or 1)
    cores, sharing = [], []
    for processes in (processors, 2 * processors)[: 1 + _crowded(bench.suite)]:
        bench.report(f"{processes} processes at once")
        found = bench.ask("capacity", _available(processes))
        sharing.append(found)
        # A machine of one processor shares it from the second process on.
        least, most = 1.0, float(processors)
        cores.append((processes, min(most, max(least, processes * found["alone_s"] / found["together_s"]))))
    # More processes than processors do no more work at once than as many: if they seem to, others were in the way.
    most = max((each for _, each in cores), default=0.0)
    return tuple((processes, each if number else most) for number, (processes, each) in enumerate(cores)), sharing


def _crowded(suite: Iterable[Configuration]) -> bool:
    """Whether some configurations have more processes than there are processors."""
    return any(cut.num_ranks > min(_SHARED_BY, os.cpu_count() or 1) for cut in suite)


def _available(processes: int) -> int:
    """The number of processes, at most as many as torchrun started, if it did."""
    others = joined_world()
    return processes if others is None else min(processes, others.size)


def _measure_host(bench: Bench, machine: CalibratedMachine) -> dict[tuple[Configuration, bool], dict[str, float]]:
    """The host's times over the smallest cuts that have such layers, and over shared cores where they are crowded."""
    wanted = {Configuration(): None, **dict.fromkeys(_blocks(bench.suite))}
    blocks = [cut for cut in wanted if cut.num_ranks <= bench.ranks]
    bench.report("host times")
    together = max(cut.num_ranks for cut in blocks)
    found = bench.ask("host", together, cuts=[asdict(cut) for cut in blocks])["host"]
    pairs = zip(blocks, found, strict=True)
    times = {(cut, False): _without_kernels(measured, cut, bench, machine) for cut, measured in pairs}
    plain = times[Configuration(), False]["runner_s"]
    for cut, _ in times:
        if cut.zero_stage == 3:
            times[cut, False]["runner_s"] = 0.0  # its loop is plain
        elif cut.num_replicas > 1:  # what FSDP gathers and reduces in the runner is priced on its own
            times[cut, False]["runner_s"] = plain
    tensor = Configuration(tp=2)
    if bench.device == "cpu" and _crowded(bench.suite) and tensor in blocks:
        bench.report("host times on shared cores")
        most, cores = machine.cores[-1]
        crowd = bench.ask("host", _available(most), cuts=[asdict(tensor)])["host"][0]
        # Twice as many processes as processors, never idle together: what each takes of the cores is its work.
        work = {name: value * cores / most for name, value in crowd.items()} | {"waiting": 0.0}
        times[tensor, True] = _without_kernels(work, tensor, bench, machine)
    return times


def _blocks(suite: Iterable[Configuration]) -> list[Configuration]:
    return [block for cut in suite for block in (cut.passes_block(), cut.update_block())]


def _without_kernels(
    measured: dict[str, float], cut: Configuration, bench: Bench, machine: CalibratedMachine
) -> dict[str, float]:
    """The host's share of the tiny model's times: without kernels and collectives that are priced on their own.

    On a GPU the host's time was measured by itself.
    """
    if bench.device != "cpu":
        return {name: max(0.0, value) for name, value in measured.items()}
    one, two = (_tiny_costs(depth, cut, bench, machine) for depth in (1, 2))
    forward, backward = (float((getattr(two, name) - getattr(one, name))[0]) for name in ("forward_s", "backward_s"))
    update = float((two.optimizer_s - one.optimizer_s)[0])
    priced = {
        "layer_forward_s": forward,
        "layer_backward_s": backward,
        "visit_forward_s": float(one.forward_s[0]) - forward,
        "visit_backward_s": float(one.backward_s[0]) - backward,
        "layer_update_s": update,
        "update_s": float(one.optimizer_s[0]) - update,
    }
    return {name: max(0.0, value - priced.get(name, 0.0)) for name, value in measured.items()}


def _tiny_costs(depth: int, cut: Configuration, bench: Bench, machine: CalibratedMachine) -> StageSeconds:
    """What the simulator says of the tiny model."""
    shape = tiny(bench.shape, depth, bench.device)
    scenario = bench.scenario(replace(cut, microbatches=8), shape, machine.profile)
    return with_update(stage_costs(scenario), scenario, np.zeros(1, dtype=int))


def base_profile(node: str) -> Profile:
    """Where values come from that are not measured here: the GPU's own profile; of a CPU the A100's."""
    gpu = measured_cluster({}, node).gpu
    if node != "cpu-host":
        return profile_of_gpu(gpu)
    return Profile.read(load_preset("profiles", "a100"), "profile a100").replace(gpu=gpu.name)
