"""What several test files share: where scenarios and measurements lie, and costs of stages made from plain numbers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from sim.costs.block import Part
from sim.costs.stage import StageCosts
from sim.work.stages import Stage

ROOT = Path(__file__).parents[1]

settings.register_profile("flopcast", settings.default, deadline=None, max_examples=60)
settings.load_profile("flopcast")


@pytest.fixture(scope="session")
def scenarios():
    """Folder of the shipped scenarios."""
    return ROOT / "scenarios"


@pytest.fixture(scope="session")
def measurements():
    """Folder of published measurements, which is not part of the repository."""
    folder = ROOT / ".." / "shared" / "published"
    if not folder.is_dir():
        pytest.skip("no ../shared/published beside the repository: published measurements are not shipped with it")
    return folder


def make_costs(num_ranks, forward, backward, **given):
    """StageCosts whose forward is all matrix multiplies and whose backward is matrix multiplies and recomputation."""
    forward, backward = np.asarray(forward, dtype=float), np.asarray(backward, dtype=float)
    num_stages = len(forward)
    none, nothing = np.zeros(num_stages), np.zeros(num_ranks)
    stages = tuple(Stage(i, 1, i == 0, i == num_stages - 1) for i in range(num_stages))
    defaults = {
        "stages": stages,
        "forward": {Part.MATMUL: forward},
        "backward": {Part.MATMUL: 0.75 * backward, Part.RECOMPUTE: 0.25 * backward},
        "at_peak": {Part.MATMUL: 0.5 * (forward + 0.75 * backward)},
        "weight_grad": 0.3 * backward,
        "send_forward": none,
        "send_backward": none,
        "p2p_blocks": True,
        "reduce": nothing,
        "reduce_tail": nothing,
        "gather": nothing,
        "optimizer": nothing,
        "tied_embedding": 0.0,
        "step_setup": 0.0,
        "hidden_share": 0.6,
        "notes": frozenset(),
    }
    return StageCosts(**{**defaults, **{key: np.asarray(v) if isinstance(v, list) else v for key, v in given.items()}})


@pytest.fixture(scope="session")
def costs_of():
    """The function `make_costs`."""
    return make_costs


@pytest.fixture(scope="session")
def random_costs():
    """(generator, order, sends, blocks) -> uneven StageCosts with reductions, gathers, updates and a tied embedding."""

    def make(rng, order, *, sends=True, blocks=True):
        ranks, stages = order.num_ranks, order.num_stages
        hop = rng.uniform(0.0, 0.6, stages) * (ranks > 1) * sends
        reduce = rng.uniform(0.0, 3.0, ranks)
        return make_costs(
            ranks,
            rng.uniform(0.5, 2.0, stages),
            rng.uniform(1.0, 4.0, stages),
            send_forward=np.where(np.arange(stages) < stages - 1, hop, 0.0),
            send_backward=np.concatenate([[0.0], hop[:-1] * rng.uniform(0.5, 1.5)]),
            p2p_blocks=blocks,
            reduce=reduce,
            reduce_tail=reduce * 0.25,
            gather=rng.uniform(0.0, 1.0, ranks),
            optimizer=rng.uniform(0.0, 1.0, ranks),
            tied_embedding=float(rng.uniform(0.0, 2.0)) * (ranks > 1),
            step_setup=float(rng.uniform(0.0, 1.0)),
        )

    return make
