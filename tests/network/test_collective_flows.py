"""Rates of flows against a linear programme; and collectives as flows, link by link, against the formulas."""

from typing import NamedTuple

import numpy as np
import pytest
from flows import IDEAL, flows_on
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import rows

from sim.costs import collectives as formulas
from sim.costs.collectives import Fabric
from sim.engines.wire import Flows, max_min_rates
from sim.network.placement import Group
from sim.network.routing import route
from sim.specs import Profile, load_preset
from sim.traffic import streams


class Phase(NamedTuple):
    """Flows that run together, each with its bytes."""

    source: np.ndarray
    target: np.ndarray
    nbytes: np.ndarray


def ring(placement, nbytes, passes):
    return () if placement.size == 1 else (Phase(*streams.ring(placement, nbytes, passes)),)


def ring_all_reduce(placement, nbytes):
    return ring(placement, nbytes, 2)


def one_pass(placement, nbytes):
    return ring(placement, nbytes, 1)


def tree_all_reduce(placement, nbytes):
    """Double binary tree between domains, chains inside them, up and down at once (Sanders, Speck, Träff 2009)."""
    domains, per_domain = placement.shape
    parents, ranks = _tree_parents(domains), np.arange(domains)
    # The second tree is the first with the domains renamed so that its leaves branch here.
    renamed = np.argsort(domains - 1 - ranks if domains % 2 == 0 else (ranks - 1) % domains)
    child = np.flatnonzero(parents >= 0)
    source, target = (
        np.concatenate([placement[ends], placement[renamed[ends]]]).ravel() for ends in (child, parents[child])
    )
    share = nbytes / 2 / per_domain
    # Channel c gathers on member c: a chain from c − 1 down to c + 1 … to c, and back.
    turn = (np.arange(per_domain)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    chain = placement[:, turn]  # domain, channel, from the head on
    links = chain[:, :, 1:].ravel(), chain[:, :, :-1].ravel()
    sizes = np.concatenate([np.full(2 * source.size, share), np.full(2 * links[0].size, 2 * share)])
    return (Phase(np.concatenate([source, target, *links]), np.concatenate([target, source, *links[::-1]]), sizes),)


def _tree_parents(n):
    """Parent of each rank (-1: none): one whose lowest set bit is 2ᵏ hangs under a neighbour with 2ᵏ⁺¹."""
    parents = np.full(n, -1)
    for rank in range(1, n):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        parents[rank] = parent if parent < n else rank ^ bit
    return parents


def hierarchical_all_reduce(placement, nbytes):
    """Reduce-scatter inside each domain, ring all-reduce of the shares between domains, all-gather inside."""
    inside = _together([ring(row[np.newaxis], nbytes, 1) for row in placement])
    rails = [ring(column[:, np.newaxis], nbytes / placement.shape[1], 2) for column in placement.T]
    return (*inside, *_together(rails), *inside)


def _together(patterns):
    """Patterns alike, of different members, run at the same time."""
    return tuple(Phase(*map(np.concatenate, zip(*phases, strict=True)))
                 for phases in zip(*patterns, strict=True))  # fmt: skip


def bytes_on_links(phase, topology, routing="adaptive", subflows=1):
    paths = route(topology, phase.source, phase.target, routing, subflows=subflows)
    flow, place = np.nonzero(paths >= 0)
    sizes = np.repeat(phase.nbytes / subflows, subflows)
    return np.bincount(paths[flow, place], sizes[flow], minlength=topology.num_links)


def pattern_time(pattern, topology, routing="adaptive", subflows=1):
    """Time of a collective that has the machine to itself, without latency. [s]"""
    phases = (bytes_on_links(phase, topology, routing, subflows) for phase in pattern)
    return sum(float((carried / topology.capacity).max()) for carried in phases)


S = 1e9
NVLINK, NIC = 300e9, 25e9
PROFILE = Profile.read(load_preset("profiles", "a100"), "a100")
FABRIC = Fabric(*(each.replace(**IDEAL, operations={}) for each in (PROFILE.nvlink, PROFILE.network)), NVLINK, NIC)


def placed(domains, per_domain, first=0, apart=1):
    """Members 0 … per_domain − 1 of every `apart`-th node of 8 GPUs."""
    return first + np.arange(domains)[:, np.newaxis] * 8 * apart + np.arange(per_domain)


PLACEMENTS = [(1, 2), (1, 4), (1, 8), (2, 1), (2, 8), (3, 8), (5, 4), (6, 1), (16, 8), (17, 2)]


@rows("shape", PLACEMENTS, ids=str)
@rows(
    ("pattern", "formula"),
    [
        (ring_all_reduce, formulas.ring_all_reduce),
        (one_pass, formulas.all_gather),
        (one_pass, formulas.reduce_scatter),
        (hierarchical_all_reduce, formulas.hierarchical_all_reduce),
    ],
)
def test_alone_a_collective_takes_what_the_formula_says(machine, shape, pattern, formula):
    if pattern is hierarchical_all_reduce and shape[0] == 1:
        return  # inside one domain there is no hierarchy
    group = Group(shape[0] * shape[1], shape[1])
    # Spread over units, so that flows climb the tree: a full one slows nothing.
    for apart in (1, 8):
        topology = machine("superpod-a100")
        time = pattern_time(pattern(placed(*shape, apart=apart), S), topology)
        assert time == pytest.approx(float(formula(S, group, FABRIC)), rel=1e-6)


@rows("domains", [4, 5, 8, 9, 16, 17])
@rows("per_domain", [1, 4, 8])
def test_the_double_tree_moves_twice_the_buffer(machine, domains, per_domain):
    time = pattern_time(tree_all_reduce(placed(domains, per_domain), S), machine("superpod-a100"))
    assert time == pytest.approx(2 * S / (NIC * per_domain), rel=1e-6)
    # NCCL's tuner, which the formula follows, counts 2 (n − 1)/n of the buffer and a bandwidth 8 % lower.
    formula = formulas.tree_all_reduce(S, Group(domains * per_domain, per_domain), FABRIC)
    n = domains * per_domain
    assert time / formula == pytest.approx(0.92 * n / (n - 1))


@rows("per_domain", [1, 4])  # of eight cards NVLink's chains are the slower
def test_between_two_domains_the_double_tree_moves_the_buffer_once(machine, per_domain):
    time = pattern_time(tree_all_reduce(placed(2, per_domain), S), machine("superpod-a100"))
    formula = formulas.tree_all_reduce(S, Group(2 * per_domain, per_domain), FABRIC)
    assert time == pytest.approx(S / (NIC * per_domain), rel=1e-6)
    assert formula == pytest.approx(time / 0.92, rel=1e-6)


def test_pcie_limits_what_a_card_could_send(small_machine):
    levels = {"leaf": {"ports": 8, "below": 4}}
    topology = small_machine(levels, 4, rail_optimised=False, gpus=1, pcie_bandwidth="16 GB/s")
    assert max_min_rates(flows_on(route(topology, [0], [3])), topology.capacity) == pytest.approx(16e9)
    # Two GPUs behind one card share it, whatever their PCIe.
    shared = small_machine(levels, 4, rail_optimised=False, gpus=2, nics=1, pcie_bandwidth="16 GB/s")
    flows = flows_on(route(shared, [0, 1], [6, 7]))
    np.testing.assert_allclose(max_min_rates(flows, shared.capacity), NIC / 2)


def matrix(flows, num_links):
    """Bytes on every link (row) for a byte of every flow (column)."""
    result = np.zeros((num_links, flows.num_flows))
    np.add.at(result, (flows.link, flows.flow), flows.load)
    return result


def lexicographic_maximum(flows, capacity):
    """Max-min rates by linear programmes: raise the least rate, freeze the flows that cannot exceed it, repeat."""
    from scipy.optimize import linprog

    use, n = matrix(flows, len(capacity)), flows.num_flows
    frozen: dict[int, float] = {}
    while len(frozen) < n:
        bounds = [(frozen.get(f, 0.0), frozen.get(f)) for f in range(n)] + [(0, None)]
        rises = np.array(
            [[-(f == g) for g in range(n)] + [flows.share[f]] for f in range(n) if f not in frozen], dtype=float
        )
        constraints = np.vstack([np.hstack([use, np.zeros((len(capacity), 1))]), rises])
        limits = np.concatenate([capacity, np.zeros(len(rises))])
        best = linprog([0.0] * n + [-1.0], constraints, limits, bounds=bounds)
        level = best.x[-1]
        floor = [(frozen.get(f, level * flows.share[f] * (1 - 1e-9)), frozen.get(f)) for f in range(n)]
        for f in set(range(n)) - set(frozen):
            alone = linprog([-(f == g) for g in range(n)], use, capacity, bounds=floor)
            if alone.x[f] <= level * flows.share[f] * (1 + 1e-6):
                frozen[f] = level * flows.share[f]
    return np.array([frozen[f] for f in range(n)])


@st.composite
def networks(draw, max_flows=6, max_links=5):
    """(flows, capacity): every flow on one link at least; loads and shares of all sorts."""
    num_links = draw(st.integers(1, max_links))
    num_flows = draw(st.integers(1, max_flows))
    paths = [draw(st.sets(st.integers(0, num_links - 1), min_size=1)) for _ in range(num_flows)]
    numbers = st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.0, 3.0])
    flow = np.repeat(np.arange(num_flows), [len(path) for path in paths])
    link = np.array([link for path in paths for link in sorted(path)])
    load = np.array([draw(numbers) for _ in flow])
    share = np.array([draw(numbers) for _ in paths])
    capacity = np.array([draw(st.sampled_from([1.0, 2.0, 5.0, 7.0, 10.0])) for _ in range(num_links)])
    return Flows(num_flows, flow, link, load, share), capacity


@settings(max_examples=10)
@given(network=networks())
def test_rates_are_the_linear_programmes(network):
    flows, capacity = network
    np.testing.assert_allclose(max_min_rates(flows, capacity), lexicographic_maximum(flows, capacity), rtol=1e-6)


@given(network=networks(30, 12))
def test_no_link_is_overfull_and_every_flow_is_held_back_by_a_full_link_on_which_none_is_faster(network):
    flows, capacity = network
    rates = max_min_rates(flows, capacity)
    use = matrix(flows, len(capacity))
    load = use @ rates
    assert (load <= capacity * (1 + 1e-9)).all()
    level = rates / flows.share
    for flow in range(flows.num_flows):
        full = (use[:, flow] > 0) & (load >= capacity * (1 - 1e-9))
        assert any(level[flow] >= level[use[link] > 0].max() * (1 - 1e-9) for link in np.flatnonzero(full))


def test_no_limit_and_no_capacity():
    flows = flows_on(np.array([[-1, -1], [0, -1], [1, -1], [0, 1]]))
    assert max_min_rates(flows, np.array([np.inf, 0.0])).tolist() == [np.inf, np.inf, 0.0, 0.0]
