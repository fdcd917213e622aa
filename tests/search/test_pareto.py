"""The front against every pair of plans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.search.result import pareto_front


@given(st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=40))
def test_front_is_what_no_other_plan_beats(plans):
    front = pareto_front(*np.array(plans, dtype=float).T)
    beats = lambda a, b: all(x <= y for x, y in zip(a, b, strict=True)) and a != b  # noqa: E731
    best = {plan for plan in plans if not any(beats(other, plan) for other in plans)}
    assert sorted(plans[place] for place in front) == sorted(best)
