"""Where ranks sit: Megatron-LM's numbering, other orders, and a scheduler that hands out scattered nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.network.ranks import gpu_of_rank
from sim.specs import ParallelPlan

PLAN = ParallelPlan(tp=8, pp=64, dp=6)


def test_megatrons_order_is_the_rank_number(cluster):
    gpus = gpu_of_rank(PLAN, cluster("selene"))
    assert gpus.shape == (64, 6, 1, 8)
    assert (gpus.ravel() == np.arange(3072)).all()
    # The six replicas of a stage sit in six nodes in a row; the next stage follows.
    assert (gpus[3, :, 0, 2] == 3 * 48 + np.arange(6) * 8 + 2).all()


degrees = st.integers(1, 4)


@given(
    sizes=st.tuples(degrees, degrees, degrees, degrees), order=st.permutations(["tp", "cp", "dp", "pp"]),
    fragmentation=st.floats(0, 1), seed=st.integers(0, 5),
)  # fmt: skip
def test_every_rank_has_a_gpu_of_its_own(cluster, sizes, order, fragmentation, seed):
    machine = cluster("superpod-a100")
    plan = ParallelPlan(**dict(zip(("tp", "cp", "dp", "pp"), sizes, strict=True)), placement="-".join(order))
    gpus = gpu_of_rank(plan, machine.replace(fragmentation=fragmentation), seed)
    assert len(np.unique(gpus)) == plan.num_gpus
    assert gpus.max() < machine.num_gpus
    # However nodes are scattered, the ranks of a node stay together.
    whole = gpu_of_rank(plan, machine)
    assert (gpus % 8 == whole % 8).all()
    assert len(np.unique(gpus // 8)) == len(np.unique(whole // 8))


@pytest.mark.parametrize("fragmentation", [0.0, 0.1, 0.5, 1.0])
def test_a_scheduler_scatters_as_many_nodes_as_asked(cluster, fragmentation):
    machine = cluster("selene").replace(fragmentation=fragmentation)
    runs = [gpu_of_rank(PLAN, machine, seed) for seed in (1, 1, 2)]
    assert runs[0].tobytes() == runs[1].tobytes()
    away = np.setdiff1d(runs[0] // 8, np.arange(384))
    assert len(away) <= round(fragmentation * 384)
    assert (len(away) > 0) == (fragmentation > 0)
    assert (runs[0] != runs[2]).any() == (fragmentation > 0)
