"""Replicas of an inference engine: how rollouts are run, how long a step of decoding takes, how much memory is left.

Prompts are read in one forward pass; then every step of decoding gives each running sequence one token. It reads the
weights once for all sequences, of experts those that any of them goes to, and each sequence's own cache of keys and
values [1]_, or its state where a layer carries one. A step's seconds are a roofline of these bytes and of its FLOPs.

.. [1] Pope et al. 2022, "Efficiently scaling transformer inference", arXiv:2211.05102, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from sim.arrays import Number
from sim.costs.collectives import Fabric, all_reduce
from sim.errors import InfeasiblePlan, SpecError, nearest, require_not_negative, require_positive
from sim.network.placement import Group
from sim.rl.samples import Samples
from sim.specs import LayerKind, ModelSpec, Scenario
from sim.units import show
from sim.work.operations import Cause
from sim.work.pieces import key_value_width
from sim.work.sums import forward_flop, model_layers, params, total_params

WIDTHS = {"bf16": 2.0, "fp8": 1.0}
"""Bytes of a weight or of a number in the cache, by format. [bytes]"""
ACTIVATION_WIDTH = 2.0
"""Width of activations sent between GPUs: 16 bits. [bytes]"""
STATE_WIDTH = 4
"""Bytes of a number of a state that layers keep: fp32."""
SAMPLING_PASSES = 6
"""Times that the logits of a step are read or written in fp32: cast, scaled, softmax and draw. Assumed."""
_KERNELS = {"attends": 6, "recurs": 7, "none": 0}
_MLP_KERNELS = {"dense": 4, "sparse": 8, "none": 0}
"""Kernels of a layer's mixer and MLP in a step of decoding, norms included: projection, norms and rotation of queries
and keys, write to the cache, attention, output; two multiplies and the activation; with experts router, choice, sort
and sum too. Assumed: as engines fuse them."""


def inference_params(model: ModelSpec) -> int:
    """Parameters that an inference engine holds: all but the modules that predict further tokens."""
    return total_params(model, with_mtp=False)


def _unread(model: ModelSpec) -> int:
    """Tables of which a step reads a row a sequence."""
    table = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    positions = model.max_sequence_length * model.hidden_size if model.position == "learned" else 0
    return table + positions


def _whole(model: ModelSpec) -> int:
    """Latent attention's projections down and their norms, of all layers, which are whole on every GPU."""
    attending = sum(kind.attends for kind in model.kind_of_layer)
    latent = model.query_rank + model.key_value_rank
    down = model.hidden_size * (latent + model.rotary_head_dim) + latent
    return attending * down if model.key_value_rank else 0


def _experts(model: ModelSpec) -> Number:
    """Parameters of all experts that a router picks from."""
    return sum(count * params(layer, experts=True) for count, _, layer in model_layers(model))


def weights_held(model: ModelSpec, tp: Number) -> Number:
    """Parameters on one of `tp` GPUs: all but latent attention's projections down are cut."""
    whole = _whole(model)
    return whole + (inference_params(model) - whole) / tp


def weights_read(model: ModelSpec, batch: Number, tp: Number) -> Number:
    """Parameters that one of `tp` GPUs reads in a step of `batch` tokens.

    Of E experts, where routing is even, each is missed by a token with the chance 1 − k/E, and by all with its power.
    """
    whole, experts = _whole(model), _experts(model)
    missed = (1.0 - model.experts_per_token / max(model.num_experts, 1)) ** np.asarray(batch, dtype=float)
    every = inference_params(model) - _unread(model) - experts
    return whole + (every - whole + experts * (1.0 - missed)) / tp


