"""Critical batches against their papers' numbers, and the trade-off's algebra."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import refusals

from sim.errors import SpecError
from sim.scaling.loss_laws import (
    BATCH_LAWS,
    critical_batch,
    critical_batches,
    mccandlish_batch,
    steps_needed,
    tokens_needed,
)

sizes = st.floats(5, 9).map(lambda power: 10**power)


@pytest.mark.parametrize(
    ("name", "facts", "tokens"),
    [
        ("kaplan-2020", {"loss": 3.0}, 1.07e6),
        ("kaplan-2020", {"loss": 2.0}, 7.37e6),
        ("lamy-poirier-2021", {"params": 12 * 160.0**5}, 6.19e6),
        ("lamy-poirier-2021", {"params": 175e9}, 3.205e6),
        ("deepseek-2024-best", {"flop": 8.6e22}, 9.27e6),
        ("deepseek-2024-best", {"flop": 8.5e23}, 19.6e6),
    ],
)
def test_worked_numbers(name, facts, tokens):
    assert critical_batch(name, **facts) == pytest.approx(tokens, rel=2e-3)


@pytest.mark.parametrize(("params", "tokens"), [(12 * 160.0**5, 45e6), (175e9, 22e6)])
def test_kaplans_and_lamy_poiriers_laws_are_not_the_same(params, tokens):
    converged = (8.8e13 / params) ** 0.076  # equation 1.1: on plentiful data
    kaplan = critical_batch("kaplan-2020", loss=converged) * 2.1e8 / 2e8  # appendix A
    assert kaplan == pytest.approx(tokens, rel=0.01)
    assert kaplan > 6 * critical_batch("lamy-poirier-2021", params=params)


def test_zhangs_two_forms_agree_at_twenty_tokens_a_parameter():
    assert critical_batch("zhang-2024", tokens=20e9) == pytest.approx(93.20 * 1e9**0.47, rel=0.01)


def test_disagreement_is_shown():
    said = critical_batches(params=70e9, tokens=1.4e12, loss=1.97, flop=5.88e23)
    assert set(said) == set(BATCH_LAWS)
    assert max(said.values()) / min(said.values()) > 10
    assert set(critical_batches(params=70e9)) == {"lamy-poirier-2021"}


def test_definitions_are_made_comparable():
    assert mccandlish_batch("zhang-2024", tokens=1e12) == pytest.approx(5 * critical_batch("zhang-2024", tokens=1e12))
    assert mccandlish_batch("kaplan-2020", loss=2.0) == critical_batch("kaplan-2020", loss=2.0)
    with pytest.raises(SpecError, match="gives the batch of least loss, no limit; choose from kaplan-2020"):
        mccandlish_batch("deepseek-2024-best", flop=1e23)


@given(sizes, sizes, st.floats(10, 13).map(lambda power: 10**power))
def test_the_hyperbola(batch, critical, least):
    steps, data = steps_needed(least, batch, critical), tokens_needed(least, batch, critical)
    assert (steps * critical / least - 1) * (data / least - 1) == pytest.approx(1, rel=1e-6)
    assert steps * batch == pytest.approx(data)


test_mistakes = refusals(SpecError, lambda name, facts: critical_batch(name, **facts), [
    ("kaplan-2020", {"params": 1e9}, "needs the run's loss"),
    ("kaplan-2020", {"loss": 0.0}, "loss = 0"),
    ("zhang-2024", {"tokens": float("nan")}, "tokens = nan"),
    ("kaplan", {"loss": 2.0}, "did you mean 'kaplan-2020'"),
])  # fmt: skip
