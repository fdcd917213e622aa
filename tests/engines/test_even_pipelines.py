"""Ends of ranks over arrays against the closed form of one pipeline, where stages and sends are as odd as they can be."""

from dataclasses import dataclass

import numpy as np
import pytest

from sim.engines import closed_form
from sim.engines.even_pipelines import EvenPipelines
from sim.engines.pipeline_links import Pipelines, find_links, sends_over
from sim.network.placement import Hops
from sim.specs import load_scenario

ROWS = 300


@pytest.fixture(scope="module")
def cluster(scenarios):
    return load_scenario(scenarios / "gpt3-175b-1024-a100.yaml").cluster


@dataclass
class Sizes:
    """Pipelines without seconds: arrays over rows."""

    pp: np.ndarray
    width: np.ndarray
    chunks: np.ndarray
    count: np.ndarray
    gpipe: np.ndarray


def pipelines(random):
    """Rows of every schedule, on ranks of as many GPUs as a part of a domain, a domain, or more."""
    schedule = random.integers(3, size=ROWS)
    pp = np.where(schedule == 1, random.integers(1, 9, size=ROWS), random.integers(2, 9, size=ROWS))
    chunks = np.where(schedule == 2, random.integers(2, 5, size=ROWS), 1)
    rounds = random.integers(1, 5, size=ROWS)
    count = np.where(schedule == 2, rounds * pp, rounds * pp + random.integers(0, 3, size=ROWS))
    width = random.choice([1, 2, 3, 4, 8, 16], size=ROWS)
    assert set(schedule.tolist()) == {0, 1, 2}
    return Sizes(pp, width, chunks, count, schedule == 0)


def alone(sizes, domain, row, forward, backward, near, far, blocking):
    """Ends of all ranks of one of them, by the engine."""
    count, pp, chunks = (int(each[row]) for each in (sizes.count, sizes.pp, sizes.chunks))
    rank = np.arange(pp * chunks) % pp
    seconds = np.zeros((2, pp * chunks))
    for passes, (first, middle, last) in zip(seconds, (forward, backward), strict=True):
        passes[:], passes[0], passes[-1] = middle, first, last
        if len(passes) == 1:
            passes[0] = first  # the only stage of all is of the first kind
    crosses = Hops(min(int(sizes.width[row]), domain), domain).cross(rank[:-1], rank[1:])
    sends = np.where(crosses, far, near)
    sent = seconds[0] + np.append(sends, 0.0), seconds[1] + np.append(0.0, sends)
    shaped = [each.reshape(chunks, pp) for each in (*(sent if blocking else seconds), *sent)]
    of_one = closed_form._Seconds(*shaped, count, blocking)
    ended, _ = closed_form._gpipe(of_one) if sizes.gpipe[row] else closed_form._in_turns(of_one)
    return ended


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("longest", ["middle", "outer", "sends"])
def test_ends_equal_those_of_each_pipeline(cluster, blocking, longest):
    """Where middle stages, embedding and head, or sends take the longest, so that every kind of way is."""
    random = np.random.default_rng(["middle", "outer", "sends"].index(longest))
    sizes, domain = pipelines(random), cluster.nvlink_domain_gpus
    forward, backward = random.uniform(1.0, 2.0, size=(2, 3, 1, ROWS))
    if longest == "outer":
        forward, backward = (each * random.choice([0.5, 1.0, 4.0], size=(3, 1, ROWS)) for each in (forward, backward))
    near = random.uniform(0.0, 0.5, size=ROWS) * (6.0 if longest == "sends" else 1.0)
    far = near * random.uniform(1.0, 4.0, size=ROWS)
    near, far = (np.where(sizes.pp > 1, each, 0.0) for each in (near, far))
    for passes in (forward, backward):
        passes[2] = np.where(sizes.pp == 1, passes[0], passes[2])
    hops = [Hops(min(width, domain), domain) for width in sizes.width.tolist()]
    links = find_links(list(zip(hops, sizes.pp.tolist(), [0] * ROWS, strict=True)))
    numbers = (sizes.pp, sizes.chunks, sizes.count, sizes.gpipe)
    together = Pipelines(*numbers, links, sends_over(links, sizes.pp, near, far), blocking, 0 * sizes.pp)
    found = EvenPipelines(together, forward, backward).find_ends().ended[:, 0]
    for row in range(ROWS):
        pp = int(sizes.pp[row])
        seconds = (forward[:, 0, row], backward[:, 0, row], near[row], far[row])
        ended = alone(sizes, domain, row, *seconds, blocking)
        there = [0, *([1] if pp > 2 else []), *([pp - 1] if pp > 1 else [])]
        kinds = [0, *([1] if pp > 2 else []), *([2] if pp > 1 else [])]
        assert found[kinds, row] == pytest.approx(ended[there], rel=1e-12), (row, longest)
