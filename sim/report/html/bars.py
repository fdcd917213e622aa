"""Stacked bars on one axis, ready for a template: places in percent of the axis, numbers that a legend explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sim.report.facts import LABELS, MemoryRow, seconds_by_group
from sim.units import show, show_time


@dataclass(frozen=True, slots=True)
class Part:
    """What has a name, a colour (its class) and a number in the bars, which tells it in grey, too."""

    name: str
    kind: str
    key: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a bar. [% of the axis]"""

    kind: str
    key: int
    at: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A row.

    words : its numbers, for those who hear it.
    mark : a limit; None without one. [% of the axis]
    """

    label: str
    segments: tuple[Segment, ...]
    value: str
    words: str
    mark: float | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars, and what their parts are."""

    rows: tuple[Bar, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What a bar is made of: amounts by part, and a limit beside which it stands."""

    label: str
    amounts: Mapping[str, float]
    limit: float | None = None


def bar_chart(
    rows: Sequence[Row], show_amount: Callable[[float], str], parts: Mapping[str, Part], limit_word: str = "limit"
) -> BarChart:
    """Bars on the axis that the longest bar or the highest limit fills."""
    totals = [sum(row.amounts.values()) for row in rows]
    most = max([*totals, *(row.limit for row in rows if row.limit is not None)], default=1.0) or 1.0
    bars = []
    for row, total in zip(rows, totals, strict=True):
        at, segments = 0.0, []
        for name, amount in row.amounts.items():
            width = 100 * amount / most
            segments.append(Segment(parts[name].kind, parts[name].key, at, width))
            at += width
        said = ", ".join(f"{parts[name].name} {show_amount(amount)}" for name, amount in row.amounts.items() if amount)
        limit = "" if row.limit is None else f", {limit_word} {show_amount(row.limit)}"
        over = row.limit is not None and total > row.limit
        bars.append(
            Bar(
                row.label,
                tuple(segments),
                show_amount(total),
                f"{show_amount(total)}: {said}{limit}",
                None if row.limit is None else 100 * row.limit / most,
                over,
            )
        )
    used = {name: None for row in rows for name in row.amounts}
    return BarChart(tuple(bars), tuple(parts[name] for name in parts if name in used))


GROUP_PARTS = {group: Part(label, group, key) for key, (group, label) in enumerate(LABELS.items(), start=1)}
"""Groups of causes."""


def _bytes(amount: float) -> str:
    return show(amount, "B")


def time_chart(rows: Sequence[tuple[str, Mapping[str, float]]]) -> BarChart:
    """Steps by groups of causes, of seconds by cause."""
    made = [Row(label, seconds_by_group(seconds)) for label, seconds in rows]
    return bar_chart(made, show_time, GROUP_PARTS)


def memory_bars(rows: Sequence[tuple[str, Mapping[str, float], float]]) -> BarChart:
    """Memory by what it holds, beside what there is: (label, bytes by part, bytes of the GPU)."""
    parts = {name: Part(name, f"m-{name}", key) for key, name in enumerate(rows[0][1], start=1)} if rows else {}
    return bar_chart([Row(*row) for row in rows], _bytes, parts, "of the GPU's")


def memory_chart(rows: Sequence[MemoryRow], available: float) -> BarChart:
    """Memory by pipeline rank."""
    return memory_bars([(f"rank {row.rank}", row.parts, available) for row in rows])
