"""A Gantt chart in a terminal: a row a rank, a column a slot of time, a letter for what most of the slot is."""

from __future__ import annotations

from textwrap import fill

import numpy as np
from rich.text import Text

from sim.arrays import Array
from sim.engines.tasks import ONCE
from sim.report.figures import LOOKS, ink
from sim.report.gantt.chart import Bars, Spans, StepView, actions_by_kind, spans_of, time_unit
from sim.units import show, show_time

MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
LEAST = 0.5
"""Share of a slot that must be busy for it not to be shown as idle."""
BREAK, IDLE = "⋮", LOOKS["idle"].letter
BLOCKS = "▁▂▃▄▅▆▇█"


def gantt_text(view: StepView, width: int, between: tuple[float | None, float | None] = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, time axis, memory in flight, legend.

    width : Columns of the terminal.
    between : A stretch of the step. [s]
    """
    answer, ranks = view.answer, view.program.order.num_ranks
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    spans = spans_of([view], 2.0 * columns, between)
    slots = _slots(spans, columns)
    text = Text(f"{view.scenario.plan.schedule}: {view.period} {show_time(answer.step_time_s)}, ", style="bold")
    text.append(f"bubble {answer.bubble_fraction:.1%}", style="bold")
    text.append(f"  {view.scenario.model.name}, {answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    styles = {look.letter: f"{ink(look.colour)} on {look.colour}" for look in LOOKS.values()} | {IDLE: "dim"}
    # What occupies ranks: actions until their send no longer keeps the rank, and what follows the pipeline.
    bars = [*actions_by_kind(view.program.order, view.start, view.end), *view.on(ONCE)]
    rows = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_ROWS)).round().astype(int)).tolist()
    seen: set[str] = set()
    for rank in rows:
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in _letters(bars, rank, slots):
            seen.add(letter)
            text.append(letter, style=styles.get(letter, ""))
        text.append(f" {np.clip(1 - view.share[rank], 0, 1):6.1%}\n", style="dim")
    text.append(_axis(spans, slots, label, view.horizon))
    kept = view.kept()
    peaks = [float(amount.max(initial=0.0)) for _, amount in kept]
    text.append("activations kept\n", style="dim")
    for rank in sorted({0, (ranks - 1) // 2, ranks - 1, int(np.argmax(peaks))}):
        text.append(f"{f'rank {rank}':<{label}}{_memory(*kept[rank], slots, max(peaks))} {show(peaks[rank], 'B')}\n")
    notes = [f"{len(rows)} of {ranks} ranks are shown; --png draws them all"] if len(rows) < ranks else []
    if len(spans) > 1:
        notes.append(f"{BREAK} {show_time(spans[1][0] - spans[0][1])} left out, which repeats")
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
    names = ", ".join(f"{look.letter} {look.name}" for look in LOOKS.values() if look.letter in seen)
    notes.append(fill(f"each column is what most of it is: {names}", width))
    return text.append("\n".join(notes), style="dim")


def _slots(spans: Spans, columns: int) -> Array:
    """(begin, end) of every column; a break is a column of no length. [s]"""
    room, shown = columns - (len(spans) - 1), sum(end - begin for begin, end in spans)
    counts = [max(1, round(room * (end - begin) / shown)) for begin, end in spans]
    counts[-1] = max(1, room - sum(counts[:-1]))
    parts: list[Array] = []
    for (begin, end), count in zip(spans, counts, strict=True):
        edges = np.linspace(begin, end, count + 1)
        parts += [np.array([[begin, begin]])] * bool(parts)
        parts.append(np.stack([edges[:-1], edges[1:]], axis=1))
    return np.concatenate(parts)


def _letters(bars: list[Bars], rank: int, slots: Array) -> list[str]:
    """What most of each slot is; idle where more than half of it is."""
    mine = [(LOOKS[each.what].letter, each.rank == rank, each) for each in bars if rank in each.rank]
    shares = np.array([_covered(each.begin[here], each.end[here], slots) for _, here, each in mine])
    best, length = shares.argmax(axis=0), slots[:, 1] - slots[:, 0]
    busy = (shares.sum(axis=0) >= LEAST * length) & (shares.max(axis=0) > 0)
    letters = np.where(busy, np.array([letter for letter, _, _ in mine])[best], IDLE)
    return [str(letter) for letter in np.where(length == 0, BREAK, letters)]


def _covered(start: Array, end: Array, slots: Array) -> Array:
    """Seconds of each slot that these spans, sorted and apart, cover. [s]"""
    times, done = np.stack([start, end], axis=1).ravel(), np.cumsum(end - start)
    covered = np.stack([done - (end - start), done], axis=1).ravel()
    return np.asarray(np.interp(slots[:, 1], times, covered) - np.interp(slots[:, 0], times, covered))


def _axis(spans: Spans, slots: Array, label: int, end: float) -> str:
    """Moments below the columns they stand at, 1, 2 or 5 times a power of ten apart."""
    line, free = [" "] * (len(slots) + 10), 0
    factor, unit = time_unit(end)
    apart = sum(stop - begin for begin, stop in spans) / max(3, len(slots) // 14)
    power = 10.0 ** np.floor(np.log10(apart))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= apart * (1 - 1e-9))
    for begin, stop in spans:
        for number in range(int(np.ceil(begin / step - 1e-9)), int(np.floor(stop / step + 1e-9)) + 1):
            inside = np.flatnonzero((slots[:, 0] <= number * step + 1e-12) & (slots[:, 1] > number * step))
            text = f"|{number * step * factor + 0.0:.6g}"
            if len(inside) and inside[0] >= free and inside[0] + len(text) <= len(line):
                line[inside[0] : inside[0] + len(text)] = text
                free = int(inside[0]) + len(text) + 1
    return " " * label + "".join(line).rstrip() + f" {unit}\n"


def _memory(times: Array, kept: Array, slots: Array, top: float) -> str:
    """A block a column, as high as what is kept at the end of the slot."""
    place = np.searchsorted(times, slots[:, 1], side="left") - 1
    level = np.where(place >= 0, kept[np.maximum(place, 0)], 0.0) / (top or 1.0)
    return "".join(
        BREAK if begin == end else BLOCKS[min(7, int(share * 7.999))] if share > 1e-9 else " "
        for (begin, end), share in zip(slots.tolist(), level.tolist(), strict=True)
    )
