"""An empty figure that shows itself in a notebook: what every drawing begins with."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from sim.errors import SpecError
from sim.files import write_file

NARROWEST, WIDEST = 4.0, 60.0
"""Inches."""
SCREEN_DPI = 90
"""Resolution of a figure that a notebook shows. [dots/inch]"""


def new_figure(width_in: float, height_in: float) -> Any:
    """An empty figure that belongs to nobody: a notebook shows it, `save` writes it, no window is opened."""
    check_width(width_in)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)

    figure._repr_png_ = partial(as_png, figure)  # Jupyter shows it by itself, whether or not pyplot is there
    return figure


def as_png(figure: Any, dpi: float = SCREEN_DPI) -> bytes:
    """A figure as PNG: few colours are used, and with a palette of them it takes a quarter of the space."""
    from PIL import Image

    picture, small = BytesIO(), BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    Image.open(picture).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(small, "png", optimize=True)
    return small.getvalue()


def write_figure(figure: Any, path: Path, dpi: float) -> None:
    """Write a figure into a file, whole or not at all; its ending says as what. The same figure is the same bytes."""
    import matplotlib

    kind = path.suffix[1:].lower()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with matplotlib.rc_context({"svg.hashsalt": "flopcast"}):  # else ids are drawn at random
        write_file(path, lambda place: figure.savefig(place, dpi=dpi, format=kind, metadata=undated))


def check_width(width_in: float) -> None:
    """Raise where a figure would be too narrow or too wide to draw."""
    if not NARROWEST <= width_in <= WIDEST:
        raise SpecError(f"a figure {width_in:g} inches wide cannot be drawn; choose {NARROWEST:g} to {WIDEST:g}")
