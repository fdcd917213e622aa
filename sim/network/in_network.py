"""Trees in which switches add what passes: NVLS inside an NVLink domain, SHARP between nodes.

A member sends its data up once and receives the sum once; a link between switches carries one stream each way however
many members are below it.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import IntArray
from sim.network.topology import Topology, parent_of_group


def nvlink_tree(topology: Topology, gpus: IntArray) -> IntArray:
    """Links of a reduction over GPUs of one NVLink domain."""
    return np.concatenate([topology.start("nvlink", "up") + gpus, topology.start("nvlink", "down") + gpus])


def network_tree(topology: Topology, gpus: IntArray, number: int = 0, trunks: bool = True) -> IntArray:
    """Links of a reduction by the network's switches over GPUs of different nodes.

    Parameters
    ----------
    topology : Topology
    gpus : array of int
    number : int
        Which of the equal trees; reductions that run together should have different numbers.
    trunks : bool
        Name trunks instead of cables between switches, for flows routed adaptively. A tree is one stream and takes one
        cable's share of a trunk.
    """
    gpus = np.asarray(gpus)
    nics = np.unique(topology.nic_of_gpu(gpus))
    links = [
        topology.start(name, direction) + ends
        for name, ends in (("pcie", gpus), ("nic", nics))
        for direction in ("up", "down")
    ]
    levels = topology.levels
    node, local = np.divmod(nics, topology.nics_per_node)
    groups = [np.unique(topology.group_of(level, node, local)) for level in range(1, len(levels) + 1)]
    top = next(i for i, group in enumerate(groups) if len(group) == 1)
    switch = {int(groups[top][0]): number % levels[top].switches}
    for i in range(top - 1, -1, -1):
        level, above = levels[i], levels[i + 1]
        if trunks:
            links += [topology.start(f"{level.name} trunk", direction) + groups[i] for direction in ("up", "down")]
            continue
        parents, child = parent_of_group(topology, i + 1, groups[i])
        at = np.array([switch[parent] for parent in parents.tolist()])
        # The first cable of each group that ends at the parent's switch, as in sim.network.routing.
        cable = (at - child * level.cables_per_group) % above.switches
        switch = dict(zip(groups[i].tolist(), (cable // level.uplinks).tolist(), strict=True))
        for direction in ("up", "down"):
            links.append(topology.start(level.name, direction) + groups[i] * level.cables_per_group + cable)
    return np.concatenate(links)
