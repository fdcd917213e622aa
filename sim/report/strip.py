"""A Gantt chart in a terminal: a row a rank, a column a slot of time, a letter for what most of the slot is."""

from __future__ import annotations

from textwrap import fill

import numpy as np
from rich.text import Text

from sim.report.figures import transients, typical_forward
from sim.report.palette import AFTER_COLOURS, KIND_COLOURS, KIND_NAMES, ink, shade
from sim.report.scene import AFTER, Scene
from sim.report.window import Window, choose_window
from sim.schedules.actions import KINDS
from sim.units import show, show_time

Array = np.ndarray
MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
LEAST = 0.5
"""Of a slot, what must be busy for it not to be shown as idle."""
IDLE = "·"
LETTERS = {"reduce": "r", "tied": "t", "update": "u", "gather": "g", "setup": "h"}
BLOCKS = "▁▂▃▄▅▆▇█"


def strip_view(scene: Scene, width: int, between: tuple[float | None, float | None] = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, time axis, memory in flight, legend.

    Parameters
    ----------
    width : int
        Columns of the terminal.
    between : (from, to)
        A stretch of the step. [s]
    """
    answer, ranks = scene.answer, scene.program.order.num_ranks
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    window = choose_window(
        scene.horizon, typical_forward(scene), *transients(scene), places=2.0 * columns, between=between
    )
    slots = _slots(window, columns)
    what = "a batch every" if scene.streams else "step"
    text = Text(f"{scene.scenario.plan.schedule}: {what} {show_time(answer.step_time_s)}, ", style="bold")
    text.append(f"bubble {answer.bubble_fraction:.1%}", style="bold")
    text.append(f"  {scene.scenario.model.name}, {answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    looks = _looks()
    seen: set[str] = set()
    for rank in _rows(ranks):
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in _letters(scene, rank, slots):
            seen.add(letter)
            text.append(letter, style=looks.get(letter, ""))
        text.append(f" {np.clip(1 - scene.share[rank], 0, 1):6.1%}\n", style="dim")
    text.append(_axis(window, slots, label, scene.horizon))
    kept = scene.kept()
    peaks = [float(held.max(initial=0.0)) for _, held in kept]
    text.append("activations kept\n", style="dim")
    for rank in sorted({0, (ranks - 1) // 2, ranks - 1, int(np.argmax(peaks))}):
        text.append(f"{f'rank {rank}':<{label}}{_memory(*kept[rank], slots, max(peaks))} {show(peaks[rank], 'B')}\n")
    if len(_rows(ranks)) < ranks:
        text.append(f"{len(_rows(ranks))} of {ranks} ranks are shown; --png draws them all\n", style="dim")
    for _, _, seconds in window.breaks:
        text.append(f"⋮ {show_time(seconds)} left out, of the same\n", style="dim")
    if scene.streams:
        text.append("no flush: the first two batches, later ones follow in the same rhythm\n", style="dim")
    names = {str(KINDS[code]): name for code, name in KIND_NAMES.items()}
    names |= {LETTERS[what]: name for what, name in AFTER.items()} | {IDLE: "idle"}
    key = "each column is what most of it is: " + ", ".join(
        f"{letter} {name}" for letter, name in names.items() if letter in seen
    )
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


def _letters(scene: Scene, rank: int, slots: Array) -> list[str]:
    """What most of each slot is; idle where more than half of it is."""
    order = scene.program.order
    here = order.of_rank(rank)
    kind, start, end = order.kind[here], scene.start[here], scene.end[here]
    names, shares = [], []
    for code, name in enumerate(KINDS):
        if (kind == code).any():
            names.append(str(name))
            shares.append(_covered(start[kind == code], end[kind == code], slots))
    for what, letter in LETTERS.items():
        bars = [bar for bar in scene.after() if bar.rank == rank and bar.what == what]
        if bars:
            names.append(letter)
            shares.append(_covered(np.array([b.begin for b in bars]), np.array([b.end for b in bars]), slots))
    table = np.array(shares)
    best = table.argmax(axis=0)
    length = slots[:, 1] - slots[:, 0]
    busy = table.sum(axis=0) >= LEAST * length
    return [
        "⋮" if length[at] == 0 else names[best[at]] if busy[at] and table[best[at], at] > 0 else IDLE
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
    factor, unit = (1.0, "s") if end >= 1 else (1e3, "ms") if end >= 1e-3 else (1e6, "µs")
    free = 0
    for moment in window.ticks(max(3, len(slots) // 14))[1].tolist():
        inside = np.flatnonzero((slots[:, 0] <= moment + 1e-12) & (slots[:, 1] > moment))
        text = f"|{moment * factor:.6g}"
        if len(inside) and inside[0] >= free and inside[0] + len(text) <= len(line):
            line[inside[0] : inside[0] + len(text)] = text
            free = int(inside[0]) + len(text) + 1
    return " " * label + "".join(line).rstrip() + f" {unit}\n"


def _memory(times: Array, held: Array, slots: Array, top: float) -> str:
    """A block a column, as high as what is kept at the end of the slot."""
    place = np.searchsorted(times, slots[:, 1], side="left") - 1
    level = np.where(place >= 0, held[np.maximum(place, 0)], 0.0) / (top or 1.0)
    return "".join(
        "⋮" if begin == end else BLOCKS[min(7, int(share * 7.999))] if share > 1e-9 else " "
        for (begin, end), share in zip(slots.tolist(), level.tolist(), strict=True)
    )


def _looks() -> dict[str, str]:
    """Colours of letters."""
    colours = {str(KINDS[code]): colour for code, colour in KIND_COLOURS.items()}
    colours |= {LETTERS[what]: colour for what, colour in AFTER_COLOURS.items()}
    return {letter: f"{ink(shade(colour, 0))} on {colour}" for letter, colour in colours.items()} | {IDLE: "dim"}
