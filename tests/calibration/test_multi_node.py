"""All-reduces across nodes: fits recover what made the data, and predict published ones they have not seen."""

import numpy as np
import pytest

from calibration.fit.links import NetworkPoint, fit_network
from calibration.multi_node import NETWORKS, all_to_all_efficiencies, read_points, score
from sim.costs.collectives import Fabric, all_reduce
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.loading import resolve

PROFILE = Profile.read(load_preset("profiles", "h100"), "h100")
NODE = ClusterSpec.read(resolve(load_preset("clusters", "superpod-h100"), "cluster"), "superpod-h100").node
B200 = Profile.read(load_preset("profiles", "b200"), "b200")
NODE_GB200 = ClusterSpec.read(resolve(load_preset("clusters", "superpod-gb200"), "cluster"), "superpod-gb200").node


def test_the_network_is_recovered_from_what_it_made():
    truth = {"efficiency": 0.6, "hop_latency_s": 4e-5, "half_volume_bytes": 2e7, "exponent": 0.6}
    ranks, nbytes = (grid.ravel() for grid in np.meshgrid([32, 64, 256], 2.0 ** np.arange(14, 34)))
    network = PROFILE.network.replace(**truth, shared_efficiency=None)
    times = all_reduce(nbytes, Group(ranks, 8), Fabric(PROFILE.nvlink, network, 450e9, 25e9))
    points = [NetworkPoint(int(n), 8, 25e9, s, t) for n, s, t in zip(ranks, nbytes, times, strict=True)]
    found = fit_network(points, NODE, PROFILE, in_switch=False)
    assert found.params == pytest.approx(truth, rel=0.2)
    assert found.params["efficiency"] == pytest.approx(0.6, rel=0.03)
    assert found.median_error < 0.01


def test_published_all_reduces_across_nodes(measurements):
    scores = [score(network, read_points(measurements / "collectives.csv", network)) for network in NETWORKS]
    assert sum(len(each.fitted) for each in scores) == 134
    sizes = np.abs(np.concatenate([each.sizes for each in scores]))
    assert np.median(sizes) < 0.08  # the README says 7 %; 15 % asked for
    assert np.quantile(sizes, 0.9) < 0.35
    counts = np.abs(np.concatenate([each.counts for each in scores]))
    assert len(counts) == 20
    assert np.median(counts) < 0.1  # the README says 8 %
    medians = {each.network.name: float(np.median(np.abs(each.sizes))) for each in scores}
    poor = {name for name, median in medians.items() if median > 0.15}
    # Two rows of two algorithms, and three of a network that was shared with others.
    assert poor == {"H200, EFA, 3,200 Gbit/s a node", "V100 and A100, Omni-Path in use"}


def test_twenty_racks_are_predicted_from_one_and_two(measurements):
    racks = next(network for network in NETWORKS if "NVL72" in network.name)
    points = read_points(measurements / "collectives.csv", racks)
    largest = sorted(points, key=lambda point: (point.num_ranks, point.nbytes))[-1]
    assert (largest.num_ranks, largest.nbytes) == (1440, 2**34)
    few = [point for point in points if point.num_ranks < 1440]
    found = fit_network(few, NODE_GB200, B200, in_switch=True, always=True)
    misfit = fit_network([largest], NODE_GB200, B200, in_switch=True, always=True).misfit
    assert abs(np.expm1(misfit(found.params))) < 0.05  # half the pace of two racks: NVLS trees relay


def test_all_to_all_of_two_generations_reaches_the_same_share_of_its_cards(measurements):
    shares = all_to_all_efficiencies(measurements / "collectives.csv")
    assert shares["H100"] == pytest.approx(shares["A100"], rel=0.02)
