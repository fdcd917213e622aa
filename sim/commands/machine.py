"""`flopcast topology`, `simulate`, `shape` and `plan-pipeline`: networks, noisy steps, sizes that suit a machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.fills import Fills, Opt
from sim.commands.options import Answer, check_numbers
from sim.commands.progress import spinner
from sim.costs.collectives import Fabric, all_reduce_ways, estimated_times
from sim.errors import SpecError
from sim.files import here_or_shipped, read_text
from sim.network import placement
from sim.network.topology import bisection_bytes_per_s, build_topology, cable_counts, switch_counts
from sim.planners.answers import ask_pipedream
from sim.planners.layers import profile_from_text
from sim.planners.pipeline_plan import read_levels
from sim.scaling.shape import shapes_near
from sim.simulate import Simulation
from sim.simulate import simulate as run
from sim.specs import ClusterSpec, Scenario, load_preset
from sim.specs.loading import described, profile_of_gpu
from sim.specs.machines import gpu_named
from sim.units import parse, parse_whole

STEPS = Fills(
    run,
    "scenario",
    seed=Opt(min=0),
    seeds=Opt(show_default="20"),
    stragglers=Opt("--straggler", metavar="FACTOR@WHERE"),
    slow_links=Opt("--slow-link", metavar="SHARE@LINK"),
    links_down=Opt("--link-down", metavar="LINK"),
)


def simulate(scenario: Scenario, *, steps: Annotated[partial[Simulation], STEPS]) -> Answer:
    """How long steps take when GPUs jitter or are slow, and links are shared, slow or lost."""
    from sim.report.machine import simulation_view

    with spinner("simulating"):
        answer = steps(scenario)
    for option in ("seeds", "unfold"):
        if steps.keywords.get(option) and not steps.keywords.get("jitter"):
            typer.secho(f"flopcast: --{option} changes nothing without --jitter", err=True, fg="yellow")
    return Answer(answer.to_dict, lambda: [simulation_view(answer)])


def shape(
    model: str,
    *,
    gpu: str,
    tp: int = 1,
    seq: str | None = None,
    framework: str | None = None,
    profile: str | None = None,
) -> Answer:
    """Which nearby vocabulary, heads and widths train faster at nearly the same parameters.

    gpu : The kind of GPU: a100-40gb, h100, ...
    tp : GPUs that cut every matrix.
    seq : Tokens a sequence, such as 2k.
    framework : Whose kernels and padding count.
    profile : A profile's name or YAML file, instead of the GPU's own.
    """
    from sim.report.machine import shapes_view

    check_numbers(tp=tp)
    length = None if seq is None else parse_whole(seq, "sequence_length")
    with spinner("pricing nearby sizes"):
        found = shapes_near(model, gpu_named(gpu), tp, length, framework, profile=profile)
    return Answer(found.to_dict, lambda: [shapes_view(found)])


def topology(
    cluster: str,
    *,
    overrides: Sequence[str] = (),
    nodes: int | None = None,
    collectives: str | None = None,
    gpus: int | None = None,
    profile: str | None = None,
) -> Answer:
    """Switches and cables of a cluster's network by level, and its bisection bandwidth.

    cluster : A cluster preset (flopcast presets list clusters), or a YAML file.
    overrides --set -s FIELD=VALUE : Override a field of the cluster: cluster.node.nics_per_node=4; may be repeated.
    nodes : Nodes of a machine of the same design; the cluster's if not given.
    collectives SIZE : How long collectives take in estimates. Every GPU has a buffer of this size, such as "1 GB"; an
        all-gather ends with it.
    gpus : GPUs of the collectives; all of the machine if not given.
    profile : Profile of the estimates' times, by name or YAML file; the GPU's own if not given.
    """
    from sim.report.machine import network_view

    for option, given in (("--gpus", gpus), ("--profile", profile)):
        if given is not None and collectives is None:
            raise SpecError(f"{option} is about collectives; add --collectives with a size, such as '1 GB'")
    for each in overrides:
        if not each.startswith("cluster."):
            raise SpecError(
                f"-s {each}: topology knows a cluster alone; name a field of it, such as cluster.num_nodes=4"
            )
    data = described({"cluster": load_preset("clusters", cluster)}, overrides)["cluster"]
    spec = ClusterSpec.read(data if nodes is None else {**data, "num_nodes": nodes}, cluster)
    machine = build_topology(spec)
    facts = _network(machine, spec)
    if collectives is not None:
        many = machine.num_gpus if gpus is None else gpus
        facts["collectives"] = _collectives(machine, spec, collectives, many, profile)
    return Answer(lambda: facts, lambda: network_view(facts))


def _network(machine: Any, spec: Any) -> dict[str, Any]:
    """Everything the command prints; bandwidths per direction."""
    bisection = bisection_bytes_per_s(machine)
    cables, switches = cable_counts(machine), switch_counts(machine)
    rate = spec.inter_node_bandwidth_bytes_per_s
    levels = [
        {
            "name": each.name,
            "switches": switches[each.name],
            "ports_per_switch": each.ports,
            "ports_down_per_switch": each.down_ports,
            "ports_up_per_switch": each.uplinks,
            "cables_up": cables.get(each.name, 0),
            "cable_bytes_per_s": each.cable_bytes_per_s,
        }
        for each in machine.levels
    ]
    return {
        "cluster": machine.name,
        **{name: getattr(machine, name) for name in ("num_nodes", "num_gpus", "gpus_per_node", "nics_per_node")},
        "nvlink_domains": machine.num_domains,
        "nvlink_domain_gpus": machine.domain_gpus,
        "nvlink_bytes_per_s_per_gpu": spec.node.nvlink_bandwidth_bytes_per_s,
        "rails": machine.rails,
        "routing": spec.network.routing,
        "levels": levels,
        "levels_left_out": list(spec.network.levels)[len(levels) :],
        "switches": sum(switches.values()),
        "cables": sum(cables.values()),
        "cables_to_nodes": cables["node"],
        "nic_bytes_per_s": rate * machine.gpus_per_node / machine.nics_per_node,
        "bisection_bytes_per_s": bisection,
        "share_of_full_bisection": bisection / (machine.num_gpus * rate / 2),
    }


def _collectives(machine: Any, spec: Any, size: str, gpus: int, profile: str | None) -> dict[str, Any]:
    """Seconds of every collective in estimates, of one group that is the whole job and of many at once."""
    nbytes = parse(size, "bytes")
    if not nbytes > 0:
        raise SpecError(f"collectives of {size}: give a size above zero, such as '1 GB'")
    reached = profile_of_gpu(spec.gpu, profile)
    cluster = spec.replace(num_nodes=machine.num_nodes)
    fabric = Fabric.of(cluster, reached)
    if not 2 <= gpus <= machine.num_gpus:
        raise SpecError(f"a collective over {gpus} GPUs: give 2 to {machine.num_gpus:,}, those of the machine")
    room, railed = machine.num_gpus // gpus, machine.rails > 1 and gpus > machine.domain_gpus
    estimated = estimated_times(nbytes, *_groups(gpus, 1, cluster), fabric)
    beside = estimated_times(nbytes, *_groups(gpus, room, cluster), fabric) if room > 1 else {}
    rows = [
        {
            "name": f"{name} by rails" if railed and name == "all-to-all" else name,
            "estimated_s": seconds,
            "algbw_bytes_per_s": nbytes / seconds,
            "estimated_beside_s": beside.get(name),
        }
        for name, seconds in estimated.items()
    ]
    ways = all_reduce_ways(nbytes, _groups(gpus, 1, cluster)[0], fabric)
    chosen = min(ways, key=lambda way: float(ways[way]))
    nccl = {"algorithm": chosen, "time_s": float(ways[chosen])}
    return {"gpus": gpus, "bytes": nbytes, "profile": reached.name, "times": rows, "nccl": nccl}


def _groups(gpus: int, count: int, cluster: ClusterSpec) -> tuple[placement.Group, placement.Group]:
    """Return so many groups of neighbours as an estimate places them: for rings, and for all-to-alls."""
    plan = placement.Degrees(dp=gpus * count, ep=gpus)
    return placement.place_group("shards", plan, cluster, gpus), placement.place_group("ep", plan, cluster)


def plan_pipeline(source: Path, *, workers: str, bandwidths: str, memory: str | None = None) -> Answer:
    """Deal layers to the stages of a pipeline without flush as PipeDream's planner does.

    The plan is played in its own order, 1F1B round robin, and what it takes more than the planner promises is said.

    source : A profile of layers (CSV, YAML).
    workers : Workers, or servers × workers: 16, 4x4.
    bandwidths : Bandwidths, the outermost first: '10 Gbit/s, 12 GB/s'.
    memory : Of a worker, such as '16 GB'.
    """
    from sim.report.machine import pipedream_view

    path, limit = here_or_shipped(source), None if memory is None else parse(memory, "bytes")
    levels = read_levels(workers, bandwidths)
    plan = ask_pipedream(profile_from_text(read_text(path), str(path)), levels, memory_bytes=limit)
    return Answer(plan.to_dict, lambda: [pipedream_view(plan)])
