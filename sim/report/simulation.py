"""A simulation in a terminal, and how far the network is used over the step as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from sim.canvas import new_figure
from sim.engines.link_history import CAUSES, LinkHistory
from sim.errors import SpecError
from sim.report.figures import save, stacked_bars
from sim.report.terminal import assumptions, title
from sim.simulate import Simulation
from sim.table import Table, columns_table
from sim.units import show

_MEAN, _MOST = "#0072B2", "#E69F00"
"""Okabe and Ito's, as everywhere."""
_CAUSE_COLOURS = ("#999999", "#0072B2", "#CC79A7", "#D55E00", "#E69F00", "#56B4E9")
"""Colours of CAUSES."""


def simulation_view(answer: Simulation) -> Group:
    """Step times, the network's use by level, where messages' time goes, and what was assumed."""
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
        met = f"{answer.meetings:,} messages shared a link that was too narrow for them"
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
    if answer.history is not None:
        heading = "Where messages' time goes  (seconds of a step, on the average rank)"
        parts += ["", heading, _messages_table(answer.history)]
    return Group(*parts, *assumptions(answer.assumptions))


def _line(label: str, seconds: float, note: str = "") -> str:
    return f"  {label:<22}{show(seconds, 's', digits=4):>10}  {note}"


def _messages_table(history: LinkHistory) -> Table:
    """Kinds of messages and causes of their time that there are."""
    kinds, least = history.kinds, 1e-9
    columns = {
        "kind": [row["kind"] for row in kinds],
        "messages": [f"{row['messages']:,}" for row in kinds],
        "bytes": [show(row["bytes"], "B") for row in kinds],
    }
    for cause in kinds[0]["seconds"]:
        seconds = [row["seconds"][cause] for row in kinds]
        if max(seconds) > least:
            columns[cause] = [f"{each:.3f}" if each > least else "" for each in seconds]
    return columns_table(columns, gap=1)  # nine columns in eighty places


def draw_links(answer: Simulation, path: Path) -> None:
    """Draw what `simulate(..., links=True)` followed."""
    history = answer.history
    if history is None:
        raise SpecError("links were not followed, so there is nothing to draw; add --links")
    figure = new_figure(11.0, 3.6)
    left, right = figure.subfigures(1, 2)
    _draw_levels(left, history)
    _draw_kinds(right, history)
    figure.suptitle(
        f"{answer.scenario.name}: links over a step of {show(answer.step_times_s[0], 's', digits=4)}, "
        f"{answer.meetings:,} messages shared a link that was too narrow"
    )
    save(figure, [path])


def _draw_levels(figure: Any, history: LinkHistory) -> None:
    """A band a level: the average link that is used at all, and the busiest."""
    axes = figure.subplots(len(history.levels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, (mean, most)) in zip(axes, history.levels.items(), strict=True):
        for values, colour, label in ((most, _MOST, "busiest link"), (mean, _MEAN, "average link")):
            axis.stairs(100 * values, history.edges_s, fill=True, color=colour, label=label)
        axis.set_ylim(0.0, max(1e-3, 112 * float(most.max())))
        axis.set_ylabel(name, rotation=0, ha="right", va="center")
        axis.margins(x=0.0)
        axis.tick_params(labelsize="small")
    axes[0].set_title("use of each level of links [%]")
    axes[-1].set_xlabel("time [s]")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="x-small")


def _draw_kinds(figure: Any, history: LinkHistory) -> None:
    """Seconds of a step of the average stream, by cause."""
    axes = figure.subplots()
    rows = {f"{row['kind']}\n{show(row['bytes'], 'B')} a GPU": row["seconds"] for row in history.kinds}
    stacked_bars(axes, rows, dict(zip(CAUSES, _CAUSE_COLOURS, strict=True)))
    axes.tick_params(labelsize="small")
    axes.set(xlabel="of a step, on the average rank [s]", title="where messages' time goes")
    axes.set_xlim(0.0, 1.03 * max(1e-9, *(sum(row.values()) for row in rows.values())))
    figure.legend(loc="outside lower center", ncols=3, fontsize="x-small")
