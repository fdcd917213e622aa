"""Steps as they really come: with GPUs that jitter or are slow, and links that are shared, slow or lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.engines import longest_path, network
from sim.engines.noise import noisy_program, noisy_steps, replica
from sim.engines.order_facts import undominated
from sim.engines.program import Program, priced_order, program_of
from sim.errors import SpecError
from sim.estimate import estimate
from sim.network.placement import gpu_of_rank
from sim.network.routing import link_health, node_of
from sim.network.topology import Topology, build_topology
from sim.pricing.layouts import cost_model
from sim.schedules import Order, get_schedule
from sim.specs import Scenario
from sim.specs.loading import as_scenario
from sim.traffic.streams import Traffic, build_traffic, busiest_links, link_bytes, use_by_level
from sim.units import show_time


@dataclass(frozen=True, slots=True)
class Simulation:
    """Step times of a scenario with noise and faults.

    step_times_s : one a seed; a single one where nothing is drawn. [s]
    noiseless_s : with neither noise nor faults, nor links shared by different traffic: what `estimate` says. [s]
    pipelines : data-parallel replicas that were simulated, each with noise of its own.
    meetings : messages that met others on a link too narrow for all (of the first seed); None: links were not shared.
    levels, busiest : use of the network by level, and the busiest links, of the first seed; empty where links were not
        shared.
    assumptions : what the reader should know.
    """

    scenario: Scenario
    jitter: float
    step_times_s: tuple[float, ...]
    noiseless_s: float
    pipelines: int
    assumptions: tuple[str, ...]
    meetings: int | None = None
    levels: tuple[dict[str, Any], ...] = ()
    busiest: tuple[dict[str, Any], ...] = ()

    def __repr__(self) -> str:
        """Show the steps in one line."""
        return f"<Simulation {self.scenario.name}: {show_time(self.mean_s)} a step, {len(self.step_times_s)} seeds>"

    @property
    def mean_s(self) -> float:
        """Mean step time. [s]"""
        return float(np.mean(self.step_times_s))

    def quantile_s(self, share: float) -> float:
        """Step time that a given share of the steps does not exceed. [s]"""
        return float(np.quantile(self.step_times_s, share))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.scenario.name,
            "jitter": self.jitter,
            "seeds": len(self.step_times_s),
            "pipelines": self.pipelines,
            "noiseless_step_time_s": self.noiseless_s,
            "mean_step_time_s": self.mean_s,
            "median_step_time_s": self.quantile_s(0.5),
            "p05_step_time_s": self.quantile_s(0.05),
            "p95_step_time_s": self.quantile_s(0.95),
            "added_s": self.mean_s - self.noiseless_s,
            "added_share": self.mean_s / self.noiseless_s - 1.0,
            "step_times_s": list(self.step_times_s),
            "messages_that_met": self.meetings,
            "network_levels": list(self.levels),
            "busiest_links": list(self.busiest),
            "assumptions": list(self.assumptions),
        }


def simulate(
    scenario: Scenario | Path | str,
    *,
    jitter: float | None = None,
    seeds: int = 20,
    seed: int = 0,
    stragglers: Sequence[str] = (),
    slow_links: Sequence[str] = (),
    links_down: Sequence[str] = (),
    contention: bool = False,
    unfold: bool = False,
) -> Simulation:
    """Simulate steps with noise and faults.

    scenario : or the path of its file.
    jitter : relative standard deviation of a GPU's kernel times; it replaces cluster.gpu_spread, and 0 means no noise.
        It is drawn anew for every action. Default: what a job of so many GPUs is expected to wait for the slowest.
    seeds : steps to draw if there is jitter.
    seed : seed of everything that is drawn.
    stragglers : slow GPUs: 1.2@rank17 or 1.2@gpu139, of a pipeline rank or a single one. Their kernels take that many
        times as long.
    slow_links : slow links: 0.5@node12.nic3, 0.5@gpu99.nic or 0.9@leaf4. Names as in `sim.network.routing`; they imply
        contention.
    links_down : broken links: node12.nic3 or leaf4.cable7. They imply contention.
    contention : all messages share the cluster's links.
    unfold : every data-parallel replica draws noise of its own. The step waits for all; else one stands
        for those alike.

    Raises SpecError: a number, GPU, rank or link out of range, or questions that exclude each other. ScheduleError:
    noise under a schedule whose steps overlap, or shared links under one without a flush.
    """
    scenario, remarks = as_scenario(scenario), list[str]()
    if jitter is not None:
        if scenario.cluster.gpu_spread:
            remarks.append("drawn noise takes the place of the wait for the slowest GPU (cluster.gpu_spread)")
        scenario = scenario.replace(cluster=scenario.cluster.replace(gpu_spread=0.0))
    jitter = jitter or 0.0
    _check(jitter, seeds, seed)
    faults = [*(read_slow_link(text) for text in slow_links), *((0.0, name) for name in links_down)]
    contention = contention or bool(faults)
    gpus = gpu_of_rank(scenario.plan, scenario.cluster)
    factors = slow_gpus(scenario, stragglers, gpus)
    factors = factors if unfold else slowest_replicas(factors)
    if contention:
        _require_one_pipeline(len(factors), unfold)
    drawn = bool(jitter) or len(factors) > 1
    endless = get_schedule(scenario.plan.schedule).asynchronous
    order, costs = priced_order(scenario, fold=endless or not drawn)
    program = program_of(scenario, order, costs)
    replicas = [replica(program, factors[0])] * len(factors)  # alike where nothing tells them apart
    if (factors != factors[0]).any():
        replicas = [replica(program, each) for each in factors]
    number = seeds if jitter else 1
    shared = dict[str, Any]()
    if contention:
        topology = build_topology(scenario.cluster)
        health, size = link_health(topology, faults), (order.rank_of_stage, order.copies)
        traffic = build_traffic(scenario, costs, *size, topology, health, seed=seed)
        programs = [noisy_program(replicas[0], jitter, each, seed) for each in range(number)] if jitter else []
        times, shared = _on_shared_links(programs or [replicas[0].program], order, traffic)
        remarks += _unused(faults, topology, gpus)
    elif drawn:
        times = noisy_steps(replicas, jitter, number, seed).tolist()
    else:
        times = [longest_path.run(replicas[0].program).step_time_s]
    expected = estimate(scenario)
    if not expected.fits:
        remarks.append("the plan does not fit in memory: these steps could not be run (see flopcast estimate)")
    said = (*_assumptions(scenario, jitter, bool(stragglers), contention, unfold), *remarks)
    return Simulation(scenario, jitter, tuple(times), expected.step_time_s, len(replicas), said, **shared)


def _unused(faults: Sequence[tuple[float, str]], topology: Topology, gpus: Array) -> list[str]:
    """Say which faulty links belong to nodes without any of the plan's GPUs."""
    used = np.unique(gpus // topology.gpus_per_node).tolist()
    return [
        f"{name} belongs to a node that the plan does not use: it changes nothing"
        for _, name in faults
        if node_of(topology, name) not in (None, *used)
    ]


def _on_shared_links(programs: list[Program], order: Order, traffic: Traffic) -> tuple[list[float], dict[str, Any]]:
    """Step times of programs whose messages share links [s], and fields of `Simulation` about these links."""
    runs = [network.run(each, traffic) for each in programs]
    times, carried = [each.timeline.step_time_s for each in runs], link_bytes(order, traffic)
    levels, busiest = use_by_level(carried, traffic, times[0]), busiest_links(carried, traffic, times[0])
    return times, {"meetings": runs[0].meetings, "levels": tuple(levels), "busiest": tuple(busiest)}


def _check(jitter: float, seeds: int, seed: int) -> None:
    if not 0.0 <= jitter <= 1.0:
        raise SpecError(f"jitter {jitter}: a relative standard deviation from 0 to 1, such as 0.02")
    if not 1 <= seeds <= 100_000:
        raise SpecError(f"{seeds} seeds: give a whole number from 1 to 100,000, such as 20")
    if seed < 0:
        raise SpecError(f"seed {seed}: give a whole number that is not negative")


def _require_one_pipeline(number: int, unfold: bool) -> None:
    """Refuse several replicas on links that are shared."""
    if unfold:
        raise SpecError(
            "unfolded replicas on shared links are not simulated: leave out --unfold, or --contention and slow links"
        )
    if number > 1:
        raise SpecError(
            "slow GPUs in several replicas, none the slowest throughout, on shared links are not simulated: slow a "
            "pipeline rank instead (1.2@rank17), or leave contention out"
        )


def _assumptions(scenario: Scenario, jitter: float, slow: bool, contention: bool, unfold: bool) -> list[str]:
    """Notes for the reader of the answer."""
    plan, notes = scenario.plan, []
    if jitter:
        group = plan.tp * plan.cp
        notes.append(
            f"the kernels of an action take a log-normal factor of mean 1 and relative standard deviation {jitter:g}, "
            "drawn anew for each action and GPU"
            + (f"; the {group} GPUs of a rank wait for their slowest once per action" if group > 1 else "")
        )
        notes.append("collectives, host waits, sends and the update have no jitter")
        if not unfold and plan.dp > 1:
            notes.append(
                f"one pipeline stands for all {plan.dp} data-parallel replicas (--unfold: the step waits for the "
                "slowest)"
            )
    if slow:
        notes.append("a slow GPU takes longer for its kernels and its update, not for collectives and host waits")
    if contention:
        notes.append(_of_both_losses(scenario))
        notes.append(
            "reductions and gathers are simulated as rings, also where the estimate takes a tree or NVLS. All of one "
            "kind in an action are one message at its start. Weights gathered after the update share links only "
            "with each other"
        )
        if slow:
            notes.append("on shared links all replicas are as slow as the slowest")
    return notes


def _of_both_losses(scenario: Scenario) -> str:
    """Which of the fitted and the simulated loss of messages counts.

    A profile was fitted to real machines, where groups of one kind met each other; here flows meet too. A stream takes
    of a link only what the fitted rate is of the best rate there (`sim.traffic.streams`).
    """
    fabric = cost_model(scenario).fabric
    network, best = fabric.network, fabric.best_share
    shared = float(network.in_training())
    return (
        "links are shared: a message gets at most the rate measured on real machines (sends "
        f"{network.p2p_efficiency:.0%} of a card, groups that share the network {shared:.0%}). A link carries at most "
        f"{best:.0%} of its rate. The lower limit counts"
    )


def read_slow_link(text: str) -> tuple[float, str]:
    """(share, link) of "0.5@leaf3"."""
    number, name = _halves(text, "slow link", "0.5@node12.nic3")
    if not 0.0 < number <= 1.0:
        raise SpecError(
            f"slow link {text!r}: {number:g} is not a share of its bandwidth above 0 and up to 1; for one that is lost "
            f"say --link-down {name}"
        )
    return number, name


def _halves(text: str, what: str, example: str) -> tuple[float, str]:
    number, at, name = text.partition("@")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not at or not name or not isfinite(value):
        raise SpecError(f"{what} {text!r}: give a number, @ and where, such as {example}")
    return value, name.strip()


def slow_gpus(scenario: Scenario, stragglers: Sequence[str], gpus: Array) -> Array:
    """How much longer than others every GPU takes: (replicas, pipeline ranks, GPUs of the group).

    A context-parallel rank waits for the others in every layer, as a tensor-parallel one does: one group.
    """
    plan = scenario.plan
    factors = np.ones((plan.dp, plan.pp, plan.cp * plan.tp))
    gpus = gpus.reshape(plan.pp, plan.dp, -1).swapaxes(0, 1)
    for text in stragglers:
        factor, name = _halves(text, "straggler", "1.2@rank17 or 1.2@gpu139")
        if not 1.0 <= factor <= 1e6:
            raise SpecError(
                f"straggler {text!r}: a slow GPU takes 1 or more times as long, not {factor:g}; give such a factor"
            )
        found = re.fullmatch(r"(rank|gpu)(\d+)", name)
        if not found:
            raise SpecError(
                f"straggler {text!r}: say which as rankR (pipeline rank 0 to {plan.pp - 1}) or gpuG (0 to "
                f"{int(gpus.max()):,})"
            )
        number = int(found[2])
        if found[1] == "rank":
            if number >= plan.pp:
                raise SpecError(f"straggler {text!r}: the plan has pipeline ranks 0 to {plan.pp - 1}")
            factors[:, number] *= factor
        else:
            where = gpus == number
            if not where.any():
                raise SpecError(
                    f"straggler {text!r}: the plan does not use that GPU; its {plan.num_gpus:,} are among "
                    f"{int(gpus.min())} to {int(gpus.max()):,}"
                )
            factors[where] *= factor
    return factors


def slowest_replicas(factors: Array) -> Array:
    """Keep one of equal replicas, and drop each that another exceeds everywhere: nobody would ever wait for it."""
    kinds = np.unique(factors, axis=0)
    pace = kinds.max(axis=2)
    kept = sorted(int((pace == each).all(axis=1).argmax()) for each in undominated(pace))
    return np.asarray(kinds[kept])
