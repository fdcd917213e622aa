"""Words beside the points of a figure, where they hide neither each other nor another point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BESIDE = (
    (0, 5, "center", "bottom"), (0, -5, "center", "top"), (5, 0, "left", "center"), (-5, 0, "right", "center"),
    (4, 4, "left", "bottom"), (-4, -4, "right", "top"), (4, -4, "left", "top"), (-4, 4, "right", "bottom"),
)  # fmt: skip
"""Where a word may stand, best first: points to the right and up, and how it is aligned."""


def place_labels(
    panel: Any,
    labels: Sequence[tuple[float, float, str]],
    colours: Sequence[Any] = (),
    size: float = 7.5,
    **options: Any,
) -> None:
    """Write each label beside its point; one for which there is no room is left out.

    Parameters
    ----------
    panel : matplotlib Axes
        With its limits and scales set.
    labels : sequence of (x, y, words)
        The first have the first choice.
    colours : sequence, optional
        Of each label; black without.
    size : float
        Of the letters. [points]
    **options
        Of `annotate`.
    """
    panel.figure.draw_without_rendering()  # only then is known where anything stands
    own = np.array([label[:2] for label in labels], dtype=float).reshape(-1, 2)
    there = panel.transData.transform(own)
    taken: list[Any] = []
    frame = panel.get_window_extent()
    for number, (x, y, words) in enumerate(labels):
        colour = colours[number] if len(colours) else "black"
        for right, up, horizontal, vertical in BESIDE:
            text = panel.annotate(words, (x, y), xytext=(right, up), textcoords="offset points", ha=horizontal,
                                  va=vertical, fontsize=size, color=colour, **options)  # fmt: skip
            box = text.get_window_extent().padded(1)
            free = not box.count_contains(there) and not box.count_overlaps(taken)
            if free and frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1:
                taken.append(box)
                break
            text.remove()
