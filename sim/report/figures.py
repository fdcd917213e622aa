"""What figures have in common: files checked before the work is done, titles, frames, logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.canvas import check_width as check_width
from sim.canvas import new_figure as new_figure
from sim.errors import SpecError
from sim.units import show_short

ENDINGS = (".png", ".svg")


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


def place_title(figure: Any, title: str, size: float = 11, bold: bool = False) -> None:
    """The title of a figure, at its left edge; a dollar sign in a name is no formula."""
    weight = "bold" if bold else "normal"
    figure.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight=weight, parse_math=False)


def open_panels(*panels: Any, grid: str = "") -> None:
    """Panels without a frame above and at the right, and with a pale grid along `x`, `y` or `both` axes."""
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        if grid:
            panel.grid(axis=grid, alpha=0.25, lw=0.6)


def plain_axis(axis: Any) -> None:
    """A logarithmic axis with numbers as people write them, and not too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show_short(value) if value >= 1e4 else f"{value:,.4g}"))
    axis.set_minor_formatter(NullFormatter())
