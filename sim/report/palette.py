"""Names, letters and colours of what ranks do, the same in every drawing.

The colours are Okabe and Ito's, which colour-blind readers tell apart; brown reductions are unlike a pale forward.
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
    "reduce": Look("gradient reduction", "r", "#8C564B"),
    "tied": Look("tied embedding's reduction", "t", "#C49C94"),
    "update": Look("update", "u", "#3B3B3B"),
    "gather": Look("weight gather", "g", "#CC79A7"),
    "setup": Look("host, once a step", "h", "#999999"),
    "idle": Look("idle", "·", "#EFEFEF"),
}
"""Kinds of actions, a send that keeps its rank, what follows a rank's last action, and nothing."""
GROUP_COLOURS = {
    "useful": "#009E73",
    "kernels": "#E69F00",
    "recompute": "#CC79A7",
    "network": "#0072B2",
    "waiting": "#8C8C8C",
    "optimizer": "#D55E00",
    "offload": "#882255",
}
"""Colours of groups of causes (`sim.report.facts.GROUPS`)."""
MEMORY_COLOURS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "activations": "#E69F00",
    "logits": "#CC79A7",
    "other": "#8C8C8C",
}
"""Colours of what memory holds (`sim.report.facts.MEMORY`)."""
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1b1f24", "wrong": "#a83c00", "accent": "#005a9c"},
    "dark": {"paper": "#15181c", "ink": "#e4e7eb", "wrong": "#ff9a62", "accent": "#7cc4ff"},
    "print": {"paper": "#ffffff", "ink": "#000000", "wrong": "#000000", "accent": "#000000"},
}
"""Colours of a page: background, text, warnings, and controls or what has the focus."""
DIM = 0.68
"""How opaque text is that matters less."""
PALEST = 0.62
"""How much white the palest shade of a colour holds."""


Colour = str | tuple[float, float, float]
"""A colour as `#rrggbb`, or as red, green and blue from 0 to 1."""


def _rgb(colour: Colour) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] if isinstance(colour, str) else colour)


def shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour, paler by a share of 0 (itself) to 1 (the palest). Red, green and blue from 0 to 1."""
    base = _rgb(colour)
    red, green, blue = (base + (1 - base) * PALEST * share).tolist()
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Relative luminance of a colour, 0 (black) to 1 (white): WCAG 2.2's definition."""
    shares = _rgb(colour)
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: Colour, other: Colour) -> float:
    """How well one colour is read on another, 1 (not at all) to 21 (black on white): WCAG 2.2's ratio."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def ink(colour: Colour) -> str:
    """Black or white, whichever has the better contrast on this colour."""
    return max(("#000000", "#ffffff"), key=lambda each: contrast(each, colour))
