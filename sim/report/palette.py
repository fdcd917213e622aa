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
GROUP_COLOURS = {
    "useful": "#009E73",
    "kernels": "#E69F00",
    "recompute": "#CC79A7",
    "network": "#0072B2",
    "waiting": "#8C8C8C",
    "optimizer": "#D55E00",
    "offload": "#882255",
}
"""Of groups of causes (`sim.report.facts.GROUPS`)."""
MEMORY_COLOURS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "activations": "#E69F00",
    "logits": "#CC79A7",
    "other": "#8C8C8C",
}
"""Of what memory holds (`sim.report.facts.MEMORY`)."""
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1b1f24", "wrong": "#a83c00", "accent": "#005a9c"},
    "dark": {"paper": "#15181c", "ink": "#e4e7eb", "wrong": "#ff9a62", "accent": "#7cc4ff"},
    "print": {"paper": "#ffffff", "ink": "#000000", "wrong": "#000000", "accent": "#000000"},
}
"""Of a page: what it lies on, what is written, what is wrong, what can be moved and has the focus."""
DIM = 0.68
"""How opaque text is that matters less."""
PALEST = 0.62
"""How much white the palest shade of a colour holds."""


def shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour, paler by a share of 0 (itself) to 1 (the palest). Red, green and blue from 0 to 1."""
    base = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    red, green, blue = (base + (1 - base) * PALEST * share).tolist()
    return red, green, blue


def luminance(colour: str) -> float:
    """Relative luminance of a colour, 0 (black) to 1 (white): WCAG 2.2's definition."""
    shares = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    """How well one colour is read on another, 1 (not at all) to 21 (black on white): WCAG 2.2's ratio."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(over: str, under: str, share: float) -> str:
    """What is seen of a colour that is so opaque over another."""
    pairs = ((int(over[at : at + 2], 16), int(under[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * top + (1 - share) * below):02x}" for top, below in pairs)


def ink_on(colour: str) -> str:
    """Black or white, whichever has the better contrast."""
    return max(("#000000", "#ffffff"), key=lambda each: contrast(each, colour))


def ink(colour: tuple[float, float, float]) -> str:
    """Black or white, whichever is read better on this colour."""
    red, green, blue = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else "black"
