"""Lamy-Poirier's question: the models X_x, what their training takes by formula, and X_x on A100 as a scenario.

Lamy-Poirier 2021, "Layered gradient accumulation and modular pipeline parallelism", arXiv:2106.02679. Only the abstract
was read; the body is reconstructed, checked by calculation, and not verified against the paper's tables. What it
supposes of machine and model (NVLink domains of 16, with a network or an ideal one) is an assumption.

Conventions of intensities, FLOPs done for each byte moved: 16-bit numbers, bytes sent and received together, full
recomputation (8 FLOPs a parameter and token). Traffic hides if the intensity is at least the GPU's peak over the link's
bandwidth (both directions together). Otherwise it adds that ratio over the intensity to the compute time.
"""

from __future__ import annotations

from math import inf, nan
from typing import NamedTuple

from sim.errors import SpecError, require_positive
from sim.estimate import Estimate
from sim.scaling.loss_laws import critical_batch
from sim.specs import Scenario, build_scenario
from sim.specs.presets import load_preset, preset_names, raw_preset

HARDWARE_FLOP_PER_PARAM_TOKEN = 8.0
STEPS = 100_000
"""Length of a run at the critical batch that the paper assumes (not verified)."""
LARGEST = 2_000
"""Largest x of the family that is drawn or searched: centuries on any machine."""
DOMAIN = 16
"""GPUs that NVLink joins, and so the largest tensor-parallel degree of the paper's plans (not verified)."""
VOCABULARY = 51_200
"""Assumption: the paper counts no embeddings; this is Megatron's padded GPT-2 vocabulary."""
NO_VOCABULARY = 16
"""Smallest vocabulary, one row for each tensor-parallel rank: embedding and head cost nothing."""
MATRICES = 4
"""Weight matrices of a layer: query, key and value; attention's output; both of the MLP."""
IDEAL_NETWORK = dict.fromkeys(("efficiency", "shared_efficiency", "p2p_efficiency", "hidden_share"), 1.0) | (
    dict.fromkeys(("base_latency_s", "hop_latency_s", "half_volume_bytes"), 0.0)
)
"""A network that reaches its nominal bandwidth at any size and slows no concurrent compute: as the paper counts it."""


class FamilyModel(NamedTuple):
    """X_x: x layers, x heads of size x, hidden size x², sequences of 16x tokens, MLP of four times the hidden size."""

    x: int
    hidden_size: int
    sequence_length: int

    @property
    def params(self) -> float:
        """12 x⁵, without embeddings, norms and biases."""
        return 12.0 * self.x**5

    @property
    def critical_batch_tokens(self) -> float:
        """573 tokens times the cube root of the parameters: 82.0 x^(2/3) sequences.  [tokens]"""
        return float(critical_batch("lamy-poirier-2021", params=self.params))

    @property
    def critical_batch_sequences(self) -> float:
        """The critical batch in sequences."""
        return self.critical_batch_tokens / self.sequence_length

    @property
    def training_flop(self) -> float:
        """100,000 steps at the critical batch, with recomputation.  [FLOP]"""
        return HARDWARE_FLOP_PER_PARAM_TOKEN * self.params * self.critical_batch_tokens * STEPS


def family(x: int) -> FamilyModel:
    """X_x of the family; X_160 has 1.26 trillion parameters. An x that is not positive, or beyond LARGEST, is a
    SpecError."""
    require_positive(x=x)
    if x > LARGEST:
        raise SpecError(f"x = {x:,} is beyond X_{LARGEST:,} of {12.0 * LARGEST**5:.2g} parameters; choose up to that")
    return FamilyModel(x, x * x, 16 * x)


