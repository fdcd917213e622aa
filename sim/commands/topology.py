"""`flopcast topology`: the switches, cables and bandwidths of a cluster's network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Option

from sim.commands.options import Json, print_answer


def topology(
    cluster: Annotated[str, Argument(help="A cluster preset (flopcast presets list clusters), or a YAML file.")],
    nodes: Annotated[
        int | None, Option(help="Nodes of a machine of the same design; the cluster's if not given.")
    ] = None,
    collectives: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="How long collectives take, on the links alone and in estimates. Every GPU has a buffer of this size, "
            'such as "1 GB"; an all-gather ends with it.',
        ),
    ] = None,
    gpus: Annotated[int | None, Option(help="GPUs of the collectives; all of the machine if not given.")] = None,
    profile: Annotated[
        str | None, Option(help="Profile of the estimates' times, by name or YAML file; the GPU's own if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Switches and cables of a cluster's network by level, and its bisection bandwidth."""
    from sim.errors import SpecError
    from sim.network.topology import build_topology
    from sim.specs import ClusterSpec, load_preset
    from sim.specs.loading import resolve

    for option, given in (("--gpus", gpus), ("--profile", profile)):
        if given is not None and collectives is None:
            raise SpecError(f"{option} is about collectives; add --collectives with a size, such as '1 GB'")

    spec = ClusterSpec.read(resolve(load_preset("clusters", cluster), "cluster"), cluster)
    machine = build_topology(spec, nodes)
    facts = _facts(machine, spec)
    if collectives is not None:
        facts["collectives"] = _collectives(
            machine, spec, collectives, machine.num_gpus if gpus is None else gpus, profile
        )
    print_answer(as_json, lambda: facts, lambda: _views(facts))


def _facts(machine: Any, spec: Any) -> dict[str, Any]:
    """Everything the command prints; bandwidths per direction."""
    from sim.network.routing import expected_max_load
    from sim.network.topology import bisection_bytes_per_s, cable_counts, switch_counts

    leaf, subflows = machine.levels[0], spec.network.subflows
    hashed = spec.network.routing == "ecmp" and leaf.uplinks > 0
    fullest = expected_max_load(leaf.uplinks * subflows, leaf.uplinks) / subflows if hashed else None
    bisection = bisection_bytes_per_s(machine)
    full = machine.num_gpus * spec.inter_node_bandwidth_bytes_per_s / 2
    cables, switches = cable_counts(machine), switch_counts(machine)
    return {
        "cluster": machine.name,
        "num_nodes": machine.num_nodes,
        "num_gpus": machine.num_gpus,
        "gpus_per_node": machine.gpus_per_node,
        "nics_per_node": machine.nics_per_node,
        "nvlink_domains": machine.num_domains,
        "nvlink_domain_gpus": machine.domain_gpus,
        "nvlink_bytes_per_s_per_gpu": spec.node.nvlink_bandwidth_bytes_per_s,
        "rails": machine.rails,
        "routing": spec.network.routing,
        "levels": [_level(each, switches[each.name], cables.get(each.name, 0)) for each in machine.levels],
        "switches": sum(switches.values()),
        "cables": sum(cables.values()),
        "cables_to_nodes": cables["node"],
        "nic_bytes_per_s": spec.inter_node_bandwidth_bytes_per_s * machine.gpus_per_node / machine.nics_per_node,
        "bisection_bytes_per_s": bisection,
        "share_of_full_bisection": bisection / full,
        "fullest_cable_by_hash": fullest,
    }


def _level(level: Any, switches: int, cables_up: int) -> dict[str, Any]:
    """One level of switches."""
    return {
        "name": level.name,
        "switches": switches,
        "ports_per_switch": level.ports,
        "ports_down_per_switch": level.down_ports,
        "ports_up_per_switch": level.uplinks,
        "cables_up": cables_up,
        "cable_bytes_per_s": level.cable_bytes_per_s,
    }


