"""What ranks keep, in closed form, against the orders of the schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schedules import build_order
from sim.schedules.passes import alive
from sim.search.plans.columns import SCHEDULES, Columns
from sim.search.prices.alive import kept_by_ranks


def row(schedule, pp, chunks):
    ones = np.ones(1, dtype=np.int64)
    return Columns(ones, ones, pp * ones, ones, ones, chunks * ones, ones, SCHEDULES.index(schedule) * ones, 0 * ones)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    pp=st.integers(1, 9),
    chunks=st.integers(2, 6),
    rounds=st.integers(1, 5),
    rest=st.integers(0, 8),
    outer=st.floats(0.0, 3.0),
)
def test_peaks_equal_those_of_the_order(schedule, pp, chunks, rounds, rest, outer):
    """For outermost chunks that weigh less and more than the others, and every number of micro-batches."""
    many = schedule == "interleaved"
    pp, chunks = (max(pp, 2), chunks) if many else (pp, 1)
    microbatches = rounds * pp if many else rounds * pp + rest
    order = build_order(schedule, pp, chunks, microbatches, fold=False)
    stages = pp * chunks
    ranks = kept_by_ranks(row(schedule, pp, chunks), np.array([microbatches]))
    for kept, rank, stage in ((ranks.first, 0, 0), (ranks.last, pp - 1, stages - 1)):
        weights = np.ones(stages)
        weights[stage] = outer
        peak = max(alive(order, weights)[rank])
        assert kept.peak(np.array([1.0]), np.array([outer]))[0] == pytest.approx(peak, rel=1e-12)
    heads = max(alive(order, np.arange(stages) == stages - 1)[pp - 1])
    assert ranks.last.most[0] == heads
    if pp > 2:
        middle = max(max(each) for each in alive(order, np.ones(stages))[1:-1])
        assert ranks.middle[0] == middle
