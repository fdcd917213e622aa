"""Where groups lie: the worst one, found by looking at every group of every plan."""

from itertools import permutations, product

import pytest
from rows import rows

from sim.network.placement import CUBE_MESH_LINKS, hops_of, place_group
from sim.specs import ClusterSpec, ParallelPlan
from sim.specs.loading import resolve


def cluster(domain):
    node = {"preset": "gb200-tray"} if domain == 72 else "dgx-a100-80gb"
    return ClusterSpec.read(
        resolve({"name": "c", "node": node, "num_nodes": 4096, "nvlink_domain_gpus": domain}, "cluster"), "cluster"
    )


def by_hand(groups, domain):
    """(fewest members in a domain, most domains) over all groups."""
    counts = [[len([g for g in group if g // domain == d]) for d in {g // domain for g in group}] for group in groups]
    return min(min(c) for c in counts), max(len(c) for c in counts)


@rows("domain", [8, 72])
@rows("plan", [*product((1, 2, 3, 5, 6, 8, 16), (1, 3, 4, 6, 12), (1, 2, 4))])
def test_the_slowest_group_counts(plan, domain):
    tp, dp, pp = plan
    record, machine = ParallelPlan(tp=tp, dp=dp, pp=pp), cluster(domain)
    gpu = lambda p, d, t: (p * dp + d) * tp + t  # noqa: E731
    tensor = [[gpu(p, d, t) for t in range(tp)] for p in range(pp) for d in range(dp)]
    data = [[gpu(p, d, t) for d in range(dp)] for p in range(pp) for t in range(tp)]
    for groups, found in ((tensor, place_group("tp", record, machine)), (data, place_group("shards", record, machine))):
        assert (found.per_domain, found.num_domains) == by_hand(groups, domain)
    for p in range(pp):
        crossing = any(
            gpu(p, d, t) // domain != gpu((p + 1) % pp, d, t) // domain for d in range(dp) for t in range(tp)
        )
        assert hops_of(record, machine).cross(p, (p + 1) % pp) == crossing


@rows("domain", [8, 72])
@rows("plan", [*product((1, 2, 3, 8), (2, 4, 6), (1, 3, 4), (1, 2))])
def test_context_parallel_ranks_sit_between_tensor_and_data(plan, domain):
    tp, cp, dp, pp = plan
    record, machine = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp), cluster(domain)
    gpu = lambda p, d, c, t: ((p * dp + d) * cp + c) * tp + t  # noqa: E731
    context = [[gpu(p, d, c, t) for c in range(cp)] for p in range(pp) for d in range(dp) for t in range(tp)]
    data = [[gpu(p, d, c, t) for d in range(dp) for c in range(cp)] for p in range(pp) for t in range(tp)]
    for groups, found in (
        (context, place_group("cp", record, machine)),
        (data, place_group("shards", record, machine)),
    ):
        assert (found.per_domain, found.num_domains) == by_hand(groups, domain)


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
