"""What writing tokens one by one reads, computes and keeps: counts of a model, without hardware or seconds.

Prompts are read in one forward pass; then every step of decoding gives each running sequence one token. It reads the
weights once for all sequences, of experts those that any of them goes to, and each sequence's own cache of keys and
values [1]_, or its state where a layer carries one.

.. [1] Pope et al. 2022, "Efficiently scaling transformer inference", arXiv:2211.05102, section 2.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec
from sim.work.operations import Cause
from sim.work.pieces import key_value_width
from sim.work.sums import expert_params, forward_flop, model_layers, total_params

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
    return sum(count * expert_params(layer) for count, _, layer in model_layers(model))


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
