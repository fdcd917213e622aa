"""Templates to text. Everything that is put into one is escaped; nothing in one reaches out to a network."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from typing import Any

from sim.canvas import as_png
from sim.report.palette import DIM, GROUP_COLOURS, MEMORY_COLOURS, THEMES, ink
from sim.report.plans import heading
from sim.units import show, show_time

PAGE_DPI = 150
"""Resolution of figures in pages, which are read on large screens."""


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sim.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": show_time,
        "quantity": show,
        "percent": lambda share, digits=1: f"{share:.{digits}%}",
        "words": lambda name: str(name).replace("_", " "),
        "heading": heading,
        "breakable": breakable,
        "ink_on": ink,
    }
    environment.globals |= {
        "dim": DIM,
        "group_colours": GROUP_COLOURS,
        "memory_colours": MEMORY_COLOURS,
        "themes": THEMES,
    }
    return environment


def breakable(path: str) -> Any:
    """A field's path that lines may break after a dot or an underscore."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(path))))


def render(template: str, **data: Any) -> str:
    """The text of a template of this package with its data in it."""
    return str(_environment().get_template(template).render(**data))


def embedded(figure: Any) -> str:
    """A figure as the address of an image that stands in the page itself."""
    return f"data:image/png;base64,{b64encode(as_png(figure, PAGE_DPI)).decode()}"
