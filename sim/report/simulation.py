"""A figure of a simulation: how step times spread, and how far the network is used, level by level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.canvas import new_figure
from sim.errors import SpecError
from sim.report.figures import save
from sim.simulate import Simulation
from sim.units import show

_MEAN, _MOST, _LINE = "#0072B2", "#E69F00", "#D55E00"
"""Okabe and Ito's, as everywhere."""


def draw_simulation(answer: Simulation, path: Path) -> None:
    """Draw step times where several were drawn, and the use of the network where links were shared.

    Raises
    ------
    SpecError
        There is neither, or the file cannot be written.
    """
    panels = [_steps] * (len(answer.step_times_s) > 1) + [_network] * bool(answer.levels)
    if not panels:
        raise SpecError("one step on links of its own gives nothing to draw; add --jitter 0.02 or --contention")
    figure = new_figure(5.4 * len(panels), 3.6)
    for place, panel in enumerate(panels, start=1):
        panel(answer, figure.add_subplot(1, len(panels), place))
    figure.suptitle(answer.scenario.name)
    save(figure, [path])


def _steps(answer: Simulation, axes: Any) -> None:
    """Step times in their own range; how far they are from the step without noise stands in the title."""
    from matplotlib.ticker import MaxNLocator

    axes.hist(answer.step_times_s, bins="auto", color=_MEAN, alpha=0.75)
    axes.axvline(answer.mean_s, color=_LINE, linestyle="--", label=f"mean: {show(answer.mean_s, 's', digits=5)}")
    low, high = axes.get_xlim()
    if low <= answer.noiseless_s <= high:
        axes.axvline(answer.noiseless_s, color="black", label="without noise")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.25)
    axes.set(
        xlabel="step time [s]",
        ylabel="steps",
        title=f"{len(answer.step_times_s)} steps: {answer.mean_s / answer.noiseless_s - 1:+.2%} on average "
        f"to {show(answer.noiseless_s, 's', digits=4)} without noise",
    )
    axes.title.set_fontsize("medium")
    axes.legend(fontsize="small", loc="upper right")


def _network(answer: Simulation, axes: Any) -> None:
    """Use of every level over the step, the busiest link behind the average one."""
    rows = answer.levels[::-1]
    names = [f"{row['level']} {row['direction']}" for row in rows]
    most, mean = ([100 * row[f"{which}_utilisation"] for row in rows] for which in ("max", "mean"))
    bars = axes.barh(names, most, color=_MOST, label="busiest link")
    axes.barh(names, mean, color=_MEAN, height=0.4, label="average link")
    axes.bar_label(bars, [f"{share:.3g} %" for share in most], padding=3, fontsize="small")
    axes.margins(x=0.18)
    axes.set(xlabel="of what the links could carry in the step [%]", title="Network, by level")
    axes.title.set_fontsize("medium")
    axes.legend(fontsize="small", loc="lower right")