def cache_bytes(model: ModelSpec, context: Number, width: float, tp: Number) -> Number:
    """What one of `tp` GPUs keeps of a sequence of `context` tokens, and reads to write the next one.  [bytes]

    Keys and values of all tokens that a layer sees, in numbers of `width` bytes, of heads that the GPU has; where there
    are fewer of them than GPUs, copies. Latent attention keeps one vector a token, whole on every GPU [1]_. Layers that
    carry a state keep it in fp32, and the tokens that their convolution sees.

    .. [1] DeepSeek-V2, arXiv:2405.04434, section 2.1.3: 576 numbers a token and layer.
    """
    context = np.asarray(context, dtype=float)
    nbytes: Number = np.zeros_like(context)
    for kind in set(model.kind_of_layer):
        layers = model.layers_of(kind)
        if kind.attends:
            row = model.key_value_rank + model.rotary_head_dim or key_value_width(model, tp)
            nbytes = nbytes + layers * width * row * _seen(model, context, kind)
        elif kind.recurs:
            numbers = model.linear_num_heads * model.linear_head_dim * model.linear_key_head_dim
            mixed = width * model.recurrent_widths(kind).mixed
            nbytes = nbytes + layers * (STATE_WIDTH * numbers + mixed * model.linear_conv_kernel) / tp
    return nbytes


def _seen(model: ModelSpec, context: Number, kind: LayerKind) -> Number:
    """Tokens of a sequence of `context` that the next one sees; of a piece, half of it on average."""
    limit = model.reach(kind, float("inf"))
    if kind.mixer == "chunked_attention":
        return np.where(context > limit, limit / 2, np.minimum(context, limit))
    return np.minimum(context, limit)


def decode_flop(model: ModelSpec, context: Number) -> Number:
    """Matrix FLOPs of one token that a sequence of `context` tokens is continued by, on all GPUs together.  [FLOP]

    Two a parameter that the token meets, and the attention over what it sees: 2 heads (d_k + d_v) a token; with latent
    attention, whose projections are taken into queries and outputs, 2 heads (2 rank + d_rope) [1]_.

    .. [1] DeepSeek-V2, arXiv:2405.04434, section 2.1.2 (weight absorption).
    """
    context = np.asarray(context, dtype=float)
    idle = _experts(model) * (1.0 - model.experts_per_token / max(model.num_experts, 1))
    flop: Number = 2.0 * (inference_params(model) - idle - _unread(model)) + np.zeros_like(context)
    for layers, kind, layer in model_layers(model):
        if kind.attends:
            columns = model.head_dim + model.value_head_dim
            if model.key_value_rank:
                columns = 2 * model.key_value_rank + model.rotary_head_dim
            flop = flop + 2.0 * layers * model.num_heads * columns * _seen(model, context, kind)
        elif kind.recurs:
            flop = flop + layers * forward_flop(layer, cause=Cause.ATTENTION)
    return flop


def prefill_flop(model: ModelSpec, prompt: float) -> float:
    """Matrix FLOPs of reading one prompt, on all GPUs together; the mask halves its attention.  [FLOP]"""
    layers = model_layers(model, 1, prompt)
    flop = sum(count * (forward_flop(layer) - 0.5 * forward_flop(layer, ("core_attn",))) for count, _, layer in layers)
    return flop + 2.0 * model.hidden_size * model.vocab_size


def decode_kernels(model: ModelSpec) -> int:
    """Kernels of a step of decoding on one GPU: of all layers, the head and the draw."""
    return sum(
        _KERNELS["attends" if kind.attends else "recurs" if kind.recurs else "none"] + _MLP_KERNELS[kind.mlp]
        for kind in model.kind_of_layer
    ) + (1 + SAMPLING_PASSES)


def decode_all_reduces(model: ModelSpec) -> int:
    """Sums over a tensor-parallel group in a step of decoding: one behind every mixer and every MLP, and one of the
    logits, gathered, which is left out."""
    parallel = model.norms_per_layer == 1
    return sum(1 if parallel or "none" in (kind.mixer, kind.mlp) else 2 for kind in model.kind_of_layer)


RUNNING = 1024
"""Sequences that a replica decodes at once at most: a common default of engines on GPUs with 80 GB. Assumed."""
HOST_STEP_S = 4e-3
"""What GPUs wait for the host in a step of decoding: scheduling, drawing, log-probabilities, tokens through Ray. Set on
ten batches of vLLM's with two models that NeMo RL timed by phase (`flopcast_validation.rl_runs`); an engine alone that
serves one sequence waits for next to nothing (`tests/rl/test_decode.py`). [s]"""


