"""Loss laws and critical batches against the worked numbers of their papers, and the algebra that links them."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import called, refusals, rows
from typed import answered

from sim.errors import SpecError
from sim.scaling.goal import Goal
from sim.scaling.loss_laws import (
    BATCH_LAWS,
    BESIROGLU,
    LAWS,
    MUENNIGHOFF,
    TOKEN_DECAY,
    PowerSum,
    best_loss,
    compute_optimal,
    compute_optimal_for_loss,
    compute_optimal_repeated,
    critical_batch,
    critical_batches,
    effective,
    form_of,
    get_law,
    least_budget,
    mccandlish_batch,
    power_sum_loss,
    repeated_data_loss,
    tokens_for_loss,
    useful_params,
)

GOPHER, PETAFLOP_DAY = 5.76e23, 8.64e19
KAPLAN, HOFFMANN = form_of(get_law("kaplan-2020")), form_of(get_law("chinchilla-3"))
HOFFMANN_ROUNDED = PowerSum(1.69, 406.4, 0.34, 410.7, 0.28)
FORMS = {"kaplan": KAPLAN, "hoffmann": HOFFMANN, "besiroglu": BESIROGLU, "muennighoff": MUENNIGHOFF}
budgets = st.floats(18, 30).map(lambda power: 10**power)


def test_kaplan_puts_most_of_a_budget_into_parameters():
    day, more = (compute_optimal(days * PETAFLOP_DAY, get_law("kaplan-2020")) for days in (1, 10))
    assert day.params == pytest.approx(1.3e9)
    losses = [best_loss(days * PETAFLOP_DAY, get_law("kaplan-2020")) for days in (1, 1e4)]
    assert losses == pytest.approx([2.6581, 1.6771], rel=3e-4)
    assert more.params / day.params == pytest.approx(5.37, rel=1e-3)
    # Table 6: S_min = 5.4e3 steps of B_crit = 2.0e6 tokens are the same data.
    assert day.tokens == pytest.approx(5.4e3 * 2.0e6, rel=0.03)


@pytest.mark.parametrize(
    ("form", "params", "tokens", "loss"),
    [
        (BESIROGLU, 7.22e10, 1.33e12, 1.974),
        (HOFFMANN_ROUNDED, 3.22e10, 2.98e12, None),
        (HOFFMANN, 4.03e10, 2.38e12, None),
    ],
)
def test_optimum_at_gophers_budget(form, params, tokens, loss):
    found = form.allocation(GOPHER)
    assert found == pytest.approx(params, rel=2e-3)
    assert GOPHER / 6 / found == pytest.approx(tokens, rel=3e-3)
    if loss:
        assert form.frontier(GOPHER) == pytest.approx(loss, abs=5e-4)


@pytest.mark.parametrize(
    ("flop", "params"), [(1.92e19, 4e8), (1.21e20, 1e9), (5.76e23, 67e9), (3.85e24, 175e9), (1.27e26, 1e12)]
)
def test_chinchilla_1_gives_table_3(flop, params):
    assert compute_optimal(flop, get_law("chinchilla-1")).params == pytest.approx(params, rel=0.04)


@pytest.mark.parametrize(
    ("law", "exponent"),
    [
        ("chinchilla-1", 0.50),
        ("chinchilla-2", 0.49),
        ("chinchilla-3", 0.46),
        ("besiroglu-2024", 0.5126),
        ("deepseek-2024", 0.5243),
    ],
)
def test_exponents(law, exponent):
    assert get_law(law).allocation.exponent == pytest.approx(exponent, abs=0.005)


@given(st.sampled_from(sorted(FORMS)), budgets, st.floats(0.1, 10.0))
def test_no_other_split_of_a_budget_loses_less(name, flop, factor):
    """The frontier is the loss of the best split, and from that loss budget and tokens follow."""
    form = FORMS[name]
    best, loss = form.allocation(flop), form.frontier(flop)
    other = best * factor
    assert power_sum_loss(best, flop / 6 / best, form) == pytest.approx(loss, rel=1e-12)
    assert power_sum_loss(other, flop / 6 / other, form) >= loss * (1 - 1e-12)
    assert form.frontier.inverse(float(loss)) == pytest.approx(flop, rel=1e-6)
    assert tokens_for_loss(float(loss), float(best), form) == pytest.approx(flop / 6 / best, rel=1e-6)


@given(st.sampled_from([name for name, law in LAWS.items() if law.form]), budgets)
def test_a_loss_asked_back_gives_the_budget(name, flop):
    law = get_law(name)
    again = compute_optimal_for_loss(compute_optimal(flop, law).loss, law)
    assert again.flop == pytest.approx(flop, rel=1e-5)


def test_an_interval_is_the_exponents_about_the_middle_of_the_runs():
    law = get_law("chinchilla-2")
    arm = 1e26 / np.sqrt(law.fitted_flop[0] * law.fitted_flop[1])
    best = compute_optimal(1e26, law)
    assert np.array(best.params_interval) / best.params == pytest.approx([arm ** (0.462 - 0.49), arm ** (0.534 - 0.49)])


@pytest.mark.parametrize(("repeats", "worth"), [(3, 3.726), (15, 10.586), (1e9, 16.39)])
def test_repeated_tokens(repeats, worth):
    # The sheet's 10.586 is with R* = 15.4; the constant's own digits give 10.582.
    assert effective(1 + repeats, 1.0, TOKEN_DECAY) == pytest.approx(worth, rel=5e-4)


def test_repeated_data_without_repetition_is_the_plain_law():
    assert repeated_data_loss(1e9, 2e10, 1e12) == pytest.approx(power_sum_loss(1e9, 2e10, MUENNIGHOFF))
    assert useful_params(1.0) == pytest.approx(0.051, abs=5e-4)
    plenty = compute_optimal_repeated(1e20, 1e15)
    assert plenty.params == pytest.approx(compute_optimal(1e20, get_law("muennighoff-2023")).params, rel=1e-4)


test_the_impossible_is_refused_with_the_nearest_possible = refusals(SpecError, called, [
    (lambda: compute_optimal_for_loss(1.8172, get_law("besiroglu-2024")), "irreducible loss is 1.8172; ask for"),
    (lambda: compute_optimal_for_loss(float("nan"), get_law("besiroglu-2024")), "loss = nan"),
    (lambda: compute_optimal_for_loss(1e-30, get_law("kaplan-2020")), "more than"),
    (lambda: compute_optimal_for_loss(2.0, get_law("deepseek-2024")), "give a budget"),
    (lambda: compute_optimal(5.0, get_law("besiroglu-2024")), "the least it can spend is"),
    (lambda: tokens_for_loss(2.0, 1e8, BESIROGLU), "tend to 2.6"),
    (lambda: tokens_for_loss(1.5, 1e12, BESIROGLU), "no model goes below"),
    (lambda: power_sum_loss(np.array([1e9, -1.0]), 1e9, BESIROGLU), "params = -1"),
    (lambda: get_law("besiroglu"), "did you mean 'besiroglu-2024'"),
    (lambda: form_of(get_law("chinchilla-1")), "laws that do: kaplan-2020"),
    (lambda: compute_optimal_repeated(1e20, 0.0), "unique_tokens = 0"),
])  # fmt: skip


@given(st.sampled_from(sorted(LAWS)))
def test_the_least_budget_is_the_least(name):
    law = get_law(name)
    assert compute_optimal(least_budget(law) * 1.001, law).params >= 1
    with pytest.raises(SpecError, match="too small"):
        compute_optimal(least_budget(law) * 0.999, law)


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
    goal = Goal(1e9, least, critical, 2.0)
    steps, data = goal.steps(batch), goal.tokens(batch)
    assert (steps * critical / least - 1) * (data / least - 1) == pytest.approx(1, rel=1e-6)
    assert steps * batch == pytest.approx(data)


test_mistakes = refusals(SpecError, lambda name, facts: critical_batch(name, **facts), [
    ("kaplan-2020", {"params": 1e9}, "needs the run's loss"),
    ("kaplan-2020", {"loss": 0.0}, "loss = 0"),
    ("zhang-2024", {"tokens": float("nan")}, "tokens = nan"),
    ("kaplan", {"loss": 2.0}, "did you mean 'kaplan-2020'"),
])  # fmt: skip


A100, PETAFLOP_DAY = 312e12, 8.64e19


def test_kaplans_compute_optimal_exponents():
    """N ~ C^0.73, B ~ C^0.24, S ~ C^0.03, which are all of C; and D ~ C^0.26 or so."""
    law = get_law("kaplan-2020")
    budgets = np.array([1.0, 10.0]) * PETAFLOP_DAY
    batch = critical_batch("kaplan-2020", loss=law.frontier(budgets))
    assert np.log10(batch[1] / batch[0]) == pytest.approx(0.24, abs=5e-3)
    size, data = law.allocation(budgets), budgets / 6 / law.allocation(budgets)
    assert np.log10(size[1] / size[0]) == pytest.approx(0.73)
    assert np.log10(data[1] / data[0]) == pytest.approx(0.26, abs=0.011)
    assert pytest.approx(1.0) == 0.73 + 0.24 + 0.03


@rows(("law", "exponent"), [("zhang-2024", 0.47), ("bergsma-2025", 0.462), ("bergsma-2025-best", 0.383)])
def test_batches_grow_with_data_as_published(law, exponent):
    batches = critical_batch(law, tokens=np.array([1e11, 1e12]))
    assert np.log10(batches[1] / batches[0]) == pytest.approx(exponent)


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training-time.md"


ask = partial(answered, "scaling")


def read(*arguments):
    return json.loads(ask(*arguments, "--json"))


QUESTIONS = [
    ("optimal", "--budget", "5.76e23"),
    ("optimal", "--loss", "2.1"),
    ("optimal", "--budget", "1e24", "--unique-tokens", "100B"),
    ("model", "70B", "--tokens", "1.4T", "--loss", "1.95"),
    ("batch", "llama3-405b", "--tokens", "15.6T", "--batch", "16M"),
]
IDS = [" ".join(question[:2]) for question in QUESTIONS]


@rows("question", QUESTIONS, ids=IDS)
def test_every_question_fits_a_terminal_and_has_json(question):
    printed = ask(*question)
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "…" not in printed  # no number is cut
    assert read(*question)


def test_laws_say_how_far_they_were_checked():
    assert "differ by a factor of 28" in ask("batch", "llama3-405b", "--tokens", "15.6T")
    assert "28-fold" in PAGE.read_text()
    shown = " ".join(ask("laws").split())
    assert "reconstructed, not read" in shown
    assert "2085 ± 1293" in shown


test_mistakes_say_what_to_type = refusals(SpecError, lambda words: ask(*words), [
    (("optimal",), "give either --budget"),
    (("optimal", "--budget", "lots"), "budget = 'lots' is not a number; write it as 2.1, 70B"),
    (("optimal", "--budget", "-1e20"), "budget = -1e+20"),
    (("optimal", "--budget", "10"), "too small for kaplan-2020"),
    (("optimal", "--budget", "1e23", "--loss", "1.9"), "give either --budget"),
    (("optimal", "--loss", "1.75"), "besiroglu-2024: no budget reaches a loss of 1.75: the irreducible loss is 1.8172"),
    (("optimal", "--loss", "2", "--unique-tokens", "1B"), "goes with --budget"),
    (("model", "gpt3-175"), "did you mean 'gpt3-175b'"),
    (("model", "--", "-5B"), "parameters = -5e+09"),
    (("batch", "70B", "--loss", "nan"), "loss = 'nan'"),
    (("optimal", "--loss", "1e-30"), "0.1 to 20.0 nats a token"),
])  # fmt: skip
