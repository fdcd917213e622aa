"""The geometry of a Gantt chart, whatever draws it: bars in the rows of ranks over a part of the time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Array
from sim.engines import Timeline
from sim.errors import SpecError
from sim.report.gantt.step_view import Bars, StepView
from sim.report.gantt.window import Window, choose_window, played_window
from sim.schedules.actions import KINDS, F

FAR = 1.4
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars of all ranks, kind by kind in the order in which they are drawn, and the part of time that is shown."""

    num_ranks: int
    window: Window
    bars: tuple[Bars, ...]

    def pieces(self, bars: Bars) -> tuple[Array, Array, Array]:
        """(which bar, begin, end on the axis) of the parts of bars that are shown. [s]"""
        return self.window.pieces(bars.begin, bars.end)


def step_chart(view: StepView, window: Window, shift: float = 0.0) -> Chart:
    """The chart of a step.

    Parameters
    ----------
    shift : float
        Time at which the drawing begins. [s]
    """
    order = view.program.order
    idle_from = np.zeros(order.num_ranks) if view.streams else view.begin
    stop = min(view.horizon - shift, window.spans[-1][1])
    idle_to = np.full(order.num_ranks, stop) if view.streams else idle_from + view.answer.step_time_s
    idle = Bars("idle", np.arange(order.num_ranks), idle_from, idle_to)
    actions = [
        replace(each, begin=np.minimum(each.begin - shift, stop), end=np.minimum(each.end - shift, stop))
        if view.streams
        else each
        for each in (*_actions(order.kind, order.rank, view.start, view.compute_end), *_sends(view))
    ]
    strips = (*view.at_visits(), *view.overlapped_reductions())
    return Chart(order.num_ranks, window, (idle, *actions, *view.after(), *strips))


def played_chart(timeline: Timeline) -> Chart:
    """What an engine played of a step; repetitions that it left out are not in it.

    Raises
    ------
    SpecError
        The engine gives totals only.
    """
    start, end, order = timeline.start, timeline.end, timeline.program.order
    if start is None or end is None:
        raise SpecError(f"engine {timeline.engine} gives totals, not a time for every action; use dag, des or shared")
    window = played_window(start, end, order.fold is not None)
    zero = np.zeros(order.num_ranks)
    idle = Bars("idle", np.arange(order.num_ranks), zero, zero + window.spans[-1][1])
    return Chart(order.num_ranks, window, (idle, *_actions(order.kind, order.rank, start, end)))


def _actions(kind: Array, rank: Array, begin: Array, end: Array) -> Iterator[Bars]:
    """Actions kind by kind."""
    for code, name in enumerate(KINDS):
        here = np.flatnonzero(kind == code)
        if len(here):
            yield Bars(str(name), rank[here], begin[here], end[here], here)


def _sends(view: StepView) -> Iterator[Bars]:
    """Sends that keep their rank."""
    here = np.flatnonzero(view.end > view.compute_end)
    if len(here):
        yield Bars("send", view.program.order.rank[here], view.compute_end[here], view.end[here])


def window_of(
    views: Sequence[StepView], places: float, between: tuple[float | None, float | None] = (None, None)
) -> Window:
    """What of the time axis is drawn.

    Parameters
    ----------
    places : float
        How many forwards side by side can still be told apart.
    between : (from, to)
        A stretch that was asked for. [s]
    """
    several = len(views) > 1
    ends = [view.answer.step_time_s if several and view.streams else view.horizon for view in views]
    if several:  # one schedule that is far slower than the others would make them small
        ends = [end for end in ends if end <= FAR * np.median(ends)]
    fill, drain = np.median([transients(view) for view in views], axis=0).tolist()
    typical = float(np.median([_typical_forward(view) for view in views]))
    first_end = min(ends) if several else None
    return choose_window(max(ends), typical, fill, drain, places, between=between, first_end=first_end)


def _typical_forward(view: StepView) -> float:
    """Median time of a forward.  [s]"""
    return float(np.median((view.end - view.start)[view.program.order.kind == F]))


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
