"""What a Gantt chart shows, whatever draws it: bars in the rows of ranks, and the stretches of time that are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.engines import Timeline
from sim.engines.tasks import DATA, GRADIENTS, ONCE
from sim.errors import SpecError
from sim.report.gantt.step_view import Bars, StepView, actions_by_kind
from sim.schedules.actions import F

Spans = tuple[tuple[float, float], ...]
"""Stretches of time side by side, each from its begin to its end. [s]"""
FAR = 1.4
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""
WORTH = 0.8
"""Share of a step above which what is shown is not worth a break."""


def step_bars(view: StepView, shift: float = 0.0) -> list[Bars]:
    """Everything that ranks do in a step, in the order in which it is drawn: idle time lies under all else.

    Parameters
    ----------
    shift : float
        Time at which the drawing begins. [s]
    """
    order, stop = view.program.order, view.horizon - shift
    bars = actions_by_kind(order, view.start, view.compute_end)
    sent = np.flatnonzero(view.end > view.compute_end)
    if len(sent):  # sends that keep their rank
        bars.append(Bars("send", order.rank[sent], view.compute_end[sent], view.end[sent]))
    if view.streams:
        idle_from, idle_to = np.zeros(order.num_ranks), np.full(order.num_ranks, stop)
        bars = [
            each._replace(begin=np.minimum(each.begin - shift, stop), end=np.minimum(each.end - shift, stop))
            for each in bars
        ]
    else:
        idle_from, idle_to = view.begin, view.begin + view.answer.step_time_s
    return [Bars("idle", np.arange(order.num_ranks), idle_from, idle_to), *bars, *view.on(ONCE, DATA, GRADIENTS)]


def played_bars(timeline: Timeline) -> tuple[list[Bars], Spans]:
    """Actions that an engine played, and the stretches in which it did: what it left out repeats what is beside it.

    Raises
    ------
    SpecError
        The engine gives totals only.
    """
    start, end, order = timeline.start, timeline.end, timeline.program.order
    if start is None or end is None:
        raise SpecError(f"engine {timeline.engine} gives totals, not a time for every action; use dag, des or shared")
    last = float(end.max())
    spans: Spans = ((0.0, last),)
    if order.fold is not None:
        by_start = np.argsort(start, kind="stable")
        begins, done = start[by_start][1:], np.maximum.accumulate(end[by_start])[:-1]
        widest = int(np.argmax(begins - done))
        if begins[widest] - done[widest] > 0.02 * last:
            spans = ((0.0, float(done[widest])), (float(begins[widest]), last))
    return actions_by_kind(order, start, end), spans


def spans_of(
    views: Sequence[StepView], places: float, between: tuple[float | None, float | None] = (None, None)
) -> Spans:
    """Stretches of time that are drawn: the whole step if an action can be seen in it, else its beginning and end.

    Parameters
    ----------
    places : float
        How many forwards side by side can still be told apart.
    between : (from, to)
        A stretch that was asked for. [s]

    Raises
    ------
    SpecError
        An empty stretch, or one that lies outside.
    """
    several = len(views) > 1
    ends = [view.answer.step_time_s if several and view.streams else view.horizon for view in views]
    if several:  # one schedule that is far slower than the others would make them small
        ends = [end for end in ends if end <= FAR * np.median(ends)]
    end, (low, high) = max(ends), between
    if low is not None or high is not None:
        begin, stop = 0.0 if low is None else low, end if high is None else high
        if not 0.0 <= begin < end or not stop > begin:
            raise SpecError(
                f"--from {begin:g} --to {stop:g} is no stretch of what there is to show, 0 to {end:.4g} seconds"
            )
        return ((begin, min(stop, end)),)
    forward = float(np.median([np.median((v.end - v.start)[v.program.order.kind == F]) for v in views]))
    fill, drain = np.median([transients(view) for view in views], axis=0).tolist()
    half = places * forward / 2
    head, tail = max(fill * 1.1, half), min(ends) - max(drain * 1.1, half)
    if end <= 2 * half or head + end - tail >= WORTH * end:
        return ((0.0, end),)
    return ((0.0, head), (tail, end))


def transients(view: StepView) -> tuple[float, float]:
    """(until a backward has come through every stage, from the first stage's last forward on). [s]

    Between the two a step may be cut: all there is like what is next to it. A stream without flush does not drain.
    """
    order = view.program.order
    backwards, forwards = np.flatnonzero(order.kind != F), np.flatnonzero(order.kind == F)
    first, last = np.full(order.num_stages, np.inf), np.zeros(order.num_stages)
    np.minimum.at(first, order.stage[backwards], view.end[backwards])
    np.maximum.at(last, order.stage[forwards], view.end[forwards])
    return float(first.max()), 0.0 if view.streams else float(view.horizon - last.min())


def time_unit(seconds: float) -> tuple[float, str]:
    """(units in a second, its name) in which such a time has few digits."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
