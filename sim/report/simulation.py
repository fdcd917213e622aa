"""A simulation in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from sim.report.terminal import assumptions, title
from sim.simulate import Simulation
from sim.table import columns_table
from sim.units import show


def simulation_view(answer: Simulation) -> Group:
    """Step times, the network's use by level, and what was assumed."""
    pipelines = f"{answer.pipelines} pipeline{'s' * (answer.pipelines != 1)}"
    drawn = f"{len(answer.step_times_s)} steps of {pipelines} with noise" if answer.jitter else "one step without noise"
    share = answer.mean_s / answer.noiseless_s - 1
    added = f"{share:+.2%}" if abs(share) >= 5e-5 else "the same"
    several = len(answer.step_times_s) > 1
    parts: list[RenderableType] = [
        title(answer.scenario.name, f"  {drawn}"),
        _line("Step without noise", answer.noiseless_s),
        _line("Mean" if several else "Step", answer.mean_s, added),
    ]
    if several:
        most = f"to {show(answer.quantile_s(0.95), 's', digits=4)}"
        parts += [_line("Median", answer.quantile_s(0.5)), _line("5 % to 95 %", answer.quantile_s(0.05), most)]
    if answer.levels:
        met = f"{answer.meetings:,} messages were slowed because a link was full"
        columns = {
            "level": [f"{row['level']} {row['direction']}" for row in answer.levels],
            "links": [f"{row['links']:,}" for row in answer.levels],
            "bytes a step": [show(row["bytes"], "B") for row in answer.levels],
            "mean use": [f"{row['mean_utilisation']:.2%}" for row in answer.levels],
            "most": [f"{row['max_utilisation']:.2%}" for row in answer.levels],
        }
        parts += ["", f"Network  ({met})", columns_table(columns, gap=4), "Busiest links"]
        parts += [
            f"  {row['link']:<22}{show(row['bytes'], 'B'):>10}  {row['utilisation']:.2%}" for row in answer.busiest
        ]
    return Group(*parts, *assumptions(answer.assumptions))


def _line(label: str, seconds: float, note: str = "") -> str:
    return f"  {label:<22}{show(seconds, 's', digits=4):>10}  {note}"
