"""What share of its NVLink a group inside one node can use: all of it behind a switch, less in a mesh.

In the hybrid cube mesh a collective runs on rings along direct links. A group whose links form no ring falls back to a
chain. In a full mesh every pair has a link of its own, and a group uses those to its own members.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np

from sim.errors import SpecError

#: Links between the GPUs of the hybrid cube mesh of DGX-1 with V100: (GPU, GPU) -> links; six a GPU.
#: NVIDIA DGX-1 with Tesla V100 System Architecture, WP-08437-002, figure 4.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
_LINKS = 6
_GPUS = 8


@cache
def mesh_shares() -> np.ndarray:
    """Share of a GPU's NVLink bandwidth for all-reduces over the first n GPUs of the mesh, n = 0 … 8.

    Each ring uses one link's bandwidth in one direction. A chain moves 2 (n−1)/n of a ring's bus bandwidth in twice the
    traffic: its all-reduce sends the buffer up and down every link once, at one link's rate.
    """
    shares = np.ones(_GPUS + 1)
    for n in range(2, _GPUS + 1):
        rings = 1 if n == 2 else 2 * _most_rings(_cycles(n), dict(_CUBE_MESH))
        shares[n] = (rings or 2 * (n - 1) / n) / _LINKS
    return shares


def _links(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


@cache
def _cycles(n: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Rings through the first n GPUs along direct links, each as its links, either direction once."""
    found = []
    for middle in permutations(range(1, n)):
        if middle[0] < middle[-1]:
            ring = tuple(_links(a, b) for a, b in zip((0, *middle), (*middle, 0), strict=True))
            if all(link in _CUBE_MESH for link in ring):
                found.append(ring)
    return tuple(found)


def _most_rings(cycles: tuple[tuple[tuple[int, int], ...], ...], free: dict[tuple[int, int], int]) -> int:
    """Most rings that fit on the links at once (a link carries as many as it is wide)."""
    best = 0
    for index, ring in enumerate(cycles):
        if all(free[link] for link in ring):
            rest = {link: width - (link in ring) for link, width in free.items()}
            best = max(best, 1 + _most_rings(cycles[index:], rest))
            if best == _LINKS // 2:  # every link of every GPU is in use
                break
    return best


def nvlink_shares(topology: str, domain_gpus: int) -> np.ndarray:
    """Share of the NVLink bandwidth for groups of 0 … domain_gpus GPUs; a pair's is also that of a send.

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
    if domain_gpus > _GPUS:
        raise SpecError(f"a hybrid cube mesh joins {_GPUS} GPUs, not {domain_gpus}; set nvlink_topology to switch")
    return mesh_shares()[: domain_gpus + 1]
