"""Where ranks and groups lie: Megatron-LM's numbering, any order of the dimensions by hand, and schedulers that scatter nodes."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.costs.collectives import Fabric, all_to_all
from sim.network import placement
from sim.network.placement import RANKS, gpu_of_rank, hops_of, members_of, place_group, send_share
from sim.specs import ClusterSpec, ParallelPlan, load_scenario
from sim.specs.loading import resolve

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


orders = st.permutations(RANKS).map("-".join)


def machine(domain=8, ratio=4.0, fragmentation=0.0, rails=False, nodes=64, routing="adaptive"):
    node = "gb200-tray" if domain == 72 else "dgx-a100-80gb"
    levels = {"leaf": {"ports": 400, "below": 4, "oversubscription": ratio}, "core": {"ports": 8000}}
    network = {"rail_optimised": rails, "levels": levels, "routing": routing}
    data = {"name": "c", "node": node, "num_nodes": nodes, "nvlink_domain_gpus": domain, "network": network}
    return ClusterSpec.read(resolve({**data, "fragmentation": fragmentation}, "cluster"), "cluster")


def by_hand(groups, domain):
    """(fewest members in a domain, most domains) over all groups."""
    counts = [np.unique(group // domain, return_counts=True)[1] for group in groups]
    return min(int(each.min()) for each in counts), max(len(each) for each in counts)


small = st.sampled_from([1, 2, 3, 4, 8])


@given(
    sizes=st.tuples(small, small, small, small), order=orders, domain=st.sampled_from([8, 72]),
    fragmentation=st.sampled_from([0.0, 0.5]), ep=st.sampled_from([1, 2, 4, 6]), cut=st.booleans(),
)  # fmt: skip
def test_groups_and_hops_by_hand(sizes, order, domain, fragmentation, ep, cut):
    """Experts whole, or cut over the tensor-parallel group."""
    tp, cp, dp, pp = sizes
    etp = tp if cut else 1
    assume(tp * cp * dp % (ep * etp) == 0)
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, sequence_parallel=tp > 1, placement=order)
    cluster = machine(domain, fragmentation=fragmentation, nodes=288)
    assume(plan.num_gpus <= cluster.num_gpus)
    gpus = gpu_of_rank(plan, cluster)
    for name in ("tp", "cp", "ep", "shards", "expert_shards"):
        groups = np.concatenate([members_of(name, plan, each) for each in gpus])
        found = place_group(name, plan, cluster)
        assert found.size == groups.shape[1]
        assert (found.per_domain, found.num_domains) == by_hand(groups, domain), name
    hops, ranks = hops_of(plan, cluster), gpus.reshape(pp, -1) // domain
    leaving = (ranks[:, np.newaxis] != ranks).any(axis=2)
    for here in range(pp):
        assert hops.cross(np.full(pp, here), np.arange(pp)).tolist() == leaving[here].tolist()
    # Of ranks that follow each other it is asked of their width alone: a domain of 72 may be left by all of 64 GPUs too.
    everywhere = bool(leaving[~np.eye(pp, dtype=bool)].all())
    assert hops.all_leave <= everywhere
    assert hops.all_leave == everywhere or pp == 1 or not hops.table


def test_experts_that_are_cut_lie_as_megatrons_expert_ranks():
    """Ranks 0 to 3 hold the first half of the experts, 4 to 7 the second, and so on: the same ones are eight apart."""
    plan = ParallelPlan(tp=4, dp=4, ep=2, etp=4, sequence_parallel=True)
    assert members_of("ep", plan, np.arange(16).reshape(4, 1, 4)).tolist()[:2] == [[0, 4], [1, 5]]
    assert members_of("expert_shards", plan, np.arange(16).reshape(4, 1, 4)).tolist()[:2] == [[0, 8], [1, 9]]


def test_shares_of_other_orders_by_hand():
    """Sixty-four nodes, four on a leaf with a quarter of the cables up."""
    cluster = machine()
    near = ParallelPlan(tp=8, pp=4, dp=16, placement="tp-cp-pp-dp")
    usual = near.replace(placement="tp-cp-dp-pp")
    # Pipelines of four nodes stay under their leaf; every replica's ring leaves it with all its cards.
    assert send_share(near, cluster) == 1.0
    assert place_group("shards", near, cluster).card_share == pytest.approx(1 / 4)
    assert send_share(usual, cluster) == pytest.approx(1 / 4)
    assert (
        place_group("shards", usual, cluster).card_share == 1.0
    )  # one node of a leaf's four sends up, one gets from above
    # Tensor parallelism over the farthest GPUs goes over the network, and leaves its leaf.
    far = ParallelPlan(tp=8, pp=4, dp=16, placement="pp-dp-cp-tp")
    tensor = place_group("tp", far, cluster)
    assert (tensor.per_domain, tensor.card_share) == (1, pytest.approx(1 / 4))


def test_groups_of_experts_that_straddle_racks_are_said_and_priced(scenarios):
    """Two groups of 32 fit into a rack of 72 GPUs; the third lies over two racks, eight of its members in the first."""
    file, cluster = scenarios / "qwen3-235b-a22b-256-h100.yaml", ["cluster.node=gb200-tray", "profile=b200"]
    times = {}
    for domain in (72, 64):
        scenario = load_scenario(file, [*cluster, f"cluster.nvlink_domain_gpus={domain}", "cluster.num_nodes=144"])
        group = place_group("ep", scenario.plan, scenario.cluster)
        said = [line for line in placement.assumed(scenario) if "share experts" in line]
        times[domain] = float(all_to_all(1e9, group, Fabric.of(scenario.cluster, scenario.profile)))
        assert (group.num_domains, len(said)) == ((2, 1) if domain == 72 else (1, 0))
        assert all("groups of 32 GPUs that share experts lie over 2 NVLink domains of 72" in line for line in said)
    assert times[72] > 2 * times[64]
