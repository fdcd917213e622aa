"""Templates to text, bars to SVG. What is put into a template is escaped; nothing reaches out to a network."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sim.canvas import as_png
from sim.report.facts import LABELS, MEMORY
from sim.report.figures import DIM, GROUP_COLOURS, MEMORY_COLOURS, THEMES, ink
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


class Part(NamedTuple):
    """What has a name, a colour (its class) and a number in the bars, which identifies it in grey, too."""

    name: str
    kind: str
    key: int


class Bar(NamedTuple):
    """A row: pieces (class, number, begin, width) in percent of the axis, and its numbers for those who hear it.

    mark : a limit; None without one. [% of the axis]
    """

    label: str
    segments: list[tuple[str, int, float, float]]
    value: str
    words: str
    mark: float | None
    wrong: bool


class BarChart(NamedTuple):
    """Bars, and what their parts are."""

    rows: list[Bar]
    parts: list[Part]


GROUP_PARTS = {group: Part(label, group, key) for key, (group, label) in enumerate(LABELS.items(), start=1)}
"""Groups of causes."""
MEMORY_PARTS = {name: Part(name, f"m-{name}", key) for key, name in enumerate(MEMORY, start=1)}
"""What memory holds."""


def bar_chart(
    rows: Sequence[tuple[str, Mapping[str, float], float | None]],
    parts: Mapping[str, Part],
    words: Callable[[float], str],
) -> BarChart:
    """Bars, each a label, amounts by part and a limit, on the axis that the longest bar or the highest limit fills."""
    most = max((max(sum(amounts.values()), limit or 0.0) for _, amounts, limit in rows), default=1.0) or 1.0
    bars = []
    for label, amounts, limit in rows:
        at, segments, total = 0.0, [], sum(amounts.values())
        for name, amount in amounts.items():
            segments.append((parts[name].kind, parts[name].key, at, 100 * amount / most))
            at += 100 * amount / most
        heard = ", ".join(f"{parts[name].name} {words(amount)}" for name, amount in amounts.items() if amount)
        heard += "" if limit is None else f", of the GPU's {words(limit)}"
        mark = None if limit is None else 100 * limit / most
        wrong = limit is not None and total > limit
        bars.append(Bar(label, segments, words(total), f"{words(total)}: {heard}", mark, wrong))
    return BarChart(bars, [part for name, part in parts.items() if any(name in amounts for _, amounts, _ in rows)])


def memory_bars(rows: Sequence[tuple[str, Mapping[str, float], float]]) -> BarChart:
    """Memory by what it holds, beside what there is: (label, bytes by part, bytes of the GPU)."""
    return bar_chart(rows, MEMORY_PARTS, lambda amount: show(amount, "B"))
