"""Colours can be read: at least 4.5 to 1 of all that is written, on light, in the dark and on paper."""

import pytest

from sim.report.facts import GROUPS
from sim.report.figures import LOOKS, ink, luminance
from sim.report.html.page import DIM, MEMORY, THEMES
from tests.rows import rows


def contrast(one, other):
    """How well one colour is read on another, 1 (not at all) to 21 (black on white): WCAG 2.2's ratio."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(over, under, share):
    """What is seen of a colour that is so opaque over another."""
    pairs = [(int(over[at : at + 2], 16), int(under[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * top + (1 - share) * below):02x}" for top, below in pairs)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the example of many a guide: just too pale
    assert luminance("#ffffff") == pytest.approx(1.0)
    assert mixed("#000000", "#ffffff", 0.5) == "#808080"


@rows("theme", THEMES)
@rows("what", ["ink", "wrong", "accent"])
def test_what_is_written_can_be_read(theme, what):
    colours = THEMES[theme]
    assert contrast(colours[what], colours["paper"]) >= 4.5
    # Code and bars lie on a veil of grey over the paper.
    assert contrast(colours[what], mixed("#808080", colours["paper"], 0.13)) >= 4.5
    assert contrast(mixed(colours["ink"], colours["paper"], DIM), colours["paper"]) >= 4.5


@rows("colour", sorted({*(kind.colour for kind in (*GROUPS.values(), *LOOKS.values())), *MEMORY.values()}))
def test_numbers_in_bars_can_be_read(colour):
    assert contrast(ink(colour), colour) >= 4.5
