"""The part of the time axis that is shown, and where moments stand on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import SpecError
from sim.report.gantt.window import Window, choose_window, round_step

LONG = Window(((0.0, 10.0), (90.0, 100.0)))


def test_moments_of_a_broken_axis():
    gap = LONG.gap
    np.testing.assert_allclose(LONG.place(np.array([0.0, 10.0, 90.0, 100.0])), [0.0, 10.0, 10.0 + gap, 20.0 + gap])
    assert LONG.breaks == [(10.0, 10.0 + gap, 80.0)]
    assert LONG.width == pytest.approx(20.0 + gap)


def test_what_lies_in_the_break_is_not_drawn_and_what_crosses_it_is_cut():
    start, end = np.array([0.0, 20.0, 8.0, 95.0]), np.array([1.0, 30.0, 92.0, 120.0])
    index, begins, ends = LONG.pieces(start, end)
    assert index.tolist() == [0, 2, 2, 3]
    np.testing.assert_allclose(ends - begins, [1.0, 2.0, 2.0, 5.0])


@given(
    end=st.floats(1.0, 1e4),
    action=st.floats(1e-3, 1.0),
    fill=st.floats(0.0, 100.0),
    drain=st.floats(0.0, 100.0),
    places=st.floats(10.0, 500.0),
)
def test_the_beginning_and_the_end_are_always_shown(end, action, fill, drain, places):
    window = choose_window(end, action, fill, drain, places)
    assert window.spans[0][0] == 0.0
    assert window.spans[-1][1] == end
    if len(window.spans) > 1:
        assert window.spans[0][1] >= fill
        assert end - window.spans[1][0] >= drain * (1 - 1e-9) - 1e-9 * end
        assert window.shown < 0.8 * end
    moments = np.linspace(0.0, end, 50)
    assert (np.diff(window.place(moments)) >= 0).all()


def test_a_short_step_is_shown_whole_and_a_stretch_as_asked():
    assert choose_window(10.0, 1.0, 3.0, 3.0, 200.0).spans == ((0.0, 10.0),)
    assert choose_window(10.0, 1e-3, 1.0, 1.0, 200.0, between=(2.0, None)).spans == ((2.0, 10.0),)
    assert choose_window(10.0, 1e-3, 1.0, 1.0, 200.0, between=(None, 99.0)).spans == ((0.0, 10.0),)


@pytest.mark.parametrize("between", [(4.0, 3.0), (11.0, None), (-1.0, 3.0), (2.0, 2.0), (float("nan"), 3.0)])
def test_a_stretch_that_is_none_is_refused(between):
    with pytest.raises(SpecError, match="no stretch of what there is to show"):
        choose_window(10.0, 1.0, 1.0, 1.0, 200.0, between=between)


def test_ticks_are_round_and_inside():
    ticks, unit = LONG.ticks(8, 100.0)
    assert [tick.moment for tick in ticks] == [0.0, 5.0, 10.0, 90.0, 95.0, 100.0]
    assert max(tick.place for tick in ticks) <= LONG.width
    assert ([tick.label for tick in ticks][-1], unit) == ("100", "s")
    clear, _ = LONG.ticks(8, 100.0, clear=LONG.gap)
    assert [tick.moment for tick in clear] == [0.0, 5.0, 95.0, 100.0]
    assert [round_step(value) for value in (0.3, 0.11, 7.0, 1.0)] == pytest.approx([0.5, 0.2, 10.0, 1.0])
