"""A figure of the links over a step: how far each level is used, the busiest links, and where messages' time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sim.engines.link_history import CAUSES, LinkHistory
from sim.errors import SpecError
from sim.report.figures import new_figure, save
from sim.simulate import Simulation
from sim.units import show

_COLOURS = ("#999999", "#0072B2", "#CC79A7", "#D55E00", "#E69F00", "#56B4E9")
"""Of CAUSES; Okabe and Ito's, as everywhere."""
_MEAN, _MOST = "#0072B2", "#E69F00"
_ROW_IN = 0.19
"""Height of a row of the heat map. [inches]"""


def draw_links(answer: Simulation, path: Path) -> None:
    """Draw what `simulate(..., links=True)` followed.

    Raises
    ------
    SpecError
        It followed nothing, or the file cannot be written.
    """
    history = answer.history
    if history is None:
        raise SpecError("links were not followed; add --links")
    heat_in = max(1.6, _ROW_IN * len(history.links))
    figure = new_figure(11.0, 1.0 + 2.9 + heat_in)
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.9, heat_in + 0.6))
    left, right = top.subfigures(1, 2, width_ratios=(1.0, 1.0))
    _draw_levels(left, history)
    _draw_kinds(right, history)
    _draw_heat(bottom, history)
    figure.suptitle(
        f"{answer.scenario.name}: links over a step of {show(answer.step_times_s[0], 's', digits=4)}, "
        f"{answer.meetings:,} messages met others on a link too narrow for all"
    )
    save(figure, [path])


def _draw_levels(figure: Any, history: LinkHistory) -> None:
    """One strip a level: the average link that is used at all, and the busiest."""
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
    names = [f"{row['kind']}\n{show(row['bytes'], 'B')} a GPU" for row in history.kinds]
    start = np.zeros(len(names))
    for cause, colour in zip(CAUSES, _COLOURS, strict=True):
        seconds = np.array([row["seconds"][cause] for row in history.kinds])
        if seconds.max(initial=0.0) > 0:
            axes.barh(names, seconds, left=start, color=colour, label=cause, height=0.65)
        start += seconds
    axes.invert_yaxis()
    axes.tick_params(labelsize="small")
    axes.set(xlabel="of a step, on the average rank [s]", title="where messages' time goes")
    axes.set_xlim(0.0, 1.03 * float(start.max(initial=1e-9)))
    figure.legend(loc="outside lower center", ncols=3, fontsize="x-small")


def _draw_heat(figure: Any, history: LinkHistory) -> None:
    from matplotlib.colors import PowerNorm

    axes = figure.subplots()
    rows = np.array(list(history.links.values())).reshape(len(history.links), -1)
    drawn = axes.pcolormesh(
        history.edges_s, np.arange(len(rows) + 1), 100 * rows, cmap="viridis", norm=PowerNorm(0.5, 0.0, 100.0)
    )
    axes.set_yticks(np.arange(len(rows)) + 0.5, list(history.links), fontsize="x-small")
    axes.invert_yaxis()
    axes.set(xlabel="time [s]", title="the busiest links of each level")
    bar = figure.colorbar(drawn, ax=axes, pad=0.01)
    bar.set_label("of what the link carries [%]", fontsize="small")