def _collectives(machine: Any, spec: Any, size: str, gpus: int, profile: str | None) -> dict[str, Any]:
    """Seconds of every collective by the links and in estimates, and the buffer over the former."""
    from sim.costs.collectives import Fabric, all_reduce_ways, estimated_times
    from sim.errors import SpecError
    from sim.network.collective_flows import collective_times
    from sim.network.placement import Group
    from sim.specs.loading import profile_of_gpu
    from sim.units import parse

    nbytes = parse(size, "bytes")
    if not nbytes > 0:
        raise SpecError(f"collectives of {size}: give a size above zero, such as '1 GB'")
    reached = profile_of_gpu(spec.gpu, profile)
    fabric = Fabric.of(spec, reached)
    adds = fabric.nvlink.in_switch_efficiency is not None
    times = collective_times(machine, gpus, nbytes, spec.network, nvlink_adds=adds)
    alone, beside = (Group(gpus, min(gpus, machine.domain_gpus), shared) for shared in (False, True))
    estimated, in_training = (estimated_times(nbytes, group, fabric) for group in (alone, beside))
    rates = {name: nbytes / time for name, time in times.items()}
    columns = {"time_s": times, "algbw_bytes_per_s": rates, "estimated_s": estimated, "estimated_beside_s": in_training}
    names = dict.fromkeys((*times, *estimated))
    rows = [{"name": name, **{key: column.get(name) for key, column in columns.items()}} for name in names]
    ways = all_reduce_ways(nbytes, alone, fabric)
    chosen = min(ways, key=lambda way: float(ways[way]))
    nccl = {"algorithm": chosen, "time_s": float(ways[chosen])}
    return {"gpus": gpus, "bytes": nbytes, "profile": reached.name, "times": rows, "nccl": nccl}


def _views(facts: dict[str, Any]) -> list[Any]:
    """What a person reads of the facts, a line each but for the table of levels."""
    from sim.table import columns_table
    from sim.units import show

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
        f"Total    {facts['switches']:,} switches, {facts['cables']:,} cables",
        f"Bisection bandwidth {show(facts['bisection_bytes_per_s'], 'B/s')} per direction, "
        f"{facts['share_of_full_bisection']:.1%} of what the cards could send",
    ]
    if facts["fullest_cable_by_hash"]:
        leaf = facts["levels"][0]["name"]
        views.append(
            f"Hashed paths: with one flow per cable up from a {leaf}, the fullest cable carries "
            f"{facts['fullest_cable_by_hash']:.1f} flows"
        )
    if "collectives" in facts:
        views += _collective_views(facts["collectives"], facts["nvlink_domain_gpus"])
    return views


def _collective_views(asked: dict[str, Any], domain_gpus: int) -> list[Any]:
    """The times of collectives as a table, and what its columns are."""
    from sim.table import columns_table
    from sim.units import show, show_time

    spans = asked["gpus"] > domain_gpus

    def column(key: str, shown: Callable[[Any], str]) -> list[str]:
        return ["–" if row[key] is None else shown(row[key]) for row in asked["times"]]

    table = {"collective": column("name", str), "links alone": column("time_s", show_time)}
    table["algbw"] = column("algbw_bytes_per_s", lambda rate: show(rate, "B/s"))
    table["estimates"] = column("estimated_s", show_time)
    if spans:
        table["beside others"] = column("estimated_beside_s", show_time)
    many = " that has the network to itself; beside others: of many groups at once" if spans else ""
    unasked = " Reduction in the network's switches needs NCCL_COLLNET_ENABLE=1." if spans else ""
    return [
        f"\n{show(asked['bytes'], 'B')} on each of {asked['gpus']:,} GPUs",
        columns_table(table),
        "Links alone (and algbw, the buffer over that time): every link at its full rate, without latency. Estimates: "
        f"with latency, and what links reach by profile {asked['profile']}, of one group{many}. All-reduces of "
        f"estimates take NCCL's choice: {asked['nccl']['algorithm']}, {show_time(asked['nccl']['time_s'])}.{unasked}",
    ]
