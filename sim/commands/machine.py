"""`flopcast topology`, `simulate`, `shape` and `plan-pipeline`: networks, noisy steps, sizes that suit a machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from sim.commands.fills import Fills, Opt
from sim.commands.options import AsJson, Json, Overrides, ProfileOption, ScenarioFile, print_answer
from sim.commands.plan import Model
from sim.commands.progress import spinner
from sim.costs.collectives import Fabric, all_reduce_ways, estimated_times
from sim.errors import SpecError
from sim.files import here_or_shipped, read_text
from sim.network import placement
from sim.network.topology import bisection_bytes_per_s, build_topology, cable_counts, switch_counts
from sim.planners.answers import Source, ask_pipedream
from sim.planners.layers import profile_from_text
from sim.planners.pipeline_plan import read_levels
from sim.scaling.shape import Shapes, shapes_near
from sim.simulate import Simulation
from sim.simulate import simulate as run
from sim.specs import ClusterSpec, load_preset
from sim.specs.loading import described, load_scenario, profile_of_gpu
from sim.specs.machines import gpu_named
from sim.table import columns_table, plain_table
from sim.units import parse, parse_whole, show, show_count, show_time

if TYPE_CHECKING:
    from rich.console import Group

STEPS = Fills(
    run,
    "scenario",
    seed=Opt(min=0),
    seeds=Opt(show_default="20"),
    stragglers=Opt("--straggler", metavar="FACTOR@WHERE"),
    slow_links=Opt("--slow-link", metavar="SHARE@LINK"),
    links_down=Opt("--link-down", metavar="LINK"),
)


def simulate(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    profile: ProfileOption = None,
    steps: Annotated[partial[Simulation], STEPS],
    as_json: Json = False,
) -> None:
    """How long steps take when GPUs jitter or are slow, and links are shared, slow or lost."""
    from sim.report.simulation import simulation_view

    asked = load_scenario(scenario, overrides or (), profile)
    with spinner("simulating"):
        answer = steps(asked)
    for option in ("seeds", "unfold"):
        if steps.keywords.get(option) and not steps.keywords.get("jitter"):
            typer.secho(f"flopcast: --{option} changes nothing without --jitter", err=True, fg="yellow")
    print_answer(as_json, answer.to_dict, lambda: simulation_view(answer))


def shape(
    model: Model,
    *,
    gpu: str,
    tp: Annotated[int, Option(min=1, help="GPUs that cut every matrix.")] = 1,
    seq: str | None = None,
    framework: str | None = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Which nearby vocabulary, heads and widths train faster at nearly the same parameters.

    gpu : The kind of GPU: a100-40gb, h100, ...
    seq : Tokens a sequence, such as 2k.
    framework : Whose kernels and padding count.
    """
    length = None if seq is None else parse_whole(seq, "sequence_length")
    with spinner("pricing nearby sizes"):
        found = shapes_near(model, gpu_named(gpu), tp, length, framework, profile=profile)
    print_answer(as_json, found.to_dict, lambda: _shapes(found))


_FOLLOW = ("num_kv_heads", "value_head_dim")
"""Sizes that follow from the heads and their columns."""


def _shapes(found: Shapes) -> Group:
    from rich.console import Group

    from sim.report.terminal import assumptions, title

    model, gpu, tp = found.scenario.model, found.scenario.cluster.gpu.name, found.scenario.plan.tp
    table = plain_table("change", "parameters", "step", "faster", left=("change",))
    table.add_row("as it is", show_count(found.own.params), show_time(found.own.step_time_s), "")
    for each in found.faster:
        sizes = ((name, size) for name, size in each.sizes.items() if name not in _FOLLOW)
        change = ", ".join(f"{name} {getattr(model, name):,} → {size:,}" for name, size in sizes)
        table.add_row(change, show_count(each.params), show_time(each.step_time_s), f"{each.gain:+.1%}")
    nothing = [] if found.faster else ["No nearby size is faster."]
    legend = "\nOne size is changed at a time; faster: parameters trained per second."
    heading = title(f"{model.name} on {tp} × {gpu}", legend)
    return Group(heading, "", table, *nothing, *assumptions(found.scenario.assumed))


