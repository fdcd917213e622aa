"""An order as a text grid: one row a rank, one column an action."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sim.errors import ScheduleError
from sim.schedules.actions import Action, parse_action

_LABEL = re.compile(r"^\s*(?:rank\s+)?\d+\s*[|:]")
MOST_TEXT = 50_000_000
"""Characters of a grid that are read."""


def format_grid(actions: Sequence[Sequence[Action]], mark: tuple[int, int] | None = None, first: int = 0) -> str:
    """Rows of actions such as `2F0` (stage, kind, micro-batch), aligned in columns.

    Parameters
    ----------
    actions : one sequence a rank
    mark : (rank, position), optional
        Put an arrow before this action.
    first : int
        Position of the first column, for a window into a longer order.
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

    Raises
    ------
    ScheduleError
        Something that is not an action, with its line; or no action at all.
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
    """The rows of a grid in a text file.

    Raises
    ------
    ScheduleError
        The file cannot be read, or does not hold a grid.
    """
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
