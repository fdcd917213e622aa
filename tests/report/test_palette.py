"""Numbers in bars can be read: at least 4.5 to 1 on every colour that bars have."""

import pytest

from sim.report.facts import GROUPS
from sim.report.figures import LOOKS, ink, luminance
from tests.rows import rows


def contrast(one, other):
    """How well one colour is read on another, 1 (not at all) to 21 (black on white): WCAG 2.2's ratio."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the example of many a guide: just too pale


@rows("colour", sorted({kind.colour for kind in (*GROUPS.values(), *LOOKS.values())}))
def test_numbers_in_bars_can_be_read(colour):
    assert contrast(ink(colour), colour) >= 4.5
