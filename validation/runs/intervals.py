"""The table of 90 % intervals: by kind of run, the quantile of the absolute log errors, and its coverage."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path

import sim.uncertainty
from sim.uncertainty import kind_of
from validation.runs.scored import Scored

LEVEL = 0.9
SHRINK = 4
"""A kind of n families takes n parts of its own quantile and this many of the next broader kind's."""


def write_intervals(scored: Sequence[Scored], path: Path | None = None) -> None:
    """Rewrite `sim/presets/intervals.yaml` from scored runs."""
    errors = errors_by_kind(scored)
    widths = half_widths(errors)
    lines = [
        "# Half-widths of 90 % intervals of the step time, as logarithms; flopcast validate --update-intervals",
        'source: "absolute log errors of published runs, families of many runs counting as their square root"',
        f"unknown: {quantile(list(errors[ANY].values())):.4f}",
        "kinds:",
    ]
    for kind in sorted(widths):
        families = errors[kind]
        count = sum(len(family) for family in families.values())
        lines.append(f'  "{kind[-1]}": {{width: {widths[kind]:.4f}, families: {len(families)}, runs: {count}}}')
    (path or sim.uncertainty.TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")


Kind = tuple[str, ...]
ANY: Kind = ()


def errors_by_kind(scored: Sequence[Scored]) -> dict[Kind, dict[str, list[float]]]:
    """Absolute log errors by family, for every kind: the path from the broadest to it."""
    errors: dict[Kind, dict[str, list[float]]] = {}
    for item in scored:
        if item.error is not None:
            path = tuple(reversed(kind_of(item.run.choices[0])))
            for depth in range(len(path) + 1):
                errors.setdefault(path[:depth], {}).setdefault(item.run.family, []).append(abs(log(1.0 + item.error)))
    return errors


def half_widths(errors: dict[Kind, dict[str, list[float]]]) -> dict[Kind, float]:
    """Half-width of every kind, drawn to that of the broader kind above it."""
    widths: dict[Kind, float] = {ANY: quantile(list(errors[ANY].values()))}
    for kind in sorted(errors, key=len):
        if kind:
            families = list(errors[kind].values())
            own = quantile(families)
            widths[kind] = (len(families) * own + SHRINK * widths[kind[:-1]]) / (len(families) + SHRINK)
    del widths[ANY]
    return widths


def quantile(families: Sequence[Sequence[float]]) -> float:
    """Weighted quantile of the errors: a family counts as the square root of its runs, a sweep's runs err together."""
    pairs = sorted((error, len(family) ** -0.5) for family in families for error in family)
    total = sum(weight for _, weight in pairs)
    reached = 0.0
    for error, weight in pairs:
        reached += weight
        if reached >= LEVEL * total:
            return error
    return pairs[-1][0]


def left_out_coverage(scored: Sequence[Scored]) -> float:
    """Share of runs inside the interval that the other families alone would have given; NaN of fewer than two."""
    errors = errors_by_kind(scored)
    hits = []
    families = sorted({item.run.family for item in scored if item.error is not None})
    if len(families) < 2:
        return float("nan")
    for family in families:
        others = {kind: {name: v for name, v in found.items() if name != family} for kind, found in errors.items()}
        widths = half_widths({kind: found for kind, found in others.items() if found})
        for item in scored:
            if item.run.family == family and item.error is not None:
                path = tuple(reversed(kind_of(item.run.choices[0])))
                known = next(
                    (widths[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in widths), None
                )
                width = known if known is not None else quantile(list(others[ANY].values()))
                hits.append(abs(log(1.0 + item.error)) <= width)
    return sum(hits) / len(hits)
