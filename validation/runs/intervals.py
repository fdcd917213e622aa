"""The table of 90 % intervals: by kind of run, the quantile of the absolute log errors, and its coverage."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path

import sim.uncertainty
from calibration.readers.families import lineage_of
from sim.uncertainty import is_unknown, kind_of
from validation.runs.scored import Scored

LEVEL = 0.9
SHRINK = 4
"""A kind of n lineages takes n parts of its own quantile and this many of the next broader kind's."""


def write_intervals(scored: Sequence[Scored], unknown: Sequence[Scored], path: Path | None = None) -> None:
    """Rewrite `sim/presets/intervals.yaml` from scored runs.

    unknown : the same runs with their frameworks taken for unknown ones.
    """
    errors = errors_by_kind(known_only(scored))
    of_unknown = errors_by_kind(unknown)
    widths = half_widths(errors) | half_widths(of_unknown)
    lines = [
        "# Half-widths of 90 % intervals of the step time, as logarithms; flopcast validate --update-intervals",
        'source: "absolute log errors of published runs, lineages of many runs counting as their square root"',
        f"unknown: {quantile(list(errors[ANY].values())):.4f}",
        "kinds:",
    ]
    for kind in sorted(widths):
        groups = (errors | of_unknown)[kind]
        count = sum(len(group) for group in groups.values())
        lines.append(f'  "{kind[-1]}": {{width: {widths[kind]:.4f}, lineages: {len(groups)}, runs: {count}}}')
    (path or sim.uncertainty.TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")


Kind = tuple[str, ...]
ANY: Kind = ()


def known_only(scored: Sequence[Scored]) -> list[Scored]:
    """Predicted runs whose framework is known."""
    return [item for item in scored if item.scenario is not None and not is_unknown(item.scenario.stack)]


def errors_by_kind(scored: Sequence[Scored]) -> dict[Kind, dict[str, list[float]]]:
    """Absolute log errors by what is left out together, for every kind: the path from the broadest to it."""
    errors: dict[Kind, dict[str, list[float]]] = {}
    for item in scored:
        if item.error is not None and item.scenario is not None:
            path = tuple(reversed(kind_of(item.scenario)))
            for depth in range(len(path) + 1):
                errors.setdefault(path[:depth], {}).setdefault(_group(item), []).append(abs(log(1.0 + item.error)))
    return errors


def _group(item: Scored) -> str:
    """What is left out together: a lineage; of unknown frameworks a whole framework, by which a new one differs."""
    assert item.scenario is not None
    return item.run.framework_name if is_unknown(item.scenario.stack) else lineage_of(item.run.family)


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
    """Share of runs inside the interval that the other lineages alone would have given; NaN of fewer than two.

    Of unknown frameworks whole frameworks are left out.
    """
    errors = errors_by_kind(scored)
    hits = []
    used = [item for item in scored if item.error is not None and item.scenario is not None]
    families = sorted({_group(item) for item in used})
    if len(families) < 2:
        return float("nan")
    for family in families:
        others = {kind: {name: v for name, v in found.items() if name != family} for kind, found in errors.items()}
        widths = half_widths({kind: found for kind, found in others.items() if found})
        for item in used:
            if _group(item) == family and item.error is not None and item.scenario is not None:
                path = tuple(reversed(kind_of(item.scenario)))
                known = next(
                    (widths[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in widths), None
                )
                width = known if known is not None else quantile(list(others[ANY].values()))
                hits.append(abs(log(1.0 + item.error)) <= width)
    return sum(hits) / len(hits)
