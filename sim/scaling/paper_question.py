"""Lamy-Poirier's question as a scenario: X_x on A100 in NVLink domains of 16, with a network or an ideal one.

Lamy-Poirier 2021, arXiv:2106.02679; only the abstract was read. What it supposes of machine and model is an assumption.
"""

from __future__ import annotations

from sim.errors import SpecError
from sim.scaling.lamy_poirier import STEPS, family
from sim.specs import Scenario, build_scenario

DOMAIN = 16
"""GPUs that NVLink joins, and so the largest tensor-parallel degree of the paper's plans (not verified)."""
VOCABULARY = 51_200
"""Assumption: the paper counts no embeddings; this is Megatron's padded GPT-2 vocabulary."""
NO_VOCABULARY = 16
"""As good as no embeddings and no head; as many words as the tensor-parallel ranks that share them."""
MATRICES = 4
"""Of a layer: query, key and value; attention's output; both of the MLP."""
IDEAL_NETWORK = {
    "efficiency": 1.0,
    "shared_efficiency": 1.0,
    "p2p_efficiency": 1.0,
    "hidden_share": 1.0,
    "base_latency_s": 0.0,
    "hop_latency_s": 0.0,
    "half_volume_bytes": 0.0,
}
"""A network that reaches its nominal bandwidth at any size, beside compute at no cost: as the paper counts it."""


def question(
    x: int,
    bandwidth: str = "200 Gbit/s",
    ideal_network: bool = False,
    efficiency: float | None = None,
    vocabulary: int = VOCABULARY,
) -> Scenario:
    """X_x on A100 in NVLink domains of 16, a network card each, for 100,000 steps at the critical batch.

    Where 16 GPUs cannot share the heads evenly, a domain has the most that can: 10 for X_1000.

    Parameters
    ----------
    bandwidth : str
        Of the network, a GPU and direction.
    ideal_network : bool
        That it reaches it, and costs compute nothing; else as the profile of A100 has it.
    efficiency : float, optional
        Share of its bandwidth that all traffic reaches. Default: the profile's.
    vocabulary : int
        Words; NO_VOCABULARY for the paper's models, which have only their layers.

    Raises
    ------
    SpecError
        No such model, or an efficiency of an ideal network.
    """
    if ideal_network and efficiency is not None:
        raise SpecError(f"an ideal network has no efficiency of {efficiency:g}; give one or the other")
    shape = family(x)
    domain = max(size for size in range(1, DOMAIN + 1) if x % size == 0)
    batch = max(1, int(shape.critical_batch_sequences))
    scenario = build_scenario(
        {
            "name": f"X_{x}",
            "model": {
                "name": f"x{x}",
                "num_layers": shape.num_layers,
                "hidden_size": shape.hidden_size,
                "num_heads": shape.num_heads,
                "vocab_size": vocabulary,
                "max_sequence_length": shape.sequence_length,
            },
            "cluster": {
                "preset": "generic-a100-16",
                "node": {"gpus_per_node": domain, "nics_per_node": domain},
                "num_nodes": batch,
                "inter_node_bandwidth": bandwidth,
            },
            "plan": {},
            "training": {
                "global_batch_size": batch,
                "sequence_length": shape.sequence_length,
                "precision": "fp16",
                "tokens": STEPS * shape.critical_batch_tokens,
            },
            "stack": "lamy-poirier",
            "profile": "a100",
        }
    )
    if efficiency is not None:
        scenario = scenario.replace(cluster=scenario.cluster.replace(network_efficiency=efficiency))
    if not ideal_network:
        return scenario
    profile = scenario.profile
    return scenario.replace(profile=profile.replace(network=profile.network.replace(**IDEAL_NETWORK)))


def with_wide_tensor(scenario: Scenario, tp: int) -> Scenario:
    """The same with as many nodes as the batch feeds when `tp` GPUs, of several nodes, share each layer.

    ZeRO gathers such layers matrix by matrix.
    """
    cluster = scenario.cluster
    nodes = scenario.training.global_batch_size * tp // cluster.node.gpus_per_node
    stack = scenario.stack.replace(gathers_per_layer=MATRICES)
    return scenario.replace(cluster=cluster.replace(num_nodes=nodes), stack=stack)