def needed_intensity(peak_flop_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """FLOPs a byte above which traffic hides; the bandwidth counts both directions.  [FLOP/byte]"""
    return peak_flop_per_s / bandwidth_bytes_per_s


def data_parallel_intensity(tokens_per_microbatch: float, microbatches: float = 1) -> float:
    """Intensity of the gradient's all-reduce: 6 FLOPs a token over 8 bytes, both a parameter.  [FLOP/byte]

    Layered accumulation reduces a layer when all its `microbatches` are done, so all of them hide it; the usual order
    hides it behind the last one only: give 1.
    """
    return 0.75 * microbatches * tokens_per_microbatch


def gather_intensity(tokens_per_microbatch: float, microbatches: float = 1) -> float:
    """Intensity of gathering partitioned weights for the forward: 2 FLOPs a token over 4 bytes.  [FLOP/byte]"""
    return 0.5 * microbatches * tokens_per_microbatch


def pipeline_intensity(hidden_size: float) -> float:
    """Intensity of sends between modular stages, which have one layer and send the most.  [FLOP/byte]"""
    return 12.0 * hidden_size


def tensor_intensity(hidden_size: float, tp: int, recompute_collectives: bool = False) -> float:
    """Intensity of four all-reduces a layer, six where recomputation repeats them; infinite for tp = 1.  [FLOP/byte]"""
    return (2.0 if recompute_collectives else 3.0) * hidden_size / (tp - 1.0) if tp > 1 else inf


def pipeline_bubble(pp: int, microbatches: int, chunks: int = 1) -> float:
    """Idle over busy time of a pipeline that fills and drains once: (pp − 1)/(chunks · microbatches).

    Modular pipelines hold one layer a chunk: chunks = layers/pp, so pp (pp − 1)/(microbatches · layers).
    """
    return (pp - 1.0) / (float(chunks) * microbatches)


def training_time(shape: FamilyModel, num_gpus: int, overhead: float, peak_flop_per_s: float) -> float:
    """Time of the whole run on GPUs at their peak, stretched by overheads (bubble, tensor-parallel).  [s]"""
    return shape.training_flop * (1 + overhead) / (num_gpus * peak_flop_per_s)


def formula_days(answer: Estimate | None, shape: FamilyModel) -> float:
    """Days by the paper's formula: GPUs at their peak, the pipeline's bubble, exposed tensor-parallel traffic.

    What exceeds the compute that hides it, of data and pipeline, is not in it: the formula's plans have none. nan
    without a plan.
    """
    if answer is None:
        return nan
    plan, both_ways = answer.scenario.plan, 2.0 * answer.scenario.cluster.node.nvlink_bandwidth_bytes_per_s
    bubble = pipeline_bubble(plan.pp, answer.num_microbatches, plan.num_chunks)
    tensor = needed_intensity(answer.peak_flop_per_s, both_ways) / tensor_intensity(shape.hidden_size, plan.tp)
    return training_time(shape, answer.num_gpus, bubble + tensor, answer.peak_flop_per_s) / 86400.0


def usual_efficiency(bandwidth: str) -> float | None:
    """Share of its rate that a collective alone on Ethernet of this bandwidth reaches, by its preset; None without one.

    The profile's own is one InfiniBand machine's.
    """
    for name in preset_names("clusters"):
        preset = raw_preset("clusters", name)
        if name.startswith("ethernet-") and preset["inter_node_bandwidth"] == " ".join(bandwidth.split()):
            return float(load_preset("clusters", name)["network_efficiency"])
    return None


def question(
    x: int,
    bandwidth: str = "200 Gbit/s",
    ideal_network: bool = False,
    efficiency: float | None = None,
    vocabulary: int = VOCABULARY,
) -> Scenario:
    """X_x on A100 in NVLink domains of 16, a network card each, for 100,000 steps at the critical batch.

    Where 16 GPUs cannot share the heads evenly, a domain has the most that can: 10 for X_1000. `bandwidth` is that of
    the network, a GPU and direction; an `ideal_network` reaches it and costs compute nothing, any other is as the
    profile of A100 has it. `efficiency` is the share of bandwidth that all traffic reaches, groups that meet too; its
    default is what groups leave each other by the profile, scaled by `usual_efficiency`. NO_VOCABULARY is for the
    paper's models, which have only their layers. An unknown model, or an efficiency of an ideal network, is a
    SpecError.
    """
    if ideal_network and efficiency is not None:
        raise SpecError(f"an ideal network has no efficiency of {efficiency:g}; give one or the other")
    shape = family(x)
    batch, domain = max(1, int(shape.critical_batch_sequences)), max(n for n in range(1, DOMAIN + 1) if x % n == 0)
    alone = usual_efficiency(bandwidth) if efficiency is None and not ideal_network else efficiency
    sizes = {"num_layers": x, "hidden_size": shape.hidden_size, "num_heads": x, "vocab_size": vocabulary}
    # As the paper has it: every card reaches every other, however many there are.
    cluster = {"preset": "generic-a100-16", "node": {"gpus_per_node": domain, "nics_per_node": domain}, "network": None}
    training = {"global_batch_size": batch, "sequence_length": shape.sequence_length, "precision": "fp16"}
    scenario = build_scenario({
        "name": f"X_{x}",
        "model": {"name": f"x{x}", **sizes, "max_sequence_length": shape.sequence_length},
        "cluster": {**cluster, "num_nodes": batch, "inter_node_bandwidth": bandwidth},
        "plan": {},
        "training": {**training, "tokens": STEPS * shape.critical_batch_tokens},
        "stack": "lamy-poirier",
        "profile": "a100",
    })  # fmt: skip
    measured = {"network_efficiency": alone, "network_shared_efficiency": efficiency}
    scenario = scenario.replace(cluster=scenario.cluster.replace(**measured))
    profile = scenario.profile
    ideal = profile.replace(network=profile.network.replace(**IDEAL_NETWORK))
    return scenario.replace(profile=ideal) if ideal_network else scenario


def with_wide_tensor(scenario: Scenario, tp: int) -> Scenario:
    """The scenario with as many nodes as the batch feeds when `tp` GPUs, of several nodes, share each layer.

    ZeRO gathers such layers matrix by matrix.
    """
    cluster = scenario.cluster
    nodes = scenario.training.global_batch_size * tp // cluster.node.gpus_per_node
    stack = scenario.stack.replace(gathers_per_layer=MATRICES)
    return scenario.replace(cluster=cluster.replace(num_nodes=nodes), stack=stack)
