"""All-reduces across nodes: fits recover what made the data, and predict published ones they have not seen."""

import numpy as np
import pandas as pd
import pytest

from flopcast_calibration.fit.links import fit_network
from sim.costs.collectives import Fabric, all_reduce
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.loading import resolve
from tests.published_fits import NETWORKS, all_to_all_efficiencies, read_points, score

PROFILE = Profile.read(load_preset("profiles", "h100"), "h100")
PROFILE = PROFILE.replace(nvlink=PROFILE.nvlink.replace(in_switch_efficiency=None))  # as of NCCL_NVLS_ENABLE=0
NODE = ClusterSpec.read(resolve(load_preset("clusters", "superpod-h100"), "cluster"), "superpod-h100").node
B200 = Profile.read(load_preset("profiles", "b200"), "b200")
NODE_GB200 = ClusterSpec.read(resolve(load_preset("clusters", "superpod-gb200"), "cluster"), "superpod-gb200").node


def synthetic(truth, counts, noise=0.0):
    ranks, nbytes = (grid.ravel() for grid in np.meshgrid(counts, 2.0 ** np.arange(13, 34)))
    network = PROFILE.network.replace(**truth, shared_efficiency=None, job_efficiency=None)
    times = all_reduce(nbytes, Group(ranks, 8), Fabric(PROFILE.nvlink, network, 450e9, 25e9))
    times = times * np.exp(noise * np.random.default_rng(0).standard_normal(len(times)))
    rows = {"num_ranks": ranks, "per_domain": 8, "network_bytes_per_s": 25e9, "nbytes": nbytes, "time_s": times}
    return pd.DataFrame(rows)


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("latency_s", [1e-5, 4e-5, 2e-4])
def test_the_network_is_recovered_from_what_it_made(latency_s, trees):
    truth = {"efficiency": 0.6, "hop_latency_s": latency_s, "half_volume_bytes": 2e7, "exponent": 0.6}
    made = truth | {"two_domain_trees": trees}
    found = fit_network(synthetic(made, [16, 32, 64, 256], noise=0.02), NODE, PROFILE)
    assert found.params["efficiency"] == pytest.approx(0.6, rel=0.05)
    assert found.params["hop_latency_s"] == pytest.approx(latency_s, rel=0.05)
    assert bool(found.params["two_domain_trees"]) == trees
    # … and other numbers of nodes are as predicted.
    unseen = synthetic(made, [24, 128, 1024])
    misfit = fit_network(unseen, NODE, PROFILE).misfit(found.params)
    assert np.abs(np.expm1(misfit)).max() < 0.05


@pytest.mark.thorough
def test_published_all_reduces_across_nodes(measurements):
    scores = [score(network, read_points(measurements, network)) for network in NETWORKS]
    assert sum(len(each.fitted) for each in scores) == 277
    sizes = np.abs(np.concatenate([each.sizes for each in scores]))
    assert np.median(sizes) < 0.05  # docs/network.md says 4 %
    assert np.quantile(sizes, 0.9) < 0.35
    counts = {each.network.name: np.abs(each.counts) for each in scores if len(each.counts)}
    assert sum(map(len, counts.values())) == 114
    # Numbers of nodes left out: A100 from 2 to 16 nodes, one to twenty racks of GB200.
    assert np.median(counts["A100, InfiniBand HDR (Azure)"]) < 0.08
    assert np.median(counts["GB200 NVL72, InfiniBand NDR"]) < 0.08
    medians = {each.network.name: float(np.median(np.abs(each.sizes))) for each in scores}
    poor = {name for name, median in medians.items() if median > 0.15}
    # Two rows of two algorithms, and three of a network that was shared with others.
    assert poor == {"H200, EFA, 3,200 Gbit/s a node", "V100 and A100, Omni-Path in use"}


def test_twenty_racks_are_predicted_from_one_and_two(measurements):
    racks = next(network for network in NETWORKS if "NVL72" in network.name)
    points = read_points(measurements, racks)
    largest = points.sort_values(["num_ranks", "nbytes"]).iloc[-1:]
    assert largest[["num_ranks", "nbytes"]].values.tolist() == [[1440, 2**34]]
    few = points[points.num_ranks < 1440]
    found = fit_network(few, NODE_GB200, B200, in_switch=True, always=True)
    misfit = fit_network(largest, NODE_GB200, B200, in_switch=True, always=True).misfit
    assert abs(np.expm1(misfit(found.params))) < 0.05  # half the pace of two racks: NVLS trees relay


def test_all_to_all_of_two_generations_reaches_the_same_share_of_its_cards(measurements):
    shares = all_to_all_efficiencies(measurements)
    assert shares["H100"] == pytest.approx(shares["A100"], rel=0.02)
