"""What share of its NVLink a group inside one node can use: all of it behind a switch, less in a mesh.

In the hybrid cube mesh a collective runs on rings along direct links. A group whose links form no ring falls back to a
chain. In a full mesh every pair has a link of its own, and a group uses those to its own members.
"""

from __future__ import annotations

import numpy as np

from sim.errors import SpecError

CUBE_MESH_LINKS = (6.0, 6.0, 1.0, 2.0, 4.0, 1.6, 2.0, 4.0, 6.0)
"""Of a GPU's six links, those whose bandwidth an all-reduce over the first 0 … 8 GPUs of DGX-1's hybrid cube mesh gets.

There are as many as rings fit on the mesh's links (NVIDIA DGX-1 with Tesla V100 System Architecture, WP-08437-002,
figure 4), each in one direction of a link. Two GPUs have their link. No ring joins the first five: a chain moves
2 (n−1)/n of a ring's bus bandwidth in twice the traffic, since its all-reduce sends the buffer up and down every link.
"""


def nvlink_shares(topology: str, domain_gpus: int) -> np.ndarray:
    """Return the share of the NVLink bandwidth for groups of 0 … domain_gpus GPUs; a pair's is also that of a send.

    In a full mesh n members have n − 1 of a GPU's N − 1 links: whether rings run along them, n − 1 at once, or every
    member sends each of the others its piece directly, all of them are in use.

    Raises
    ------
    SpecError
        A mesh of another size than the one that was built.
    """
    if topology == "switch":
        return np.ones(domain_gpus + 1)
    if topology == "full_mesh":
        others = np.maximum(np.arange(domain_gpus + 1) - 1, 0) / max(domain_gpus - 1, 1)
        return np.where(others > 0, others, 1.0)
    if domain_gpus >= len(CUBE_MESH_LINKS):
        raise SpecError(f"a hybrid cube mesh joins 8 GPUs, not {domain_gpus}; set nvlink_topology to switch")
    return np.array(CUBE_MESH_LINKS[: domain_gpus + 1]) / 6.0
