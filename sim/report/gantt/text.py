"""A Gantt chart in a terminal: a row a rank, a column a slot of time, a letter for what most of the slot is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill

import numpy as np
from rich.text import Text

from sim.arrays import Array
from sim.report.gantt.chart import step_chart, window_of
from sim.report.gantt.step_view import Bars, StepView
from sim.report.gantt.window import Window
from sim.report.palette import LOOKS, ink, shade
from sim.units import show, show_time

MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
LEAST = 0.5
"""Of a slot, what must be busy for it not to be shown as idle."""
BREAK, IDLE = "⋮", LOOKS["idle"].letter
BLOCKS = "▁▂▃▄▅▆▇█"


def gantt_text(view: StepView, width: int, between: tuple[float | None, float | None] = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, time axis, memory in flight, legend.

    Parameters
    ----------
    width : int
        Columns of the terminal.
    between : (from, to)
        A stretch of the step. [s]
    """
    answer, ranks = view.answer, view.program.order.num_ranks
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    window = window_of([view], 2.0 * columns, between)
    slots = _slots(window, columns)
    text = Text(f"{view.scenario.plan.schedule}: {view.period} {show_time(answer.step_time_s)}, ", style="bold")
    text.append(f"bubble {answer.bubble_fraction:.1%}", style="bold")
    text.append(f"  {view.scenario.model.name}, {answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    styles = {look.letter: f"{ink(shade(look.colour, 0))} on {look.colour}" for look in LOOKS.values()} | {IDLE: "dim"}
    seen: set[str] = set()
    bars = _occupying(view, window)
    for rank in _rows(ranks):
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in _letters(bars, rank, slots):
            seen.add(letter)
            text.append(letter, style=styles.get(letter, ""))
        text.append(f" {np.clip(1 - view.share[rank], 0, 1):6.1%}\n", style="dim")
    text.append(_axis(window, slots, label, view.horizon))
    kept = view.kept()
    peaks = [float(held.max(initial=0.0)) for _, held in kept]
    text.append("activations kept\n", style="dim")
    for rank in sorted({0, (ranks - 1) // 2, ranks - 1, int(np.argmax(peaks))}):
        text.append(f"{f'rank {rank}':<{label}}{_memory(*kept[rank], slots, max(peaks))} {show(peaks[rank], 'B')}\n")
    if len(_rows(ranks)) < ranks:
        text.append(f"{len(_rows(ranks))} of {ranks} ranks are shown; --png draws them all\n", style="dim")
    for _, _, seconds in window.breaks:
        text.append(f"{BREAK} {show_time(seconds)} left out, of the same\n", style="dim")
    if view.streams:
        text.append("no flush: the first two batches, later ones follow in the same rhythm\n", style="dim")
    names = ", ".join(f"{look.letter} {look.name}" for look in LOOKS.values() if look.letter in seen)
    key = f"each column is what most of it is: {names}"
    text.append(fill(key, width), style="dim")
    return text


def _rows(ranks: int) -> list[int]:
    """Ranks that get a row."""
    if ranks <= MOST_ROWS:
        return list(range(ranks))
    return sorted({round(at) for at in np.linspace(0, ranks - 1, MOST_ROWS).tolist()})


def _slots(window: Window, columns: int) -> Array:
    """(begin, end) of every column; a break is a column of no length. [s]"""
    room = columns - len(window.breaks)
    share = [max(1, round(room * (end - begin) / window.shown)) for begin, end in window.spans]
    share[-1] = max(1, room - sum(share[:-1]))
    parts = []
    for number, ((begin, end), count) in enumerate(zip(window.spans, share, strict=True)):
        edges = np.linspace(begin, end, count + 1)
        if number:
            parts.append(np.array([[begin, begin]]))
        parts.append(np.stack([edges[:-1], edges[1:]], axis=1))
    return np.concatenate(parts)


def _occupying(view: StepView, window: Window) -> list[Bars]:
    """What occupies ranks: actions until their send no longer keeps the rank, and what follows the pipeline."""
    bars = [each for each in step_chart(view, window).bars if each.what not in ("idle", "send") and not each.overlapped]
    return [
        each if each.action is None else replace(each, begin=view.start[each.action], end=view.end[each.action])
        for each in bars
    ]


def _letters(bars: Sequence[Bars], rank: int, slots: Array) -> list[str]:
    """What most of each slot is; idle where more than half of it is."""
    letters, shares = [], []
    for each in bars:
        here = each.rank == rank
        if here.any():
            letters.append(LOOKS[each.what].letter)
            shares.append(_covered(each.begin[here], each.end[here], slots))
    table = np.array(shares)
    best = table.argmax(axis=0)
    length = slots[:, 1] - slots[:, 0]
    busy = table.sum(axis=0) >= LEAST * length
    return [
        BREAK if length[at] == 0 else letters[best[at]] if busy[at] and table[best[at], at] > 0 else IDLE
        for at in range(len(slots))
    ]


def _covered(start: Array, end: Array, slots: Array) -> Array:
    """Seconds of each slot that these spans, sorted and apart, cover. [s]"""
    times = np.stack([start, end], axis=1).ravel()
    done = np.cumsum(end - start)
    covered = np.stack([np.concatenate([[0.0], done[:-1]]), done], axis=1).ravel()
    at_begin, at_end = (np.interp(slots[:, side], times, covered) for side in (0, 1))
    return np.asarray(at_end - at_begin)


def _axis(window: Window, slots: Array, label: int, end: float) -> str:
    """Moments below the columns they stand at."""
    line = [" "] * (len(slots) + 10)
    ticks, unit = window.ticks(max(3, len(slots) // 14), end)
    free = 0
    for tick in ticks:
        inside = np.flatnonzero((slots[:, 0] <= tick.moment + 1e-12) & (slots[:, 1] > tick.moment))
        text = f"|{tick.label}"
        if len(inside) and inside[0] >= free and inside[0] + len(text) <= len(line):
            line[inside[0] : inside[0] + len(text)] = text
            free = int(inside[0]) + len(text) + 1
    return " " * label + "".join(line).rstrip() + f" {unit}\n"


def _memory(times: Array, held: Array, slots: Array, top: float) -> str:
    """A block a column, as high as what is kept at the end of the slot."""
    place = np.searchsorted(times, slots[:, 1], side="left") - 1
    level = np.where(place >= 0, held[np.maximum(place, 0)], 0.0) / (top or 1.0)
    return "".join(
        BREAK if begin == end else BLOCKS[min(7, int(share * 7.999))] if share > 1e-9 else " "
        for (begin, end), share in zip(slots.tolist(), level.tolist(), strict=True)
    )