@dataclass(frozen=True, slots=True)
class Inference:
    """How rollouts are run.

    tp : GPUs of a rollout replica; default: the fastest of 1, 2, 4, ... that has room.
    weights : format of the rollouts' weights: bf16 or fp8.
    cache : format of the rollouts' keys and values: bf16 or fp8.
    memory_share : share of a GPU's memory that rollouts use; default: 0.9, or 0.6 when training shares the GPU.
    most_running : most sequences that a replica decodes at once.
    step_overhead_s : time that the GPUs wait for the host in every decoding step. [s]
    """

    tp: int | None = None
    weights: str = "bf16"
    cache: str = "bf16"
    memory_share: float | None = None
    most_running: int = RUNNING
    step_overhead_s: float = HOST_STEP_S

    def __post_init__(self) -> None:
        for name, value in (("weights", self.weights), ("cache", self.cache)):
            if value not in WIDTHS:
                raise SpecError(f"rollouts have no {name} in {value!r}{nearest(value, WIDTHS)}")
        if self.tp is not None:
            require_positive(rollout_tp=self.tp)
        require_positive(most_running=self.most_running)
        require_not_negative(step_overhead=self.step_overhead_s)
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise SpecError(f"memory_share = {self.memory_share:g} must be above 0 and at most 1")


MEMORY_SHARE = 0.9
"""Share of a GPU's memory that an engine takes: vLLM's default (gpu_memory_utilization)."""
SHARED_MEMORY_SHARE = 0.6
"""Share that an engine takes where training uses the same GPUs (NVIDIA-NeMo/RL:examples/configs/grpo_math_1B.yaml)."""
WORKSPACE_BYTES = 4e9
"""Memory that an engine needs on a GPU beside weights and cache: activations, CUDA graphs, NCCL. Assumed. [bytes]"""