def topology(
    cluster: str,
    *,
    overrides: list[str] | None = None,
    nodes: int | None = None,
    collectives: str | None = None,
    gpus: int | None = None,
    profile: str | None = None,
    as_json: Json = False,
) -> None:
    """Switches and cables of a cluster's network by level, and its bisection bandwidth.

    cluster : A cluster preset (flopcast presets list clusters), or a YAML file.
    overrides --set -s FIELD=VALUE : Override a field of the cluster: cluster.node.nics_per_node=4; may be repeated.
    nodes : Nodes of a machine of the same design; the cluster's if not given.
    collectives SIZE : How long collectives take in estimates. Every GPU has a buffer of this size, such as "1 GB"; an
        all-gather ends with it.
    gpus : GPUs of the collectives; all of the machine if not given.
    profile : Profile of the estimates' times, by name or YAML file; the GPU's own if not given.
    """
    for option, given in (("--gpus", gpus), ("--profile", profile)):
        if given is not None and collectives is None:
            raise SpecError(f"{option} is about collectives; add --collectives with a size, such as '1 GB'")
    for each in overrides or ():
        if not each.startswith("cluster."):
            raise SpecError(
                f"-s {each}: topology knows a cluster alone; name a field of it, such as cluster.num_nodes=4"
            )
    machine_data = described({"cluster": load_preset("clusters", cluster)}, overrides or ())["cluster"]
    spec = ClusterSpec.read(machine_data if nodes is None else {**machine_data, "num_nodes": nodes}, cluster)
    machine = build_topology(spec)
    facts = _network(machine, spec)
    if collectives is not None:
        many = machine.num_gpus if gpus is None else gpus
        facts["collectives"] = _collectives(machine, spec, collectives, many, profile)
    print_answer(as_json, lambda: facts, lambda: _network_views(facts))


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
    job, exchange = _groups(gpus, 1, cluster)
    estimated, beside = estimated_times(nbytes, job, exchange, fabric), {}
    if (room := machine.num_gpus // gpus) > 1:
        beside = estimated_times(nbytes, *_groups(gpus, room, cluster), fabric)
    if machine.rails > 1 and gpus > machine.domain_gpus:
        for estimates in filter(None, (estimated, beside)):
            estimates["all-to-all by rails"] = estimates.pop("all-to-all")
    rates = {name: nbytes / time for name, time in estimated.items()}
    columns = {"estimated_s": estimated, "algbw_bytes_per_s": rates, "estimated_beside_s": beside}
    rows = [{"name": name, **{key: column.get(name) for key, column in columns.items()}} for name in estimated]
    ways = all_reduce_ways(nbytes, job, fabric)
    chosen = min(ways, key=lambda way: float(ways[way]))
    nccl = {"algorithm": chosen, "time_s": float(ways[chosen])}
    return {"gpus": gpus, "bytes": nbytes, "profile": reached.name, "times": rows, "nccl": nccl}


def _groups(gpus: int, count: int, cluster: ClusterSpec) -> tuple[placement.Group, placement.Group]:
    """Return so many groups of neighbours as an estimate places them: for rings, and for all-to-alls."""
    plan = placement.Degrees(dp=gpus * count, ep=gpus)
    return placement.place_group("shards", plan, cluster, gpus), placement.place_group("ep", plan, cluster)


def _network_views(facts: dict[str, Any]) -> list[Any]:
    """What a person reads of the facts, a line each but for the table of levels."""
    shape = "one leaf a node" if facts["rails"] == 1 else f"{facts['rails']} rails"
    size = f"{facts['num_nodes']:,} nodes, {facts['num_gpus']:,} GPUs, {shape}, {facts['routing']} routing"
    domains = f"{facts['nvlink_domains']:,} domains of {facts['nvlink_domain_gpus']} GPUs"
    cards = f"{facts['cables_to_nodes']:,} of {show(facts['nic_bytes_per_s'] * 8, 'bit/s')}"
    headings = ("switches", "ports", "down", "up", "cables up")
    keys = ("switches", "ports_per_switch", "ports_down_per_switch", "ports_up_per_switch", "cables_up")
    columns = {name: [f"{level[key]:,}" for level in facts["levels"]] for name, key in zip(headings, keys, strict=True)}
    views = [
        f"[bold]{facts['cluster']}[/bold]  {size}",
        f"NVLink   {domains}, {show(facts['nvlink_bytes_per_s_per_gpu'], 'B/s')} a GPU",
        f"Cards    {cards}, {facts['nics_per_node']} a node",
        columns_table({"level": [level["name"] for level in facts["levels"]], **columns}),
        "[dim]ports: of one switch, of which 'down' lead to the level below and 'up' to the level above; cables up: "
        "of the whole level[/dim]",
        f"Total    {facts['switches']:,} switches, {facts['cables']:,} cables",
        f"Bisection bandwidth {show(facts['bisection_bytes_per_s'], 'B/s')} per direction, "
        f"{facts['share_of_full_bisection']:.1%} of what the cards could send",
    ]
    if facts["levels_left_out"]:
        top, left_out = facts["levels"][-1]["name"], ", ".join(facts["levels_left_out"])
        views.append(f"Left out: {left_out}, since {top} switches join all nodes")
    if "collectives" in facts:
        views += _collective_views(facts["collectives"], facts["nvlink_domain_gpus"])
    return views


def _collective_views(asked: dict[str, Any], domain_gpus: int) -> list[Any]:
    """The times of collectives as a table, and what its columns are."""
    spans = asked["gpus"] > domain_gpus
    columns = {"whole job" if spans else "estimates": "estimated_s", "algbw": "algbw_bytes_per_s"}
    columns |= {"beside others": "estimated_beside_s"} if spans and asked["times"][0]["estimated_beside_s"] else {}
    table = {"collective": [row["name"] for row in asked["times"]]}
    for name, key in columns.items():
        values = [row[key] for row in asked["times"]]
        table[name] = [show(value, "B/s") if name == "algbw" else show_time(value) for value in values]
    notes = f"Times count latency and the rates that links reach by profile {asked['profile']}"
    notes += ", of which oversubscribed switches leave a part. " if spans else ". "
    nccl = f"Estimates take the fastest all-reduce, as NCCL does: {asked['nccl']['algorithm']}"
    nccl += f", {show_time(asked['nccl']['time_s'])}{' for the whole job' * spans}."
    if spans:
        notes += "Whole job: one group of all these GPUs. "
        notes += "Beside others: many groups share the network. " * ("beside others" in columns)
        nccl += " Reduction in the network's switches needs NCCL_COLLNET_ENABLE=1."
    first = next(iter(columns))
    return [
        f"\n{show(asked['bytes'], 'B')} on each of {asked['gpus']:,} GPUs",
        columns_table(table),
        f"{notes}Algbw: the buffer over the time of '{first}'. {nccl}",
    ]


def plan_pipeline(
    source: str,
    *,
    overrides: Overrides = None,
    workers: str | None = None,
    bandwidths: str | None = None,
    memory: str | None = None,
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Deal layers to the stages of a pipeline without flush as PipeDream's planner does.

    The plan is played in its own order, 1F1B round robin, and what it takes more than the planner promises is said.

    source : A profile of layers (CSV, YAML), or a scenario.
    workers : Workers, or servers × workers: 16, 4x4. A scenario has its own.
    bandwidths : Bandwidths, the outermost first: '10 Gbit/s, 12 GB/s'.
    memory : Of a worker, such as '16 GB'.
    """
    from sim.report.planners import pipedream_view

    if (workers is None) != (bandwidths is None):
        raise SpecError("give --workers and --bandwidths together, such as --workers 16 --bandwidths '10 Gbit/s'")
    levels = None if workers is None or bandwidths is None else read_levels(workers, bandwidths)
    limit = None if memory is None else parse(memory, "bytes")
    asked = _source(source, overrides or [], profile)
    plan = ask_pipedream(asked, levels, memory_bytes=limit)
    print_answer(as_json, plan.to_dict, lambda: pipedream_view(plan))


def _source(path: str, overrides: list[str], profile: str | None) -> Source:
    """A scenario, or a profile of layers, told apart by what is in the file."""
    path = str(here_or_shipped(path))
    if Path(path).is_file():
        found = profile_from_text(read_text(path), path)
        if found is not None:
            if overrides or profile is not None:
                raise SpecError(f"{path} is a profile of layers; leave --set and --profile out, they change a scenario")
            return found
    return load_scenario(path, overrides, profile)
