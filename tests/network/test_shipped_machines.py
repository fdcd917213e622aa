"""Switches, cables and bisection of every shipped cluster, with the sums that lead there."""

import math

import pytest

from sim.network.topology import bisection_bytes_per_s, cable_counts, switch_counts
from sim.specs import load_preset, preset_names

# Switches by level, leaf first; cables; bisection bandwidth per direction [bytes/s].
SHIPPED = {
    "dgx-2h-superpod": ((48, 48, 27), 2_496, 4.8e12),
    "ethernet-25": ((2048, 2048, 1024), 196_608, 102.4e12),
    "ethernet-100": ((2048, 2048, 1024), 196_608, 409.6e12),
    "ethernet-400": ((2048, 2048, 1024), 196_608, 1_638.4e12),
    "generic-a100-16": ((1280, 1536, 1024), 131_072, 512e12),
    "generic-infiniband": ((2048, 2048, 1024), 196_608, 819.2e12),
    "llama3-h100-roce": ((1536, 64, 8), 52_672, 24_576 / 2 * 50e9 / 7),
    "selene": ((224, 320, 112), 13_440, 56e12),
    "superpod-a100": ((56, 80, 28), 3_360, 14e12),
    "superpod-b200": ((512, 512, 256), 49_152, 409.6e12),
    "superpod-gb200": ((288, 384, 256), 30_720, 230.4e12),
    "superpod-h100": ((512, 512, 256), 49_152, 409.6e12),
    "superpod-h200": ((512, 512, 256), 49_152, 409.6e12),
    "vera-rubin-nvl144": ((36, 32), 2_304, 115.2e12),
}


def counts(topology):
    return tuple(switch_counts(topology).values())


def test_every_shipped_machine_is_counted():
    assert set(SHIPPED) == {name for name in preset_names("clusters") if "network" in load_preset("clusters", name)}


@pytest.mark.parametrize("name", SHIPPED)
def test_counts(machine, name):
    topology, (switches, cables, bisection) = machine(name), SHIPPED[name]
    assert counts(topology) == switches
    assert sum(cable_counts(topology).values()) == cables
    assert bisection_bytes_per_s(topology) == pytest.approx(bisection)


def test_the_sum_for_a_superpod_of_dgx_a100(machine):
    # Cited (RA-09950-001): seven units of 20 nodes, eight HDR rails, QM8790 switches of 40 ports; it grows to 560 nodes.
    units, nodes, rails, ports = 7, 20, 8, 40
    # Derived: a leaf takes a rail of a unit; what is not blocked leaves as many ports up as down.
    assert nodes + nodes == ports
    leaves = units * rails
    # Of a rail, seven leaves send up 140 cables. Half of a spine's ports take 20, so seven spines would have the ports,
    # but 20 cables of a leaf are not dealt to seven alike; ten is the first number that divides them.
    cables = units * nodes
    fewest = math.ceil(cables / (ports // 2))
    spines = next(number for number in range(fewest, nodes + 1) if nodes % number == 0)
    assert (fewest, spines) == (7, 10)
    down = cables // spines
    assert 2 * down <= ports  # 14 down and 14 up: twelve ports stay free
    cores = math.ceil(rails * spines * down / ports)
    assert counts(machine("superpod-a100")) == (leaves, rails * spines, cores) == (56, 80, 28)
    # 28 cores have 40 ports for 1,120 cables: none is free, so that of 560 nodes four times as many are the fewest.
    assert cores * ports == rails * cables == 1120
    assert counts(machine("selene")) == (4 * leaves, 4 * rails * spines, 4 * cores)


def test_the_sum_for_llama_3s_cluster(machine):
    # Cited (arXiv:2407.21783, section 3.3.1): racks of two servers, 192 racks a pod, eight pods, 1:7 above them.
    topology = machine("llama3-h100-roce")
    gpus = 8 * 192 * 16
    # Derived: a cluster switch of 576 ports takes 384 of a pod's 3,072 cables down (eight switches: the fewest that leave
    # ports for a seventh of them up and that every rack reaches alike) and has 55 up, a fraction of a cable being one.
    down = 3072 // 8
    up = 8 * 8 * math.ceil(down / 7)
    assert down + up // 64 <= 576
    assert cable_counts(topology) == {"node": gpus, "rack": gpus, "cluster": up}
    # Seven aggregation switches have the ports; eight share the 440 cables of a pod alike.
    assert (math.ceil(up / 576), 440 % 7, 440 % 8) == (7, 6, 0)
    assert counts(topology) == (8 * 192, 8 * 8, 8)


def test_the_sum_for_racks_of_nvl72(machine):
    # 128 racks of 18 trays of four; cards of one index of 32 trays share a leaf (an assumption).
    topology = machine("superpod-gb200")
    assert (topology.num_domains, topology.num_gpus) == (128, 9216)
    assert switch_counts(topology)["leaf"] == 128 * 18 // 32 * 4
    # A rail's 72 leaves make three groups of spines, the last a quarter full but cabled for all it can take.
    assert cable_counts(topology) == {"node": 9216, "leaf": 9216, "spine": 4 * 3 * 32 * 32}


def test_the_sum_for_a_tree_of_64_port_switches(machine):
    # k³/4 cards, k²/2 leaves, k²/2 spines, k²/4 cores (Al-Fares et al. 2008), whatever the rate.
    for name in ("ethernet-25", "ethernet-400"):
        assert machine(name).num_nics == 64**3 // 4
        assert counts(machine(name)) == (64**2 // 2, 64**2 // 2, 64**2 // 4)
