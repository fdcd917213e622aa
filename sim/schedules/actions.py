"""An action: a kind of work, on a virtual stage, of a micro-batch; written `2F0` as in PyTorch.

A rank's actions are a *row*: an integer array of shape (n, 3) with columns stage, kind (an index into `KINDS`) and
micro-batch. Rows are made of runs of micro-batches, merged in turns, without a loop over actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.errors import ScheduleError

Row = np.ndarray


class Kind(StrEnum):
    """F forward, B whole backward, I its input-gradient half, W its weight-gradient half, U weight update.

    Only asynchronous schedules name their updates; in all others the update follows the whole step.
    """

    F = "F"
    B = "B"
    I = "I"  # noqa: E741
    W = "W"
    U = "U"


class Action(NamedTuple):
    """One thing a rank does."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


KINDS = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.U)
F, B, I, W, U = range(5)  # noqa: E741
PAIRED = 8
"""Added to the kind of an action that begins together with the next one: both wait for what either needs, and what both
give is there when both are done."""
_CODE = {kind: code for code, kind in enumerate(KINDS)}
_TEXT = re.compile(r"(\d+)([FBIWU])(\d+)")
MOST_DIGITS = 9


def parse_action(text: str) -> Action:
    """The action written as `2F0`: stage 2, forward, micro-batch 0."""
    match = _TEXT.fullmatch(text.strip())
    if not match or max(len(match[1]), len(match[3])) > MOST_DIGITS:
        raise ScheduleError(
            f"{text!r} is not an action; write stage, kind (F, B, I, W or U) and micro-batch, such as 2F0"
        )
    return Action(int(match[1]), Kind(match[2]), int(match[3]))


def run(kind: int, stage: int | np.ndarray, microbatches: range | np.ndarray | Iterable[int]) -> Row:
    """A row of one kind of work on micro-batches one after another; the stage may differ from one to the next."""
    numbers = np.asarray(microbatches if isinstance(microbatches, np.ndarray | range) else list(microbatches))
    row = np.empty((len(numbers), 3), dtype=np.int64)
    row[:, 0], row[:, 1], row[:, 2] = stage, kind, numbers
    return row


def in_turns(*parts: tuple[Row, int | np.ndarray]) -> Row:
    """Rows merged turn by turn: of each (row, turn), the first action happens in that turn, the next in the next.

    An array instead of the first turn gives the turn of each.

    Within a turn they come in the order given: `in_turns((forwards, -3), (backwards, 0))` is three forwards, then
    forward and backward alternately as long as there are both, then what is left.
    """
    rows = np.concatenate([row for row, _ in parts])
    turns = np.concatenate(
        [turn if isinstance(turn, np.ndarray) else turn + np.arange(len(row)) for row, turn in parts]
    )
    return np.asarray(rows[np.argsort(turns, kind="stable")])


def numbered(steps: Sequence[tuple[int, int]], num_microbatches: int) -> Row:
    """A row from (stage, kind) alone: each kind of work takes a stage's micro-batches in turn.

    A whole backward counts as both of its halves. Steps beyond the last micro-batch are dropped.
    """
    stage, kind = np.array(steps, dtype=np.int64).reshape(-1, 2).T
    plain = kind & ~PAIRED
    # A whole backward takes its turn among the input gradients, and counts among the weight gradients.
    turn = _times_before(3 * stage + np.where(plain == F, 0, np.where(plain == W, 2, 1)))
    halves = np.flatnonzero((plain == W) | (plain == B))
    weights = halves[plain[halves] == W]
    turn[weights] = _times_before(stage[halves])[plain[halves] == W]
    row = np.stack([stage, kind, turn], axis=1)
    return np.asarray(row[turn < num_microbatches])


def _times_before(keys: np.ndarray) -> np.ndarray:
    """How often every key occurs before its own place."""
    order = np.argsort(keys, kind="stable")
    begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
    count = np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))
    found = np.empty_like(count)
    found[order] = count
    return found


def as_row(actions: Row | Iterable[Action]) -> Row:
    """The row of a sequence of actions, which may be a row already."""
    if isinstance(actions, np.ndarray):
        return actions
    return np.array([(stage, _CODE[Kind(kind)], number) for stage, kind, number in actions], dtype=np.int64).reshape(
        -1, 3
    )


def as_actions(row: Row) -> tuple[Action, ...]:
    """The actions of a row."""
    return tuple(Action(stage, KINDS[kind & ~PAIRED], number) for stage, kind, number in row.tolist())


_LABEL = re.compile(r"^\s*(?:rank\s+)?\d+\s*[|:]")
MOST_TEXT = 50_000_000
"""Characters of a grid that are read."""


def format_grid(actions: Sequence[Sequence[Action]], mark: tuple[int, int] | None = None, first: int = 0) -> str:
    """Rows of actions such as `2F0` (stage, kind, micro-batch), aligned in columns.

    mark : put an arrow before this action.
    first : position of the first column, for a window into a longer order.
    """
    cells = [[str(action) for action in row] for row in actions]
    if mark is not None:
        cells[mark[0]][mark[1]] = f"→{cells[mark[0]][mark[1]]}"
    width = max((len(cell) for row in cells for cell in row), default=0)
    lead = "" if first == 0 else f"… from position {first}\n"
    label = len(str(len(cells) - 1))
    return lead + "\n".join(
        f"rank {rank:>{label}} | " + " ".join(f"{cell:>{width}}" for cell in row) for rank, row in enumerate(cells)
    )


def parse_grid(text: str) -> list[list[Action]]:
    """The rows of a grid: a line a rank, actions apart by blanks or commas, `rank 0 |` before them if you like.

    Blank lines, lines that begin with # and idle slots (`.`) are skipped.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = _LABEL.sub("", line).replace(",", " ").split()
        if not cells or line.lstrip().startswith("#"):
            continue
        try:
            rows.append([parse_action(cell) for cell in cells if cell.strip(".")])
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    if not any(rows):
        raise ScheduleError("the grid holds no action; write a line a rank, such as: 0F0 0F1 0B0 0B1")
    return rows


def read_grid(path: str | Path) -> list[list[Action]]:
    """The rows of a grid in a text file."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MOST_TEXT + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ScheduleError(f"schedule {str(path)!r} cannot be read: {error}") from None
    if len(text) > MOST_TEXT:
        raise ScheduleError(f"schedule {str(path)!r} is longer than {MOST_TEXT:,} characters")
    try:
        return parse_grid(text)
    except ScheduleError as error:
        raise ScheduleError(f"schedule {str(path)!r}: {error}") from None
