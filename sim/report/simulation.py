"""A simulation in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from sim.report.terminal import assumptions, indented, title
from sim.simulate import Simulation
from sim.table import columns_table, facts_table
from sim.units import show


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
