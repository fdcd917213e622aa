"""A Gantt chart in a terminal: a row a rank, a column a moment, a letter for what the rank does then."""

from __future__ import annotations

from textwrap import fill

import numpy as np
from rich.text import Text

from sim.engines.tasks import ONCE
from sim.report.figures import LOOKS, ink
from sim.report.gantt.chart import StepView, actions_by_kind, stretch
from sim.units import show_time

MOST_ROWS = 24
"""Ranks that are shown; of more, as many evenly apart."""
IDLE = LOOKS["idle"].letter


def gantt_text(view: StepView, width: int, between: tuple[float | None, float | None] = (None, None)) -> Text:
    """Title, lanes with the idle share at the right, the moments at both ends, and what the letters are.

    width : Columns of the terminal.
    between : A stretch of the step; all of it if not given. [s]
    """
    ranks, (begin, end) = view.program.order.num_ranks, stretch(view.horizon, between)
    label = len(f"rank {ranks - 1} ")
    columns = max(16, width - label - 8)
    moments = begin + (np.arange(columns) + 0.5) * (end - begin) / columns
    text = Text(f"{view.scenario.plan.schedule}: {view.words}", style="bold")
    text.append(f"  {view.scenario.model.name}, {view.answer.num_microbatches:,} micro-batches\n", style="dim")
    text.append(f"{'idle':>{label + columns + 8}}\n", style="dim")
    styles = {look.letter: f"{ink(look.colour)} on {look.colour}" for look in LOOKS.values()} | {IDLE: "dim"}
    rows = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_ROWS)).round().astype(int)).tolist()
    # What occupies ranks: actions until their send no longer keeps the rank, and what follows the pipeline.
    bars, seen = [*actions_by_kind(view.program.order, view.start, view.end), *view.on(ONCE)], set[str]()
    for rank in rows:
        letters = np.full(columns, IDLE)
        for each in bars:
            here = np.flatnonzero(each.rank == rank)
            if len(here):
                at = here[np.maximum(np.searchsorted(each.begin[here], moments, side="right") - 1, 0)]
                letters[(each.begin[at] <= moments) & (moments < each.end[at])] = LOOKS[each.what].letter
        seen |= set(letters.tolist())
        text.append(f"{f'rank {rank}':<{label}}")
        for letter in letters.tolist():
            text.append(letter, style=styles[letter])
        text.append(f" {np.clip(1 - view.share[rank], 0, 1):6.1%}\n", style="dim")
    first, last = show_time(begin) if begin else "0", show_time(end)
    text.append(f"{'':{label}}{first}{last:>{columns - len(first)}}\n")
    notes = [f"{len(rows)} of {ranks} ranks are shown; --png draws them all"] if len(rows) < ranks else []
    if (end - begin) / columns > float(np.median(view.end - view.start)):
        notes.append("actions are shorter than a column; --from and --to show less time, and so each of them")
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
    names = ", ".join(f"{look.letter} {look.name}" for look in LOOKS.values() if look.letter in seen)
    notes.append(fill(f"each column is what runs at its middle: {names}", width))
    return text.append("\n".join(notes), style="dim")
