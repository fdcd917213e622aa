"""Templates to text. Everything that is put into one is escaped; nothing in one reaches out to a network."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.report.plans import HEADINGS
from sim.units import show, show_time


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
        "heading": HEADINGS.get,
    }
    return environment


def render(template: str, **data: Any) -> str:
    """The text of a template of this package with its data in it."""
    return str(_environment().get_template(template).render(**data))
