"""An order as a text grid: one row a rank, one column an action."""

from __future__ import annotations

from collections.abc import Sequence

from sim.schedules.actions import Action


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
