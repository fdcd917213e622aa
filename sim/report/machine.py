"""Machines in a terminal: networks and collectives, noisy steps, sizes that suit a GPU, and plans of PipeDream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.planners.answers import NEGLIGIBLE, PipeDreamAnswer
from sim.planners.pipeline_plan import PipelinePlan
from sim.report.terminal import assumptions, indented, remarks, title
from sim.scaling.shape import Shapes
from sim.simulate import Simulation
from sim.table import Table, columns_table, facts_table, plain_table, rows_table
from sim.units import show, show_count, show_time, significant

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


def simulation_view(answer: Simulation) -> Group:
    """Step times, the network's use by level, and what was assumed."""
    pipelines = f"{answer.pipelines} pipeline{'s' * (answer.pipelines != 1)}"
    drawn = f"{len(answer.step_times_s)} steps of {pipelines} with noise" if answer.jitter else "one step without noise"
    share = answer.mean_s / answer.noiseless_s - 1
    added = f"{share:+.2%}" if abs(share) >= 5e-5 else "the same"
    several = len(answer.step_times_s) > 1
    facts = [("Step without noise", answer.noiseless_s, ""), ("Mean" if several else "Step", answer.mean_s, added)]
    if several:
        most = f"to {show(answer.quantile_s(0.95), 's', digits=4)}"
        facts += [("Median", answer.quantile_s(0.5), ""), ("5 % to 95 %", answer.quantile_s(0.05), most)]
    rows = ((name, show(seconds, "s", digits=4), note) for name, seconds, note in facts)
    parts: list[RenderableType] = [title(answer.scenario.name, f"  {drawn}"), indented(facts_table(rows))]
    if answer.levels:
        met = f"{answer.meetings:,} messages were slowed because a link was full"
        columns = {
            "level": [f"{row['level']} {row['direction']}" for row in answer.levels],
            "links": [f"{row['links']:,}" for row in answer.levels],
            "bytes a step": [show(row["bytes"], "B") for row in answer.levels],
            "mean use": [f"{row['mean_utilisation']:.2%}" for row in answer.levels],
            "most": [f"{row['max_utilisation']:.2%}" for row in answer.levels],
        }
        busiest = ((row["link"], show(row["bytes"], "B"), f"{row['utilisation']:.2%}") for row in answer.busiest)
        parts += [
            "",
            f"Network  ({met})",
            columns_table(columns, gap=4),
            "Busiest links",
            indented(facts_table(busiest)),
        ]
    return Group(*parts, *assumptions(answer.assumptions))


def pipedream_view(answer: PipeDreamAnswer) -> Group:
    """PipeDream's plan: its stages, what it gains over data parallelism, and what its play adds."""
    plan, played = answer.plan, answer.played
    machine = " × ".join(str(level) for level in reversed(plan.levels))
    asked = title(plan.profile.name, f"  {len(plan.profile)} layers on {plan.num_workers} workers ({machine})\n")
    gain, slower = significant(plan.data_parallel_s / plan.period_s), show_time(plan.data_parallel_s)
    data_parallel = f"{gain} times data parallelism ({slower})"
    lines = {
        "Plan": f"{plan.config}, one micro-batch per {show_time(plan.period_s)}, limited by {plan.bottleneck}",
        "Gain": f"{significant(plan.profile.seconds / plan.period_s)} times one worker, {data_parallel}",
        "Played": f"not at all: {answer.unplayed}",
    }
    if played is not None:
        size = plan.profile.microbatch_size
        samples = f", {significant(size / played.period_s)} samples/s" if size > 1 else ""
        pace = f"one micro-batch per {show_time(played.period_s)}{samples}: {_more(played.over_plan)}"
        late, versions = max(played.staleness), max(played.versions)
        kept = f"gradients up to {late} update{'s' * (late > 1)} late, {versions} versions of the weights"
        lines["Played"] = f"{pace}; {kept if late else 'no gradient is late'}"
    if answer.covered is not None:
        first = [sum(plan.replicas[:stage]) for stage in range(len(plan.replicas))]
        most = "-".join(str(answer.covered.in_flight[place]) for place in first)
        lines["More"] = f"with {most} micro-batches in flight {_more(answer.covered.over_plan)}"
    notes = [
        "reductions are ring all-reduces and overlap compute; sends take turns on a stage's link",
        f"each worker of the first stage has {plan.active_minibatches} micro-batches in flight (NOAM)",
        *([f"layers: {plan.profile.source}"] if plan.profile.source else []),
    ]
    return Group(asked, indented(_stages(plan)), "", remarks(lines), *assumptions(notes))


def _stages(plan: PipelinePlan) -> Table:
    """A table of the stages: their layers, workers, times and memory."""
    stages, names = plan.stages, [layer.name for layer in plan.profile.layers]
    columns = {
        "stage": [str(number) for number in range(len(stages))],
        "layers": [
            f"{names[s.first]} … {names[s.last - 1]}" if s.last - s.first > 1 else names[s.first] for s in stages
        ],
        "workers": [str(stage.replicas) for stage in stages],
        "F + B": [show_time(stage.forward_s + stage.backward_s) for stage in stages],
        "period": [show_time(stage.period_s) for stage in stages],
        "in flight": [str(stage.in_flight) for stage in stages],
        "memory": [show(stage.memory_bytes, "B") for stage in stages],
    }
    return columns_table(columns, left=("layers",), wrap=("layers",))


def _more(over: float) -> str:
    return "as planned" if over <= 1 + NEGLIGIBLE else f"{over - 1:.1%} more than planned"
