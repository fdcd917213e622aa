"""Templates to text, bars to SVG. What is put into a template is escaped; nothing reaches out to a network."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import Any, NamedTuple

from sim.canvas import as_png
from sim.estimate import Estimate
from sim.report import facts
from sim.report.figures import DIM, THEMES, ink
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
        "ink_on": ink,
    }
    environment.globals |= {
        "dim": DIM,
        "group_colours": {name: group.colour for name, group in facts.GROUPS.items()},
        "memory_colours": {name: part.colour for name, part in facts.MEMORY.items()},
        "memory_parts": list(facts.MEMORY),
        "themes": THEMES,
    }
    return environment


def render(template: str, **data: Any) -> str:
    """The text of a template of this package with its data in it."""
    return str(_environment().get_template(template).render(**data))


def embedded(figure: Any) -> str:
    """A figure as the address of an image that stands in the page itself."""
    return f"data:image/png;base64,{b64encode(as_png(figure, PAGE_DPI)).decode()}"


class Bar(NamedTuple):
    """A row: pieces (class, number, begin, width) and a limit in percent of the axis, and its numbers in words."""

    label: str
    segments: list[tuple[str, int, float, float]]
    value: str
    words: str
    mark: float
    wrong: bool


def memory_bars(answer: Estimate) -> list[Bar]:
    """Memory by what it holds, a bar a pipeline rank, on the axis that the fullest rank or the GPU's memory fills.

    A part's number identifies it in grey, too.
    """
    rows, limit = facts.memory_rows(answer), answer.memory_available_bytes
    most = max(limit, *(row.total for row in rows))
    bars = []
    for row in rows:
        at, segments = 0.0, []
        for key, (name, amount) in enumerate(row.parts.items(), start=1):
            segments.append((f"m-{name}", key, at, 100 * amount / most))
            at += 100 * amount / most
        heard = ", ".join(f"{name} {show(amount, 'B')}" for name, amount in row.parts.items() if amount)
        total = show(row.total, "B")
        words = f"{total}: {heard}, of the GPU's {show(limit, 'B')}"
        bars.append(Bar(f"rank {row.rank}", segments, total, words, 100 * limit / most, not row.fits))
    return bars


def answer_data(answer: Estimate) -> dict[str, Any]:
    """What every page of an estimate shows: the question, the headline, the way from peak, memory, assumptions."""
    falls = facts.falls_of(answer)
    used = {row.group for row in falls}
    return {
        "name": answer.scenario.name,
        "question": facts.question_words(answer),
        "plan": facts.plan_words(answer),
        "facts": facts.headline(answer),
        "peak": show(answer.peak_flop_per_s, "FLOP/s"),
        "falls": falls,
        "groups": [(name, group.label) for name, group in facts.GROUPS.items() if name in used],
        "memory": memory_bars(answer),
        "available": answer.memory_available_bytes,
        "assumptions": answer.assumptions,
    }
