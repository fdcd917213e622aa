"""The loop of every search: against running everything, and what it says of a search that is cut short."""

from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.search.best_first import Found, best_first, in_order

PLAN = st.tuples(st.integers(1, 30), st.integers(0, 10), st.booleans())
"""A plan's bound, what its score is above it, and whether it fits."""


def nodes_of(groups):
    """A node a group, at the lowest of its bounds; opened, it gives one for each plan."""

    def look_closer(group, found):
        return [((bound, place), partial(run, bound + more, fits)) for place, (bound, more, fits) in enumerate(group)]

    def run(score, fits, found):
        found.record((score, score) if fits else None)
        return ()

    return [((min(bound for bound, *_ in group),), partial(look_closer, group)) for group in groups]


@given(st.lists(st.lists(PLAN, min_size=1, max_size=5), max_size=6), st.integers(1, 3))
def test_the_best_few_are_those_of_all_plans(groups, top):
    plans = [plan for group in groups for plan in group]
    scores = sorted(bound + more for bound, more, fits in plans if fits)
    found = best_first(nodes_of(groups), Found(top))
    assert list(found.best[:top]) == scores[:top]
    assert found.proven
    assert found.gap == 0.0
    worst = scores[top - 1] if len(scores) >= top else inf
    assert found.runs <= sum(bound < worst for bound, *_ in plans)  # no plan is run that its bound rules out


@given(st.lists(st.lists(PLAN, min_size=1, max_size=5), min_size=1, max_size=6), st.integers(1, 4))
def test_a_search_that_is_cut_short_says_what_may_be_left(groups, most):
    scores = [bound + more for group in groups for bound, more, fits in group if fits]
    found = best_first(nodes_of(groups), Found(most=most))
    assert found.runs <= most
    if found.best:
        assert min(scores) >= found.best[0] * (1 - found.gap) * (1 - 1e-9)
    assert found.proven == (found.gap == 0.0)
    assert len(found.with_best().ran) <= 1


def test_plans_that_are_not_listed_have_a_bound_too():
    nodes = [((2.0,), None), *in_order([1.0], lambda place, found: found.record((4.0, "plan")))]
    found = best_first(nodes, Found())
    assert (found.bound, found.proven) == (2.0, False)
    assert found.gap == pytest.approx(0.5)
