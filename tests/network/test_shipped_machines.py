"""Switches, cables and bisection of every shipped cluster, with the sums that lead there."""

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
