"""Closed forms over columns of pipelines, against the exact engine and orders: when ranks end, and what they keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines import Program, run
from sim.engines.even_pipelines import EvenPipelines, find_links, sends_over
from sim.engines.order_facts import in_flight_by_rank
from sim.network.placement import Hops
from sim.schedules import build_order
from sim.schedules.passes import in_flight

ROWS, DOMAIN = 120, 8
SCHEDULES = ("gpipe", "1f1b", "interleaved")


def rows_of(random):
    """(schedule, ranks, chunks, micro-batches, GPUs of a rank, longer middle ranks) of pipelines of every schedule."""
    for _ in range(ROWS):
        schedule, pp, rounds = int(random.integers(3)), int(random.integers(2, 9)), int(random.integers(1, 5))
        pp = 1 if schedule == 1 and not random.integers(8) else pp
        chunks = int(random.integers(2, 5)) if schedule == 2 else 1
        count = rounds * pp + (0 if schedule == 2 else int(random.integers(3)))
        longer = int(random.integers(pp - 1)) if chunks == 1 and pp > 2 else 0
        yield schedule, pp, chunks, count, int(random.choice([1, 2, 3, 4, 8, 16])), longer


def exact_ends(row, costs_of, seconds, near, far, blocking):
    """Ends of all ranks of one of them by the exact engine, with stages of (first, middle, last, longer) seconds."""
    schedule, pp, chunks, count, width, longer = row
    order = build_order(SCHEDULES[schedule], pp, chunks, count)
    stage = np.arange(pp * chunks)
    kind = np.where(stage == 0, 0, np.where(stage == pp * chunks - 1, 2, np.where(stage <= longer, 3, 1)))
    rank = stage % pp
    hops = Hops(min(width, DOMAIN), DOMAIN).cross(rank[:-1], rank[1:])
    sends = np.where(hops, far, near)
    costs = costs_of(
        pp, *seconds[:, kind], send_forward_s=np.append(sends, 0.0), send_backward_s=np.append(0.0, sends),
        p2p_blocks=blocking,
    )  # fmt: skip
    return run(Program(order, costs)).pipeline_end_s


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(("longest", "least"), [("middle", 0.95), ("outer", 0.8), ("sends", 0.45)])
def test_bounds_are_never_above_the_exact_ends_and_mostly_near(costs_of, blocking, longest, least):
    """Where all stages are nearly alike, embedding and head take the longest, or sends do."""
    random = np.random.default_rng(["middle", "outer", "sends"].index(longest))
    rows = list(rows_of(random))
    schedule, pp, chunks, count, width, longer = np.array(rows).T
    seconds = random.uniform(1.0, 1.1, size=(2, 4, ROWS))
    if longest == "outer":
        seconds[:, :3] *= random.choice([0.5, 1.0, 4.0], size=(2, 3, ROWS))
    seconds[:, 3] = seconds[:, 1] * 1.2
    near = random.uniform(0.0, 0.05, size=ROWS) * (60.0 if longest == "sends" else 1.0) * (pp > 1)
    far = near * random.uniform(1.0, 4.0, size=ROWS)
    seconds[:, 2] = np.where(pp == 1, seconds[:, 0], seconds[:, 2])
    hops = [Hops(min(each, DOMAIN), DOMAIN) for each in width.tolist()]
    links = find_links(list(zip(hops, pp.tolist(), longer.tolist(), strict=True)))
    numbers = (pp, chunks, count, schedule == 0, links, sends_over(links, near, far), blocking, longer)
    found = EvenPipelines(*numbers, *seconds).find_ends()
    ratios = []
    for place, row in enumerate(rows):
        ended = exact_ends(row, costs_of, seconds[:, :, place], near[place], far[place], blocking)
        kinds = [0, *([1] if row[1] > 2 else []), *([2] if row[1] > 1 else [])]
        ranks = [0, *([1] if row[1] > 2 else []), *([row[1] - 1] if row[1] > 1 else [])]
        assert np.isneginf(np.delete(found[:, place], kinds)).all()
        assert (found[kinds, place] <= ended[ranks] * (1 + 1e-12)).all(), row
        ratios.append(found[0, place] / ended[0])
        if row[1] == 1:
            assert ratios[-1] == pytest.approx(1.0, rel=1e-12)
    assert np.median(ratios) > 0.999
    assert min(ratios) > least


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bounds_are_exact_where_all_ranks_are_alike(costs_of, schedule):
    row = (SCHEDULES.index(schedule), 4, 3 if schedule == "interleaved" else 1, 12, 8, 0)
    links = find_links([(Hops(8, DOMAIN), 4, 0)])
    numbers = [np.array([each]) for each in (row[1], row[2], row[3])]
    seconds = np.repeat([[1.0], [2.0]], 4, axis=1) / row[2]
    sends = np.array([schedule == "gpipe"]), links, sends_over(links, *np.zeros((2, 1))), True, np.array([0])
    found = EvenPipelines(*numbers, *sends, *seconds[..., np.newaxis]).find_ends()[:, 0]
    assert found == pytest.approx(exact_ends(row, costs_of, seconds, 0.0, 0.0, True)[[0, 1, 3]], rel=1e-12)
    assert found[0] == pytest.approx((12 + 3 / row[2]) * 3.0)  # Narayanan et al. 2021, section 2.2


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
