"""All-reduces that NVLink's switches add up (NVLS), beside published ones; who has them, and what they leave alone."""

import pytest

from sim.costs.collectives import Fabric, all_gather, all_reduce, reduce_scatter
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.loading import resolve

GIB = 2.0**30


def machine(node, profile, num_nodes=2):
    data = resolve({"name": node, "node": node, "num_nodes": num_nodes}, "cluster")
    return ClusterSpec.read(data, node), Profile.read(load_preset("profiles", profile), profile)


def fabric(node, profile, **changes):
    return Fabric.of(*machine(node, profile), **changes)


def bus_bandwidth(links, gpus, nbytes, nodes=1):
    """As nccl-tests prints it.  [GB/s]"""
    group = Group(gpus, gpus // nodes, spans=nodes)
    return 2 * (gpus - 1) / gpus * nbytes / float(all_reduce(nbytes, group, links)) / 1e9


# stas00/ml-engineering:network/README.md@744d01e18b, all-reduces of 8 GiB by NCCL's own choice.
@pytest.mark.parametrize(
    ("node", "profile", "measured", "within"),
    [
        ("dgx-h200", "h200", {4: 363.3, 5: 414.2, 6: 435.6, 7: 460.0, 8: 473.1}, 0.03),
        ("dgx-b200", "b200", {4: 673.2, 5: 677.8, 6: 778.2, 7: 811.2, 8: 838.0}, 0.06),
    ],
)
def test_a_node_as_nccl_measures_it(node, profile, measured, within):
    links, ring = fabric(node, profile), fabric(node, profile, nvls=False)
    for gpus, gb_per_s in measured.items():
        assert bus_bandwidth(links, gpus, 8 * GIB) == pytest.approx(gb_per_s, rel=within)
    assert bus_bandwidth(ring, 8, 8 * GIB) < 0.83 * bus_bandwidth(links, 8, 8 * GIB)


# NVIDIA/dgxc-benchmarking:nccl/README.md@841f5466cd, nccl-tests on 8 H100 of a DGX: microseconds of an all-reduce of so
# many bytes.
CURVE = {
    2**15: 19.3, 2**18: 20.4, 2**20: 27.4, 2**22: 54.2, 2**24: 123.8, 2**26: 324.7, 2**28: 1112.5, 2**30: 4029.4,
    2**32: 15749.0, 2**34: 62648.0,
}  # fmt: skip


def test_every_size_on_eight_h100():
    links = fabric("dgx-h100", "h100")
    found = {size: 1e6 * float(all_reduce(float(size), Group(8, 8), links)) for size in CURVE}
    assert found == pytest.approx(CURVE, rel=0.2)
    # In the 1 GB of the question: 352 GB/s by rings, 450 to 480 as published.
    assert 450 < bus_bandwidth(links, 8, GIB) < 480


def test_gathers_and_scatters_run_in_rings_whatever_switches_can():
    # NVLS of these needs registered buffers: NCCL measured them at its ring's 361 and 363 GB/s on 8 H200.
    with_it, without = (fabric("dgx-h200", "h200", nvls=nvls) for nvls in (True, False))
    for collective, gb_per_s in ((all_gather, 361.4), (reduce_scatter, 362.9)):
        seconds = float(collective(16 * GIB, Group(8, 8), with_it))
        assert seconds == float(collective(16 * GIB, Group(8, 8), without))
        assert 7 / 8 * 16 * GIB / seconds / 1e9 == pytest.approx(gb_per_s, rel=0.02)
