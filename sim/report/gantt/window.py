"""The part of a time axis that is shown: everything, a stretch of it, or its beginning and end with a break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.arrays import Array
from sim.errors import SpecError

GAP = 0.025
"""Width of a break, of the axis."""
WORTH = 0.8
"""A break that leaves out less than one minus this of a step is not made."""


class Tick(NamedTuple):
    """A moment on the axis, where it stands there, and its label. [s]"""

    place: float
    moment: float
    label: str


@dataclass(frozen=True, slots=True)
class Window:
    """Stretches of time side by side. [s]

    spans : (begin, end) of each.
    """

    spans: tuple[tuple[float, float], ...]

    @property
    def shown(self) -> float:
        """Seconds that are drawn. [s]"""
        return sum(end - begin for begin, end in self.spans)

    @property
    def gap(self) -> float:
        """Width of a break on the axis. [s]"""
        return GAP * self.shown

    @property
    def width(self) -> float:
        """Of the axis, breaks included. [s]"""
        return self.shown + self.gap * (len(self.spans) - 1)

    @property
    def breaks(self) -> list[tuple[float, float, float]]:
        """(where on the axis it begins, where it ends, seconds left out) of each break. [s]"""
        found = []
        for (_, end), (begin, _) in zip(self.spans, self.spans[1:], strict=False):
            at = self.place(end)
            found.append((float(at), float(at) + self.gap, begin - end))
        return found

    def place(self, time: Array | float) -> Array:
        """Where moments stand on the axis, from 0; those left out, at the middle of their break. [s]"""
        moments = np.asarray(time, dtype=float)
        xs: list[float] = []
        ys: list[float] = []
        at = 0.0
        for begin, end in self.spans:
            xs += [begin, end]
            ys += [at, at + end - begin]
            at = ys[-1] + self.gap
        return np.asarray(np.interp(moments, xs, ys))

    def pieces(self, start: Array, end: Array) -> tuple[Array, Array, Array]:
        """(index, begin, end on the axis) of the parts of spans from `start` to `end` that are shown. [s]"""
        index, begins, ends = [], [], []
        for begin, stop in self.spans:
            here = np.flatnonzero((end > begin) & (start < stop))
            index.append(here)
            begins.append(self.place(np.maximum(start[here], begin)))
            ends.append(self.place(np.minimum(end[here], stop)))
        return np.concatenate(index), np.concatenate(begins), np.concatenate(ends)

    def ticks(self, about: int, end: float, clear: float = 0.0) -> tuple[list[Tick], str]:
        """(about so many round moments, the unit of their labels), in that of a time `end`.

        clear : around breaks, where the axis is torn, what is kept free of ticks. [s]
        """
        factor, unit = time_unit(end)
        step = round_step(self.shown / max(about, 1))
        found = []
        for begin, stop in self.spans:
            numbers = np.arange(int(np.ceil(begin / step - 1e-9)), int(np.floor(stop / step + 1e-9)) + 1)
            found += [Tick(float(self.place(at)), at, f"{at * factor + 0.0:.6g}") for at in (numbers * step).tolist()]
        torn = [(begin - clear, stop + clear) for begin, stop, _ in self.breaks] if clear else []
        return [each for each in found if not any(low <= each.place <= high for low, high in torn)], unit


def time_unit(seconds: float) -> tuple[float, str]:
    """(units in a second, its name) in which such a time has few digits."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def played_window(start: Array, end: Array, folded: bool) -> Window:
    """All that was played; where repetitions were left out, without the stretch in which nothing was. [s]"""
    last = float(end.max())
    if not folded:
        return Window(((0.0, last),))
    order = np.argsort(start, kind="stable")
    done = np.maximum.accumulate(end[order])
    gaps = start[order][1:] - done[:-1]
    widest = int(np.argmax(gaps)) if len(gaps) else 0
    if not len(gaps) or gaps[widest] <= 0.02 * last:
        return Window(((0.0, last),))
    return Window(((0.0, float(done[widest])), (float(start[order][widest + 1]), last)))


def round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, at least `about`."""
    power = 10.0 ** np.floor(np.log10(max(about, 1e-300)))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about * (1 - 1e-9)))


def choose_window(
    end: float,
    action_s: float,
    fill_s: float,
    drain_s: float,
    places: float,
    *,
    between: tuple[float | None, float | None] = (None, None),
    first_end: float | None = None,
) -> Window:
    """The whole step where an action is wide enough to be seen, else its beginning and end.

    Parameters
    ----------
    end : float
        Of what there is to show. [s]
    action_s : float
        How long a typical action takes. [s]
    fill_s, drain_s : float
        From the beginning until every rank is in its steady state, and from its end to the end of the step: shown in
        any case. [s]
    places : float
        How many actions of that length fit side by side.
    between : (from, to)
        A stretch that was asked for. [s]
    first_end : float, optional
        Of several steps on one axis, the end of the shortest: what comes after it is shown. [s]

    Raises
    ------
    SpecError
        An empty stretch, or one that lies outside.
    """
    low, high = between
    if low is not None or high is not None:
        begin, stop = 0.0 if low is None else low, end if high is None else high
        if not 0.0 <= begin < end or not stop > begin:
            raise SpecError(
                f"--from {begin:g} --to {stop:g} is no stretch of what there is to show, 0 to {end:.4g} seconds"
            )
        return Window(((begin, min(stop, end)),))
    if end / action_s <= places:
        return Window(((0.0, end),))
    head = max(fill_s * 1.1, places * action_s / 2)
    tail = (end if first_end is None else first_end) - max(drain_s * 1.1, places * action_s / 2)
    if head + end - tail >= WORTH * end:
        return Window(((0.0, end),))
    return Window(((0.0, head), (tail, end)))
