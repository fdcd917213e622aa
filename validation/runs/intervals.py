"""Write the table of 90 % intervals: by kind of run, the quantile of the absolute log errors, by families."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path

import sim.uncertainty
from sim.uncertainty import kind_of
from validation.runs.score import Scored

LEVEL = 0.9
LEAST = 4
"""Families a kind needs for an interval of its own; a kind of fewer takes the next broader one's."""


def write_intervals(scored: Sequence[Scored], path: Path | None = None) -> None:
    """Rewrite `sim/presets/intervals.yaml` from scored runs."""
    errors: dict[str, dict[str, list[float]]] = {}
    for item in scored:
        if item.error is not None:
            size = abs(log(1.0 + item.error))
            for kind in kind_of(item.run.choices[0]):
                errors.setdefault(kind, {}).setdefault(item.run.family, []).append(size)
    lines = [
        "# Half-widths of 90 % intervals of the step time, as logarithms; flopcast validate --update-intervals",
        'source: "absolute log errors of published runs; families weigh alike; conformal correction (n + 1)/n"',
        f"unknown: {max(width(list(families.values())) for families in errors.values()):.4f}",
        "kinds:",
    ]
    for kind in sorted(errors):
        families = list(errors[kind].values())
        if len(families) >= LEAST:
            count = sum(len(family) for family in families)
            lines.append(f'  "{kind}": {{width: {width(families):.4f}, families: {len(families)}, runs: {count}}}')
    (path or sim.uncertainty._TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def width(families: Sequence[Sequence[float]]) -> float:
    """Weighted quantile of the errors: a family counts as the square root of its runs, a sweep's runs err together."""
    pairs = sorted((error, len(family) ** -0.5) for family in families for error in family)
    total = sum(weight for _, weight in pairs)
    level = min(1.0, LEVEL * (1.0 + 1.0 / len(families)))
    reached = 0.0
    for error, weight in pairs:
        reached += weight
        if reached >= level * total:
            return error
    return pairs[-1][0]
