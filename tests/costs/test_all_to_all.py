"""All-to-alls: published bus bandwidths, and what handing tokens on inside a domain saves."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from rows import rows

from sim.costs.collectives import Fabric, all_gather, all_reduce, all_to_all, reduce_scatter
from sim.network.placement import Group
from sim.specs import Profile, build_scenario, load_preset, preset_names
from sim.work.routing import different


def fabric_of(cluster, profile):
    scenario = build_scenario(
        {
            "model": "gpt-1.7b", "cluster": cluster, "profile": profile, "stack": "megatron-core", "plan": {},
            "training": {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"},
        }
    )  # fmt: skip
    return Fabric.of(scenario.cluster, scenario.profile)


@pytest.mark.parametrize(
    ("cluster", "profile", "gpus", "per_domain", "busbw"),
    [
        ("superpod-a100", "a100", 8, 8, 210e9),
        ("superpod-h100", "h100", 8, 8, 320e9),
        ("superpod-b200", "b200", 8, 8, 640e9),
        ("superpod-a100", "a100", 32, 8, 24e9),
        ("superpod-h100", "h100", 32, 8, 48e9),
        ("superpod-gb200", "b200", 32, 32, 640e9),
    ],
)
def test_published_bus_bandwidth(cluster, profile, gpus, per_domain, busbw):
    """stas00/ml-engineering, all-to-all-bw-2025.png: peaks, so of large buffers; bus bandwidth is (n−1)/n of a rank's
    buffer over the time."""
    nbytes = 16e9
    seconds = float(all_to_all(nbytes, Group(gpus, per_domain), fabric_of(cluster, profile)))
    assert (gpus - 1) / gpus * nbytes / seconds == pytest.approx(busbw, rel=0.03)


def test_published_rate_of_kernels_that_send_tokens_once():
    """deepseek-ai/DeepEP:README.md: 4,096 tokens of 7,168 numbers for 8 of 256 experts, 16-bit combine inside a node of
    H800: 158 of about 160 GB/s that its NVLink gives in one direction, of what GPUs receive."""
    fabric = fabric_of({"preset": "superpod-h100", "node": "hgx-h800"}, "h100")
    nbytes = 4096 * 8 * 7168 * 2
    received = nbytes / 8 * 8 * (1 - (7 / 8) ** 8)
    rate = received / float(all_to_all(nbytes, Group(8, 8), fabric, 8))
    assert rate == pytest.approx(158e9, rel=0.15)


@pytest.mark.parametrize(("size", "published"), [(32, (57e9, 62.9e9)), (64, (50e9, 53.2e9))])
def test_published_rate_of_kernels_that_send_tokens_over_the_network_once(size, published):
    """deepseek-ai/DeepEP: tokens as above of which 8 experts lie in 4 of 8 groups, combined by 32 and 64 H800, and H100,
    whose cards give 50 GB/s: of what nodes receive, their own part included."""
    nodes, limit = size // 8, (4, 8)
    nbytes = 4096 * 8 * 7168 * 2
    received = nbytes / 8 * float(different(nodes, 8, limit))
    for node, rate in zip(("hgx-h800", "dgx-h100"), published, strict=True):
        fabric = fabric_of({"preset": "superpod-h100", "node": node}, "h100")
        for shared in (False, True):  # other groups that do the same leave it its rails
            seconds = float(all_to_all(nbytes, Group(size, 8, shares_network=shared), fabric, 8, limit))
            assert received / seconds == pytest.approx(rate, rel=0.12)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8, 16])
def test_nodes_that_hold_several_groups_of_experts(nodes):
    """DeepSeek-V3's 8 groups, of which a token's 8 experts are of 4, dealt over nodes in order: as counted."""
    rng = np.random.default_rng(1)
    parts = [np.array_split(np.arange(8), nodes), np.array_split(np.arange(8 * nodes) // nodes, nodes)][nodes > 8]
    place = {group: [node for node, part in enumerate(parts) if group in part] for group in range(8)}
    seen = 0
    for _ in range(1_500):
        groups = rng.choice(8, 4, replace=False)[rng.integers(0, 4, 8)]
        seen += len({rng.choice(place[group]) for group in groups})
    assert different(nodes, 8, (4, 8)) == pytest.approx(seen / 1_500, rel=0.03)
    assert different(nodes, 8, (8, 8)) == different(nodes, 8)


PROFILES = {name: Profile.read(load_preset("profiles", name), name) for name in preset_names("profiles")}
COLLECTIVES = {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter, "all_to_all": all_to_all}  # fmt: skip
GROUPS = [Group(*size, shares_network=True) for size in ((16, 8), (64, 8), (4, 1), (72, 36))]


@rows("name", sorted(PROFILES))
@rows("operation", sorted(COLLECTIVES))
def test_sharing_the_network_is_never_faster_than_having_it_alone(name, operation):
    """Whatever one group of an operation was measured at bounds what many at once reach, as shipped and as measured."""
    shipped = PROFILES[name].network
    own = {"base_latency_s": 1e-5, "hop_latency_s": 1e-5, "half_volume_bytes": 1e6}
    links = [shipped, *(shipped.replace(operations={operation: {**own, "efficiency": share}}) for share in (0.1, 0.4, 0.95)
             if operation != "all_reduce")]  # fmt: skip
    links += [link.replace(shared_efficiency=0.97) for link in links]
    for link, group, nbytes in product(links, GROUPS, (1e4, 1e7, 1e10)):
        benchmark = Fabric(PROFILES[name].nvlink, link.replace(job_efficiency=None), 450e9, 50e9)
        alone, beside = (
            COLLECTIVES[operation](nbytes, replace(group, shares_network=shares), benchmark) for shares in (False, True)
        )
        assert beside >= alone * (1 - 1e-12), (link.of(operation).efficiency, group, nbytes)
