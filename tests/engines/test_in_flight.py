"""What ranks keep, in closed form, against the orders of the schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines.order_facts import in_flight_by_rank
from sim.schedules import build_order
from sim.schedules.passes import in_flight


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@given(
    pp=st.integers(1, 9), chunks=st.integers(2, 6), rounds=st.integers(1, 5), rest=st.integers(0, 8),
    outer=st.floats(0.0, 3.0),
)  # fmt: skip
def test_peaks_equal_those_of_the_order(schedule, pp, chunks, rounds, rest, outer):
    """For outermost chunks that weigh less and more than the others, and every number of micro-batches."""
    many = schedule == "interleaved"
    pp, chunks = (max(pp, 2), chunks) if many else (pp, 1)
    microbatches = rounds * pp if many else rounds * pp + rest
    order = build_order(schedule, pp, chunks, microbatches, fold=False)
    stages = pp * chunks
    sizes = (np.array([each]) for each in (pp, chunks, microbatches, schedule == "gpipe"))
    ranks = in_flight_by_rank(*sizes)
    for kept, rank, stage in ((ranks.first, 0, 0), (ranks.last, pp - 1, stages - 1)):
        weights = np.ones(stages)
        weights[stage] = outer
        peak = max(in_flight(order, weights)[rank])
        assert kept.peak(np.array([1.0]), np.array([outer]))[0] == pytest.approx(peak, rel=1e-12)
    heads = max(in_flight(order, np.arange(stages) == stages - 1)[pp - 1])
    assert ranks.last.most[0] == heads
    if pp > 2:
        middle = max(max(each) for each in in_flight(order, np.ones(stages))[1:-1])
        assert ranks.middle[0] == middle
