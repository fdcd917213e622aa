"""A figure of a simulation: how step times spread, and how far the network is used, level by level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import SpecError
from sim.simulate import Simulation

FORMATS = (".png", ".svg", ".pdf")


def check_path(path: Path) -> None:
    """Whether a figure can be written there.

    Raises
    ------
    SpecError
        An ending that is no figure's, or no such folder.
    """
    if path.suffix not in FORMATS:
        raise SpecError(f"{path} must end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise SpecError(f"no folder {path.parent} for the figure; make it first")


def draw_simulation(answer: Simulation, path: Path) -> None:
    """Draw step times where several were drawn, and the use of the network where links were shared.

    Raises
    ------
    SpecError
        There is neither.
    """
    from matplotlib.figure import Figure

    panels = [_steps] * (len(answer.step_times_s) > 1) + [_network] * bool(answer.levels)
    if not panels:
        raise SpecError("one step on links of its own gives nothing to draw; add --jitter 0.02 or --contention")
    figure = Figure(figsize=(5.2 * len(panels), 3.6), layout="constrained")
    for place, panel in enumerate(panels, start=1):
        panel(answer, figure.add_subplot(1, len(panels), place))
    figure.suptitle(answer.scenario.name)
    figure.savefig(path, dpi=150)


def _steps(answer: Simulation, axes: Any) -> None:
    axes.hist(answer.step_times_s, bins="auto", color="tab:blue", alpha=0.7)
    axes.axvline(answer.noiseless_s, color="black", linestyle="--", label=f"without noise: {answer.noiseless_s:.4g} s")
    axes.axvline(answer.mean_s, color="tab:red", label=f"mean: {answer.mean_s:.4g} s")
    axes.set(xlabel="step time [s]", ylabel="steps", title=f"{len(answer.step_times_s)} steps drawn")
    axes.legend(fontsize="small")


def _network(answer: Simulation, axes: Any) -> None:
    rows = answer.levels[::-1]
    names = [f"{row['level']} {row['direction']}" for row in rows]
    axes.barh(names, [100 * row["max_utilisation"] for row in rows], color="tab:orange", label="busiest link")
    axes.barh(
        names, [100 * row["mean_utilisation"] for row in rows], color="tab:blue", height=0.4, label="average link"
    )
    axes.set(xlabel="of what the links could carry in the step [%]", title="Network, by level")
    axes.legend(fontsize="small")
