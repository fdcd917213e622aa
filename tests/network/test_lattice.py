"""Where groups lie under any order of the dimensions: every lattice holds the groups that the ranks make."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.network import placement
from sim.network.lattice import RANKS, alike, lattice_of, places_of_ranks
from sim.network.placement import (
    Degrees,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    hops_of,
    send_share,
    sharding_group,
    tensor_group,
)
from sim.network.ranks import gpu_of_rank, members_of
from sim.network.sharing import Switches
from sim.specs import ClusterSpec, ParallelPlan
from sim.specs.loading import resolve

degree = st.sampled_from([1, 2, 3, 4, 6, 8])
orders = st.permutations(RANKS).map("-".join)


def sorted_rows(groups):
    groups = np.sort(groups, axis=1)
    return groups[np.lexsort(groups.T[::-1])]


@settings(max_examples=300)
@given(degrees=st.tuples(degree, degree, degree, degree), order=orders, data=st.data())
def test_a_lattice_holds_the_groups_of_the_ranks(degrees, order, data):
    count = int(np.prod(degrees))
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    stride = data.draw(st.sampled_from(divisors))
    size = data.draw(st.sampled_from([each for each in divisors if count // stride % each == 0]))
    lattice = lattice_of(size, stride, order, degrees)
    found, ranks = lattice.groups(), places_of_ranks(order, degrees).ravel()[alike(size, stride, count)]
    assert (np.diff(found, axis=1) > 0).all()
    np.testing.assert_array_equal(sorted_rows(found), sorted_rows(ranks))


def test_plans_that_cut_differently_share_lattices():
    """So that what switches leave is found once: replicas of eight GPUs' groups lie alike under all these plans."""
    plans = [(8, 1, 6, 4), (4, 2, 6, 4), (2, 4, 6, 4)]  # tp, cp, dp, pp
    assert len({lattice_of(6, 8, "tp-cp-pp-dp", degrees) for degrees in plans}) == 1
    assert lattice_of(24, 4, "tp-cp-dp-pp", (4, 2, 12, 1)).steps == ((24, 4),)
    assert lattice_of(12, 4, "tp-cp-pp-dp", (4, 2, 6, 4)).steps == ((2, 4), (6, 32))
    assert lattice_of(6, 1, "tp-pp-cp-dp", (4, 1, 6, 2)).dealt is not None  # six of four times six: no lattice


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
    sizes=st.tuples(small, small, small, small),
    order=orders,
    domain=st.sampled_from([8, 72]),
    fragmentation=st.sampled_from([0.0, 0.5]),
    ep=st.sampled_from([1, 2, 4, 6]),
)
def test_groups_and_hops_by_hand(sizes, order, domain, fragmentation, ep):
    tp, cp, dp, pp = sizes
    assume(tp * cp * dp % ep == 0)
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, placement=order)
    cluster = machine(domain, fragmentation=fragmentation, nodes=288)
    assume(plan.num_gpus <= cluster.num_gpus)
    gpus = gpu_of_rank(plan, cluster)
    places = {"tp": tensor_group, "cp": context_group, "ep": expert_group}
    places |= {"shards": data_group, "expert_shards": expert_data_group}
    for name, place in places.items():
        groups = np.concatenate([members_of(name, plan, each) for each in gpus])
        found = place(plan, cluster)
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


@given(sizes=st.tuples(small, small, small, small), rails=st.booleans(), domain=st.sampled_from([8, 72]))
def test_the_way_of_any_order_gives_what_the_usual_orders_own_does(sizes, rails, domain):
    plan, cluster = Degrees(*sizes[:2], *sizes[2:]), machine(domain, rails=rails, nodes=288)
    kinds = (tensor_group, context_group, data_group, lambda plan, cluster: sharding_group(plan, cluster, plan.dp))
    assume(plan.num_gpus <= cluster.num_gpus)

    def found():
        groups = [place(plan, cluster) for place in kinds]
        crossing = hops_of(plan, cluster).cross(np.zeros(plan.pp, dtype=int), np.arange(plan.pp)).tolist()
        return [each.num_domains for each in groups], groups, send_share(plan, cluster), crossing

    with pytest.MonkeyPatch.context() as patch:
        usual = found()
        patch.setattr(placement, "_in_order", lambda plan, cluster: False)
        assert found() == usual


def test_shares_of_other_orders_by_hand():
    """Sixty-four nodes, four on a leaf with a quarter of the cables up."""
    cluster = machine()
    near = ParallelPlan(tp=8, pp=4, dp=16, placement="tp-cp-pp-dp")
    usual = near.replace(placement="tp-cp-dp-pp")
    # Pipelines of four nodes stay under their leaf; every replica's ring leaves it with all its cards.
    assert send_share(near, cluster) == 1.0
    assert data_group(near, cluster).card_share == pytest.approx(1 / 4)
    assert send_share(usual, cluster) == pytest.approx(1 / 4)
    assert data_group(usual, cluster).card_share == 1.0  # one node of a leaf's four sends up, one gets from above
    # Tensor parallelism over the farthest GPUs goes over the network, and leaves its leaf.
    far = ParallelPlan(tp=8, pp=4, dp=16, placement="pp-dp-cp-tp")
    assert (tensor_group(far, cluster).per_domain, tensor_group(far, cluster).card_share) == (1, pytest.approx(1 / 4))


def test_each_lattice_is_routed_once(monkeypatch):
    cluster, routed = machine(ratio=2.0), []
    whole = Switches._fullest
    monkeypatch.setattr(Switches, "_fullest", lambda self, *flows: routed.append(1) or whole(self, *flows))
    for tp, cp in ((8, 1), (4, 2), (2, 4)):
        for _ in range(3):
            data_group(Degrees(tp, cp, 4, 16, placement="tp-cp-pp-dp"), cluster)
            send_share(Degrees(tp, cp, 4, 16, placement="tp-cp-pp-dp"), cluster)
    assert len(routed) == 4  # three groups of replicas that differ, and one kind of pipelines
