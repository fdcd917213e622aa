"""A cluster's network and its collectives in a terminal, and sizes of a model that suit a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.terminal import assumptions, remarks, title
from sim.scaling.shape import Shapes
from sim.table import columns_table, plain_table, rows_table
from sim.units import show, show_count, show_time

_FOLLOW = ("num_kv_heads", "value_head_dim")
"""Sizes that follow from the heads and their columns."""
_LEVELS = {
    "level": "name",
    "switches": "switches",
    "ports": "ports_per_switch",
    "down": "ports_down_per_switch",
    "up": "ports_up_per_switch",
    "cables up": "cables_up",
}
"""Columns of the table of levels, and the facts in them."""


def network_view(facts: dict[str, Any]) -> Iterator[RenderableType]:
    """What a person reads of the facts of `flopcast topology`: names and words, and tables."""
    shape = "one leaf a node" if facts["rails"] == 1 else f"{facts['rails']} rails"
    domains = f"{facts['nvlink_domains']:,} domains of {facts['nvlink_domain_gpus']} GPUs"
    cards = f"{facts['cables_to_nodes']:,} of {show(facts['nic_bytes_per_s'] * 8, 'bit/s')}"
    share = f"{facts['share_of_full_bisection']:.1%} of what the cards could send"
    size = f"{facts['num_nodes']:,} nodes, {facts['num_gpus']:,} GPUs, {shape}, {facts['routing']} routing"
    words = {
        "NVLink": f"{domains}, {show(facts['nvlink_bytes_per_s_per_gpu'], 'B/s')} a GPU",
        "Cards": f"{cards}, {facts['nics_per_node']} a node",
        "Total": f"{facts['switches']:,} switches, {facts['cables']:,} cables",
        "Bisection": f"{show(facts['bisection_bytes_per_s'], 'B/s')} per direction, {share}",
    }
    if facts["levels_left_out"]:
        top, left_out = facts["levels"][-1]["name"], ", ".join(facts["levels_left_out"])
        words["Left out"] = f"{left_out}, since {top} switches join all nodes"
    yield Group(title(facts["cluster"], f"  {size}"), "", remarks(words), "")
    rows = [[level[key] for key in _LEVELS.values()] for level in facts["levels"]]
    yield rows_table(_LEVELS, ([f"{each:,}" if isinstance(each, int) else each for each in row] for row in rows))
    yield Text(
        "ports: of one switch, of which 'down' lead to the level below and 'up' to the level above; cables up: of the "
        "whole level",
        style="dim",
    )
    if "collectives" in facts:
        yield from _collectives(facts["collectives"], facts["nvlink_domain_gpus"])


def _collectives(asked: dict[str, Any], domain_gpus: int) -> Iterator[RenderableType]:
    """The times of collectives as a table, and what its columns are."""
    rows, spans = asked["times"], asked["gpus"] > domain_gpus
    first, shared = "whole job" if spans else "estimates", spans and rows[0]["estimated_beside_s"] is not None
    table = {"collective": [row["name"] for row in rows], first: [show_time(row["estimated_s"]) for row in rows]}
    table["algbw"] = [show(row["algbw_bytes_per_s"], "B/s") for row in rows]
    if shared:
        table["beside others"] = [show_time(row["estimated_beside_s"]) for row in rows]
    notes = f"Times count latency and the rates that links reach by profile {asked['profile']}"
    notes += ", of which oversubscribed switches leave a part. " if spans else ". "
    nccl = f"Estimates take the fastest all-reduce, as NCCL does: {asked['nccl']['algorithm']}"
    nccl += f", {show_time(asked['nccl']['time_s'])}{' for the whole job' * spans}."
    if spans:
        notes += "Whole job: one group of all these GPUs. "
        notes += "Beside others: many groups share the network. " * shared
        nccl += " Reduction in the network's switches needs NCCL_COLLNET_ENABLE=1."
    yield Text(f"\n{show(asked['bytes'], 'B')} on each of {asked['gpus']:,} GPUs")
    yield columns_table(table)
    yield Text(f"{notes}Algbw: the buffer over the time of '{first}'. {nccl}")


def shapes_view(found: Shapes) -> Group:
    """Sizes near a model's own that train faster on a GPU."""
    model, gpu, tp = found.scenario.model, found.scenario.cluster.gpu.name, found.scenario.plan.tp
    table = plain_table("change", "parameters", "step", "faster")
    table.add_row("as it is", show_count(found.own.params), show_time(found.own.step_time_s), "")
    for each in found.faster:
        sizes = ((name, size) for name, size in each.sizes.items() if name not in _FOLLOW)
        change = ", ".join(f"{name} {getattr(model, name):,} → {size:,}" for name, size in sizes)
        table.add_row(change, show_count(each.params), show_time(each.step_time_s), f"{each.gain:+.1%}")
    nothing = [] if found.faster else ["No nearby size is faster."]
    legend = "\nOne size is changed at a time; faster: parameters trained per second."
    heading = title(f"{model.name} on {tp} × {gpu}", legend)
    return Group(heading, "", table, *nothing, *assumptions(found.scenario.assumed))
