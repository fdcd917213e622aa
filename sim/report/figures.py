"""Figures as files: paths checked before the work is done, and the size and time axis they are drawn on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.canvas import check_width as check_width
from sim.canvas import new_figure as new_figure
from sim.errors import SpecError
from sim.report.scene import Scene
from sim.report.window import Window, choose_window
from sim.schedules.actions import F
from sim.units import show_short

ENDINGS = (".png", ".svg")
PLACES_PER_INCH = 24.0
"""Forwards side by side in an inch of axis that can still be told apart."""
FAR = 1.4
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""


def check_paths(paths: Sequence[Path], endings: Sequence[str] = ENDINGS) -> None:
    """Raise where a file could not be written, before the work is done.

    Raises
    ------
    SpecError
        Another ending, or a folder that does not exist.
    """
    for path in paths:
        if path.suffix.lower() not in endings:
            raise SpecError(f"{str(path)!r} must end in {' or '.join(endings)}")
        if path.is_dir():
            raise SpecError(f"{str(path)!r} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise SpecError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")


def save(figure: Any, paths: Sequence[Path]) -> None:
    """Write a figure.

    Raises
    ------
    SpecError
        A path that cannot be written.
    """
    for path in paths:
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise SpecError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None


def window_of(
    scenes: Sequence[Scene], width_in: float, between: tuple[float | None, float | None] = (None, None)
) -> Window:
    """What of the time axis is drawn."""
    several = len(scenes) > 1
    ends = [scene.answer.step_time_s if several and scene.streams else scene.horizon for scene in scenes]
    if several:  # one schedule that is far slower than the others would make them small
        ends = [end for end in ends if end <= FAR * np.median(ends)]
    fill, drain = np.median([transients(scene) for scene in scenes], axis=0).tolist()
    typical = float(np.median([typical_forward(scene) for scene in scenes]))
    first_end = min(ends) if several else None
    places = 0.84 * width_in * PLACES_PER_INCH
    return choose_window(max(ends), typical, fill, drain, places, between=between, first_end=first_end)


def typical_forward(scene: Scene) -> float:
    """[s]"""
    return float(np.median((scene.end - scene.start)[scene.program.order.kind == F]))


def transients(scene: Scene) -> tuple[float, float]:
    """(until a backward has come through every stage, from the first stage's last forward on). [s]

    Between the two a step may be cut: all there is like what is next to it. A stream without flush does not drain.
    """
    order = scene.program.order
    backwards, forwards = np.flatnonzero(order.kind != F), np.flatnonzero(order.kind == F)
    first, last = np.full(order.num_stages, np.inf), np.zeros(order.num_stages)
    np.minimum.at(first, order.stage[backwards], scene.end[backwards])
    np.maximum.at(last, order.stage[forwards], scene.end[forwards])
    return float(first.max()), 0.0 if scene.streams else float(scene.horizon - last.min())


def plain_axis(axis: Any) -> None:
    """A logarithmic axis with numbers as people write them, and not too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show_short(value) if value >= 1e4 else f"{value:,.4g}"))
    axis.set_minor_formatter(NullFormatter())
