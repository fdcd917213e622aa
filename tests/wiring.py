"""Who is cabled to whom, link by link: what routes must follow and flows through a graph are checked against."""

from itertools import pairwise

import numpy as np

from sim.network.topology import build_topology, parent_of_group, switch_counts
from sim.traffic.streams import build_traffic


def endpoints(topology):
    """(from, to) of every link that is not a trunk, as numbers of vertices, and what the numbers stand for.

    Vertices are numbered kind by kind: GPUs ("gpu"), NVSwitch domains ("nvswitch"), cards ("nic"), switches by level.
    The third value maps each kind to (first number, count).
    """
    counts = {"gpu": topology.num_gpus, "nvswitch": topology.num_domains, "nic": topology.num_nics}
    counts |= switch_counts(topology)
    firsts = np.cumsum([0, *counts.values()])
    vertices = {kind: (int(first), count) for first, (kind, count) in zip(firsts[:-1], counts.items(), strict=True)}
    gpus, nics = np.arange(topology.num_gpus), np.arange(topology.num_nics)
    pairs = [
        (gpus, vertices["nvswitch"][0] + gpus // topology.domain_gpus),
        (gpus, vertices["nic"][0] + topology.nic_of_gpu(gpus)),
        (vertices["nic"][0] + nics, vertices[topology.levels[0].name][0] + topology.groups_of_nics[0]),
    ]
    for number, (level, above) in enumerate(pairwise(topology.levels), start=1):
        group, cable = np.divmod(np.arange(level.groups * level.cables_per_group), level.cables_per_group)
        parent, child = parent_of_group(topology, number, group)
        switch = (child * level.cables_per_group + cable) % above.switches
        lower = group * level.switches + cable // level.uplinks
        upper = parent * above.switches + switch
        pairs.append((vertices[level.name][0] + lower, vertices[above.name][0] + upper))
    source = np.concatenate([side for low, high in pairs for side in (low, high)])
    target = np.concatenate([side for low, high in pairs for side in (high, low)])
    return source, target, vertices


def laid_out(scenario, order, costs):
    """The streams of a scenario on its sound cluster."""
    topology = build_topology(scenario.cluster)
    return build_traffic(scenario, costs, order.rank_of_stage, order.copies, topology, np.ones(topology.num_links))
