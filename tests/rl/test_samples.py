"""Lengths: their moments, their longest, and what cannot be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import called, refusals

from sim.errors import SpecError
from sim.rl.samples import SPREAD, Samples, lognormal_lengths


@given(st.floats(50, 5000), st.floats(1.3, 10), st.floats(0.1, 2.0))
def test_the_mean_is_that_of_what_is_left_after_the_cut(mean, factor, spread):
    lengths = lognormal_lengths(mean, factor * mean, spread)
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert lengths.mean_square >= lengths.mean**2 * (1 - 1e-4)
    assert (np.diff(lengths.survival) <= 0).all()
    assert 0.5 * mean * (1 - 1e-3) <= lengths.mean_age <= 0.5 * factor * mean


def test_moments_are_those_of_drawn_lengths():
    """Drawn by inversion; who outlives the last cell is cut off at the longest."""
    lengths = lognormal_lengths(2000, 8000, 1.2)
    chances = np.random.default_rng(1).random(200_000)
    found = np.interp(chances, lengths.survival[::-1], lengths.middles[::-1])
    found = np.where(chances < lengths.survival[-1], lengths.longest, found)
    assert found.mean() == pytest.approx(lengths.mean, rel=0.01)
    assert (found**2).mean() == pytest.approx(lengths.mean_square, rel=0.01)


@pytest.mark.parametrize(("mean", "longest", "cut_off", "spread"), [(325, 1024, 0.004, 0.5), (1676, 4096, 0.12, 1.3)])
def test_the_default_spread_lies_between_those_of_two_logs(mean, longest, cut_off, spread):
    """volcengine/verl issue 1208, step 2; Tjh-UKN/vime:summary.json, last ten rounds, the limit inferred."""
    assert lognormal_lengths(mean, longest, spread).survival[-1] == pytest.approx(cut_off, rel=0.05)
    assert 0.5 < SPREAD < 1.3


test_what_cannot_be_is_refused = refusals(SpecError, called, [
    (lambda: lognormal_lengths(5000, 4000), "Raise the longest to 10,000"),
    (lambda: lognormal_lengths(0), "mean_response = 0"),
    (lambda: lognormal_lengths(10, 20, -1), "spread = -1"),
    (lambda: Samples(0, 16, 1.0, lognormal_lengths(10)), "prompts = 0"),
])  # fmt: skip
