"""Names, letters and colours of what ranks do, the same in every drawing.

The colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Look(NamedTuple):
    """How one kind of work is named in a legend, written in a terminal, and coloured."""

    name: str
    letter: str
    colour: str


LOOKS = {
    "F": Look("forward", "F", "#0072B2"),
    "B": Look("backward", "B", "#E69F00"),
    "I": Look("input gradient", "I", "#D55E00"),
    "W": Look("weight gradient", "W", "#009E73"),
    "U": Look("update", "U", "#3B3B3B"),
    "send": Look("send", "", "#8C8C8C"),
    "reduce": Look("gradient reduction", "r", "#56B4E9"),
    "tied": Look("tied embedding's reduction", "t", "#8FD0F5"),
    "update": Look("update", "u", "#3B3B3B"),
    "gather": Look("weight gather", "g", "#CC79A7"),
    "setup": Look("host, once a step", "h", "#999999"),
    "idle": Look("idle", "·", "#EFEFEF"),
}
"""Kinds of actions, a send that keeps its rank, what follows a rank's last action, and nothing."""
PALEST = 0.62
"""How much white the palest shade of a colour holds."""


def shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour, paler by a share of 0 (itself) to 1 (the palest). Red, green and blue from 0 to 1."""
    base = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    red, green, blue = (base + (1 - base) * PALEST * share).tolist()
    return red, green, blue


def ink(colour: tuple[float, float, float]) -> str:
    """Black or white, whichever is read better on this colour."""
    red, green, blue = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else "black"
