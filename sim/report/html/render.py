"""Templates to text. Everything that is put into one is escaped; nothing in one reaches out to a network."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.units import show, show_count, show_time


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
        "count": show_count,
        "percent": lambda share, digits=1: f"{share:.{digits}%}",
        "words": lambda name: str(name).replace("_", " "),
        "gb": lambda nbytes: f"{nbytes / 1e9:.1f}",
    }
    return environment


def render(template: str, **data: Any) -> str:
    """The text of a template of this package with its data in it."""
    return str(_environment().get_template(template).render(**data))
