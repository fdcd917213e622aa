"""`flopcast topology`: the switches, cables and bandwidths of a cluster's network."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from sim.commands.options import Json
from sim.commands.output import print_answer


def topology(
    cluster: Annotated[str, Argument(help="A cluster preset (flopcast presets list clusters).")],
    nodes: Annotated[
        int | None, Option(help="Nodes of a machine of the same design; the cluster's if not given.")
    ] = None,
    collectives: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help='How long collectives of so many bytes take, on the links alone and in estimates: "1 GB".',
        ),
    ] = None,
    gpus: Annotated[int | None, Option(help="GPUs of the collectives; all of the machine if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Switches and cables of a cluster's network by level, and its bisection bandwidth."""
    from sim.errors import SpecError
    from sim.network.topology import build_topology
    from sim.specs import ClusterSpec, load_preset
    from sim.specs.loading import resolve

    if gpus is not None and collectives is None:
        raise SpecError("--gpus says over how many GPUs collectives run; add --collectives with a size, such as '1 GB'")

    spec = ClusterSpec.read(resolve(load_preset("clusters", cluster), "cluster"), cluster)
    machine = build_topology(spec, nodes)
    facts = _facts(machine, spec)
    if collectives is not None:
        facts["collectives"] = _collectives(machine, spec, collectives, machine.num_gpus if gpus is None else gpus)
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
    cables = cable_counts(machine)
    switches = switch_counts(machine)
    levels = [
        {
            "name": level.name,
            "switches": switches[level.name],
            "ports_per_switch": level.ports,
            "ports_down_per_switch": level.down_ports,
            "ports_up_per_switch": level.uplinks,
            "cables_up": cables.get(level.name, 0),
            "cable_bytes_per_s": level.cable_bytes_per_s,
        }
        for level in machine.levels
    ]
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
        "levels": levels,
        "switches": sum(switches.values()),
        "cables": sum(cables.values()),
        "cables_to_nodes": cables["node"],
        "nic_bytes_per_s": spec.inter_node_bandwidth_bytes_per_s * machine.gpus_per_node / machine.nics_per_node,
        "bisection_bytes_per_s": bisection,
        "share_of_full_bisection": bisection / full,
        "fullest_cable_by_hash": fullest,
    }


def _collectives(machine: Any, spec: Any, size: str, gpus: int) -> dict[str, Any]:
    """Seconds of every collective, and the buffer over them."""
    from sim.costs.collectives import Fabric, all_reduce_ways
    from sim.errors import SpecError
    from sim.network.collective_flows import collective_times
    from sim.network.placement import Group
    from sim.specs.loading import profile_of_gpu
    from sim.units import parse

    nbytes = parse(size, "bytes")
    if not nbytes > 0:
        raise SpecError(f"collectives of {size}: give a size above zero, such as '1 GB'")
    fabric = Fabric.of(spec, profile_of_gpu(spec.gpu))
    adds = fabric.nvlink.in_switch_efficiency is not None
    times = collective_times(machine, gpus, nbytes, spec.network, nvlink_adds=adds)
    ways = all_reduce_ways(nbytes, Group(gpus, min(gpus, machine.domain_gpus)), fabric)
    chosen = min(ways, key=lambda way: float(ways[way]))
    rows = [{"name": name, "time_s": time, "algbw_bytes_per_s": nbytes / time} for name, time in times.items()]
    nccl = {"algorithm": chosen, "time_s": float(ways[chosen])}
    return {"gpus": gpus, "bytes": nbytes, "times": rows, "nccl": nccl}


def _views(facts: dict[str, Any]) -> list[Any]:
    """What a person reads of the facts, a line each but for the table of levels."""
    from sim.table import columns_table
    from sim.units import show, show_time

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
        asked = facts["collectives"]
        size = show(asked["bytes"], "B")
        views.append(
            f"\nCollectives of {size} over {asked['gpus']:,} GPUs, by the links alone (time, buffer bytes a second)"
        )
        for row in asked["times"]:
            speed = show(row["algbw_bytes_per_s"], "B/s")
            views.append(f"  {row['name']:<27}{show_time(row['time_s']):>9}  {speed:>9}")
        nccl, spans = asked["nccl"], asked["gpus"] > facts["nvlink_domain_gpus"]
        unasked = " Reduction in the network's switches needs NCCL_COLLNET_ENABLE=1." if spans else ""
        views.append(
            f"Estimates use NCCL's choice for the all-reduce: {nccl['algorithm']}, {show_time(nccl['time_s'])} with "
            f"latency and the rates that links reach.{unasked}"
        )
    return views