@dataclass(frozen=True)
class RolloutPool:
    """Replicas of an inference engine, each of a scenario's model on `tp` GPUs that decode together.

    num_gpus : of all replicas.
    colocated : training takes turns on the same GPUs.
    """

    scenario: Scenario
    how: Inference
    num_gpus: int
    tp: int
    colocated: bool = False

    @property
    def model(self) -> ModelSpec:
        """The model that it runs."""
        return self.scenario.model

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self.num_gpus // self.tp

    @cached_property
    def fabric(self) -> Fabric:
        """The links between the GPUs.

        Engines leave NVLink's switches alone (sgl-project/sglang:python/sglang/srt/entrypoints/engine.py,
        _set_envs_and_config: NCCL_NVLS_ENABLE is 0 unless one asks for it).
        """
        return Fabric.of(self.scenario.cluster, self.scenario.profile, nvls=False)

    @cached_property
    def group(self) -> Group:
        """The tensor-parallel group."""
        domain = self.scenario.cluster.nvlink_domain_gpus
        return Group(self.tp, min(self.tp, domain), self.tp > domain)

    @cached_property
    def flop_per_s(self) -> float:
        """FLOP/s that one GPU's matrix units reach at their best. Without units for 8 bits they multiply in 16."""
        gpu, weights = self.scenario.cluster.gpu, self.how.weights
        units = next((name for name in (weights, "bf16", "fp16") if name in gpu.peak_flop_per_s), "fp32")
        return gpu.peak(units) * self.scenario.profile.gemm.of(weights).max_efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of one GPU's memory that the kernels of a step reach. [bytes/s]"""
        scenario = self.scenario
        return scenario.profile.memory.efficiency * scenario.cluster.gpu.memory_bandwidth_bytes_per_s

    @property
    def weight_bytes(self) -> float:
        """Bytes of one GPU's part of the model. [bytes]"""
        return float(WIDTHS[self.how.weights] * weights_held(self.model, self.tp))

    @cached_property
    def room_bytes(self) -> float:
        """Memory of one GPU for keys and values. [bytes]"""
        share = self.how.memory_share or (SHARED_MEMORY_SHARE if self.colocated else MEMORY_SHARE)
        return share * self.scenario.cluster.gpu.memory_bytes - self.weight_bytes - WORKSPACE_BYTES

    def cache_bytes(self, context: Number) -> Number:
        """Bytes of a sequence's cache on one GPU. [bytes]"""
        return cache_bytes(self.model, context, WIDTHS[self.how.cache], self.tp)

    def decode_s(self, batch: Number, context: Number) -> Number:
        """One step of decoding: a token for each of `batch` sequences of `context` tokens on average.  [s]

        Bytes (weights, caches, logits) at the memory's bandwidth and FLOPs at the matrix units' best, of which each
        hides the other only in part (`sim.costs.compute.gemm_time`), no kernel shorter than the launch floor of a
        CUDA graph's; behind every mixer and MLP a sum over the tensor-parallel group.

        Takes arrays. Cost grows more slowly than the batch: a larger batch is never less efficient.
        """
        batch = np.asarray(batch, dtype=float)
        read = WIDTHS[self.how.weights] * weights_read(self.model, batch, self.tp)
        logits = 4.0 * SAMPLING_PASSES * batch * self.model.vocab_size / self.tp
        nbytes = read + batch * self.cache_bytes(context) + logits
        moved = nbytes / self.bytes_per_s
        computed = batch * decode_flop(self.model, context) / self.tp / self.flop_per_s
        floor = decode_kernels(self.model) * self.scenario.profile.gemm.kernel_floor_s
        return np.hypot(moved, computed) + floor + self._sums_s(batch) + self.how.step_overhead_s

    def prefill_s(self, samples: Samples) -> float:
        """Time to read the prompts of a step, each once for its group, on every replica its share.  [s]

        They are read many at once, mixed in steps: latency hardly counts in the sums between GPUs.
        """
        prompt, tokens = samples.prompt_tokens, 8192.0
        computed = prefill_flop(self.model, prompt) / self.tp / self.flop_per_s
        return float(samples.prompts / self.replicas * (computed + self._sums_s(tokens) * prompt / tokens))

    def _sums_s(self, tokens: Number) -> Number:
        if self.tp == 1:
            return 0.0
        nbytes = ACTIVATION_WIDTH * np.asarray(tokens, dtype=float) * self.model.hidden_size
        return decode_all_reduces(self.model) * all_reduce(nbytes, self.group, self.fabric)

    def require_cache(self, samples: Samples) -> None:
        """Refuse a replica that cannot hold its weights and the longest sequence."""
        least = float(self.cache_bytes(samples.longest_tokens))
        if self.room_bytes < least:
            left = show(self.room_bytes, "B") if self.room_bytes > 0 else "nothing"
            raise InfeasiblePlan(
                f"a rollout replica of tp {self.tp} does not fit: weights take {show(self.weight_bytes, 'B')} of a "
                f"GPU and leave {left} for its cache. One sequence of {samples.longest_tokens:,.0f} tokens needs "
                f"{show(least, 'B')}; take a larger rollout tp, weights in fp8, or shorter responses"
            )

    def running(self, samples: Samples, together: bool) -> float:
        """Sequences of a replica that may decode at once.

        A cache in pages holds what sequences have come to, not their longest [1]_: where they begin together, the most
        a batch of them still runs at any age; where each follows another, the mean age. Prompts that a group shares
        are counted for each.

        .. [1] Kwon et al. 2023, "Efficient memory management for large language model serving with PagedAttention",
           arXiv:2309.06180, section 4.
        """
        lengths = samples.lengths
        alive = lengths.survival * self.cache_bytes(samples.prompt_tokens + lengths.middles)
        held = float(alive.max() if together else alive.sum() / lengths.survival.sum())
        return min(float(self.how.most_running), max(self.room_bytes / held, 1.0) if held else inf)
