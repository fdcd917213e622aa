"""Colours of kinds of work, the same in every drawing: Okabe and Ito's, which colour-blind readers tell apart."""

from __future__ import annotations

import numpy as np

from sim.schedules.actions import B, F, I, U, W

KIND_NAMES = {F: "forward", B: "backward", I: "input gradient", W: "weight gradient", U: "update"}
KIND_COLOURS = {F: "#0072B2", B: "#E69F00", I: "#D55E00", W: "#009E73", U: "#3B3B3B"}
AFTER_COLOURS = {
    "reduce": "#56B4E9",
    "tied": "#8FD0F5",
    "update": "#3B3B3B",
    "gather": "#CC79A7",
    "setup": "#999999",
}
SEND_COLOUR = "#8C8C8C"
IDLE_COLOUR = "#EFEFEF"
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
