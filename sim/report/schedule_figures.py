"""What schedules buy, drawn: bubble against micro-batches, activations against bubble, where each one's step goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.errors import SpecError
from sim.estimate import Estimate
from sim.report.figures import new_figure, open_panels, place_labels, place_title, stacked_bars
from sim.report.schedules import COMMUNICATION, Comparison, Row

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#3B3B3B", "#999999")
MARKERS = "osD^vPX*"
WORK, WAIT, MOVE = "work", "waiting for other ranks", "communication in the way"
FAR_APART = 8.0
"""Times the least activations: beyond that the axis is logarithmic."""
PART_COLOURS = {WORK: "#009E73", WAIT: "#D55E00", MOVE: "#0072B2"}


def bubble_figure(comparisons: Mapping[int, Comparison], *, width_in: float = 9.0) -> Any:
    """Share of the step that the average GPU waits for other ranks, over the micro-batches of a step.

    Parameters
    ----------
    comparisons : mapping
        Micro-batches -> the same schedules compared at so many.
    width_in : float
        [inches]

    Raises
    ------
    SpecError
        Nothing to draw, or a width out of range.
    """
    if not comparisons:
        raise SpecError("no comparison to draw; give at least one number of micro-batches")
    figure = new_figure(width_in, 4.0)
    axes = figure.subplots()
    lines: dict[str, list[tuple[int, float]]] = {}
    for count, comparison in sorted(comparisons.items()):
        for row in comparison.rows:
            lines.setdefault(row.name, []).append((count, 100 * row.answer.bubble_fraction))
    by_height = sorted(lines, key=lambda name: -lines[name][0][1])
    for index, name in enumerate(by_height):
        counts, shares = np.array(lines[name]).T
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        axes.plot(counts, shares, label=name, linewidth=1.4, markersize=5, **style)
    axes.set_xscale("log")
    axes.set_xticks(sorted(comparisons), sorted(comparisons))
    axes.minorticks_off()
    axes.set_ylim(0, None)
    axes.set_xlabel("micro-batches a step")
    axes.set_ylabel("waiting for other ranks [% of the step]")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _entitle(figure, next(iter(comparisons.values())), "waiting falls with the micro-batches of a step")
    open_panels(axes)
    return figure


def tradeoff_figure(comparison: Comparison, *, width_in: float = 9.0) -> Any:
    """Activations against bubble, a point a schedule; ringed where weights are kept in several versions or copies.

    Raises
    ------
    SpecError
        A width out of range.
    """
    figure = new_figure(width_in, 4.8)
    axes = figure.subplots()
    groups: dict[tuple[float, float], list[str]] = {}
    for row in comparison.rows:
        at = (round(row.peak_activations_bytes / 1e9, 2), round(100 * row.answer.bubble_fraction, 1))
        several = row.weight_versions * row.weight_copies
        groups.setdefault(at, []).append(row.name if several == 1 else f"{row.name} (weights {several}×)")
        axes.plot(*at, "o", color=COLOURS[0], markersize=6)
        if several > 1:
            axes.plot(*at, "o", color=COLOURS[3], mfc="none", markersize=11)
    highest = max(y for _, y in groups)
    least, most = min(x for x, _ in groups), max(x for x, _ in groups)
    axes.set_xlim(0, 1.18 * most)
    if least > 0 and most > FAR_APART * least:
        axes.set_xscale("log")
        axes.set_xlim(0.8 * least, 1.7 * most)
    axes.set_ylim(0, 1.1 * highest if highest else 1.0)
    axes.set_xlabel("activations kept on the fullest rank [GB]")
    axes.set_ylabel("waiting for other ranks [% of the step]")
    _entitle(figure, comparison, "memory against waiting")
    open_panels(axes)
    place_labels(axes, [(*at, ", ".join(names)) for at, names in groups.items()], size=8.5, reach=8)
    return figure


def causes_figure(comparison: Comparison, *, width_in: float = 9.0, longest: float = 1.6) -> Any:
    """Where each schedule's step goes: work, waiting, communication in the way; the fastest on top.

    Parameters
    ----------
    longest : float
        Bars of more than so many times the fastest step are cut off, and say so.

    Raises
    ------
    SpecError
        A width out of range.
    """
    rows = comparison.rows
    figure = new_figure(width_in, 1.2 + 0.27 * len(rows))
    axes = figure.subplots()
    end = longest * rows[0].answer.step_time_s
    seconds = {row.name: parts(row.answer) for row in rows}
    for place, row in enumerate(rows):
        step = row.answer.step_time_s
        if step > end:  # cut off at the end of the axis
            seconds[row.name] = _first(seconds[row.name], end)
        axes.text(min(step, end) + 0.01 * end, place, _verdict(row, rows[0], end), va="center", fontsize=8.5)
    stacked_bars(axes, seconds, PART_COLOURS, 0.8)
    axes.set_xlim(0, 1.22 * end)
    axes.set_xlabel("step time of the average GPU [s]")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)
    _entitle(figure, comparison, "where the step goes")
    open_panels(axes)
    return figure


def _entitle(figure: Any, comparison: Comparison, what: str) -> None:
    scenario = comparison.rows[0].answer.scenario
    place_title(figure, f"{scenario.model.name} on {scenario.plan.pp} pipeline ranks: {what}", bold=True)


def parts(answer: Estimate) -> dict[str, float]:
    """Seconds of a step in three parts: work, waiting for other ranks, communication that lengthens it. [s]"""
    seconds = answer.breakdown.seconds
    wait = seconds["pipeline_bubble"] + seconds["stage_imbalance"]
    move = sum(seconds[cause] for cause in COMMUNICATION)
    return {WORK: answer.step_time_s - wait - move, MOVE: move, WAIT: wait}


def _first(seconds: Mapping[str, float], end: float) -> dict[str, float]:
    """Parts of a step up to a moment. [s]"""
    found, left = {}, end
    for part, amount in seconds.items():
        found[part] = min(amount, left)
        left -= found[part]
    return found


def _verdict(row: Row, first: Row, end: float) -> str:
    step = row.answer.step_time_s
    slower = "" if row is first else f" (+{step / first.answer.step_time_s - 1:.0%})"
    full = "" if row.answer.fits else ", does not fit"
    return f"{'→ ' if step > end else ''}{step:.1f} s{slower}{full}"
