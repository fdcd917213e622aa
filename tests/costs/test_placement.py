"""Rings on the hybrid cube mesh: as many as its links carry, and as fast as measured."""

from itertools import permutations

import pytest
from rows import rows

from sim.network.placement import CUBE_MESH_LINKS

#: Links between the GPUs of the hybrid cube mesh of DGX-1 with V100: (GPU, GPU) -> links; six a GPU.
#: NVIDIA DGX-1 with Tesla V100 System Architecture, WP-08437-002, figure 4.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def most_rings(rings, free):
    """Most rings that fit on the links at once (a link carries as many as it is wide)."""
    best = 0
    for place, ring in enumerate(rings):
        if all(free[link] for link in ring):
            best = max(best, 1 + most_rings(rings[place:], {link: free[link] - (link in ring) for link in free}))
            if best == 3:  # every link of every GPU is in use
                break
    return best


@rows("n", range(3, 9))
def test_rings_that_fit_on_the_hybrid_cube_mesh(n):
    rings = []
    for middle in permutations(range(1, n)):
        if middle[0] < middle[-1]:  # either direction once
            ring = [tuple(sorted(ends)) for ends in zip((0, *middle), (*middle, 0), strict=True)]
            rings += [ring] * all(link in CUBE_MESH for link in ring)
    assert CUBE_MESH_LINKS[n] == (2 * most_rings(rings, CUBE_MESH) or 2 * (n - 1) / n)


def test_rings_of_the_hybrid_cube_mesh():
    # Bus bandwidth of 2 … 8 V100 of a DGX-1 in links of 22.5 GB/s: VIA-Research/vTrain:trace/v100, 1 GiB.
    measured = {2: 22.6, 3: 45.1, 4: 85.4, 5: 37.2, 6: 45.7, 7: 87.0, 8: 134.5}
    for n, busbw in measured.items():
        assert CUBE_MESH_LINKS[n] * 22.4 == pytest.approx(busbw, rel=0.06)
