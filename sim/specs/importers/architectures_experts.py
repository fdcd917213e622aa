"""Mixtures of experts among Hugging Face's architectures.

As for the dense ones, the tests hold the parameter counts against huggingface/transformers' own models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sim.specs.importers.architectures import LLAMA, UNTIED, Architecture, Fields, attention_bias, fields
from sim.specs.importers.ledger import Keys

_WINDOWED = "layers that attend to a window are priced with attention over the whole sequence"
_SINKS = "sinks beside the scores are counted and cost nothing here"
_CORRECTED = "a correction of the scores that no gradient moves (e_score_correction_bias) is neither counted nor priced"
_SPREAD = "layers with experts must follow all layers without for flopcast to deal them to pipeline stages"


def _experts(keys: Keys, width: str = "moe_intermediate_size") -> Fields:
    """How many experts, how many a token goes to, how wide: what every mixture has."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    found: Fields = {
        "num_experts": keys.needed(*names),
        "experts_per_token": keys.needed("num_experts_per_tok", "experts_per_token"),
    }
    # Where there is no width of its own, intermediate_size is an expert's, as ModelSpec takes it to be.
    return found if width == "intermediate_size" else {**found, "expert_intermediate_size": keys.needed(width)}


def _wide(keys: Keys) -> Fields:
    return {**attention_bias(keys), **_experts(keys, "intermediate_size")}


def _first_dense(keys: Keys) -> Fields:
    """`first_k_dense_replace` layers without experts and, side by side, `n_shared_experts` for every token."""
    spread = keys.whole("moe_layer_freq")
    if spread not in (None, 1):
        raise keys.wrong("moe_layer_freq", spread, f"must be 1: {_SPREAD}")
    found = _experts(keys)
    shared = keys.whole("n_shared_experts", least=0) or 0
    return {
        **found,
        "num_dense_layers": keys.whole("first_k_dense_replace", least=0) or 0,
        "shared_expert_intermediate_size": shared * found["expert_intermediate_size"],
    }


def _qwen(keys: Keys) -> Fields:
    """`decoder_sparse_step` and `mlp_only_layers`: which layers have experts."""
    step = keys.whole("decoder_sparse_step")
    if step not in (None, 1):
        raise keys.wrong("decoder_sparse_step", step, f"must be 1: {_SPREAD}")
    _, without = keys.take("mlp_only_layers")
    without = without if isinstance(without, list) else []
    if without != list(range(len(without))):
        raise keys.wrong("mlp_only_layers", without, f"must be the first layers: {_SPREAD}")
    return {**_experts(keys), "num_dense_layers": len(without)}


def _qwen2_moe(keys: Keys) -> Fields:
    bias = keys.flag("qkv_bias")
    return {
        **_qwen(keys),
        "shared_expert_intermediate_size": keys.needed("shared_expert_intermediate_size"),
        "qkv_bias": True if bias is None else bias,
    }


def _qwen3_moe(keys: Keys) -> Fields:
    return {**attention_bias(keys), **_qwen(keys)}


def _latent(keys: Keys) -> Fields:
    """Latent attention: ranks, and of a head's columns those that turn with the position."""
    for name in ("attention_bias", "mlp_bias"):
        if keys.flag(name):
            raise keys.wrong(name, True, "biases beside latent attention, which flopcast cannot count")
    turning = keys.needed("qk_rope_head_dim")
    return {
        # Files may give other numbers for these two, which mean something else or nothing here.
        "num_kv_heads": keys.raw("num_attention_heads"),
        "head_dim": keys.needed("qk_nope_head_dim") + turning,
        "rotary_head_dim": turning,
        "value_head_dim": keys.needed("v_head_dim"),
        "key_value_rank": keys.needed("kv_lora_rank"),
        "query_rank": keys.whole("q_lora_rank") or 0,  # null: from the hidden state itself
    }


def _deepseek(keys: Keys) -> Fields:
    return {**_latent(keys), **_first_dense(keys)}


def _glm(keys: Keys) -> Fields:
    bias = attention_bias(keys)["qkv_bias"]  # the output projection has none either way
    norm = "head" if keys.flag("use_qk_norm") else "none"
    return {"qkv_bias": bias, "query_key_norm": norm, **_first_dense(keys)}


def _dots(keys: Keys) -> Fields:
    return {**attention_bias(keys), **_first_dense(keys)}


def _phi(keys: Keys) -> Fields:
    return {**_wide(keys), "head_bias": bool(keys.flag("lm_head_bias"))}


def _granite_shared(keys: Keys) -> Fields:
    shared = keys.whole("shared_intermediate_size", least=0) or 0
    return {**_wide(keys), "shared_expert_intermediate_size": shared}


_MIXTRAL: Callable[[Keys], Fields] = partial(_experts, width="intermediate_size")

EXPERTS: Mapping[str, Architecture] = {
    "mixtral": Architecture(LLAMA, UNTIED, _MIXTRAL),
    "qwen2_moe": Architecture(fields(**LLAMA, shared_expert_gate=True), UNTIED, _qwen2_moe),
    "qwen3_moe": Architecture(fields(**LLAMA, query_key_norm="head"), UNTIED, _qwen3_moe),
    "deepseek_v2": Architecture(LLAMA, UNTIED, _deepseek),
    "deepseek_v3": Architecture(LLAMA, UNTIED, _deepseek, (_CORRECTED,)),
    "gpt_oss": Architecture(fields(**LLAMA, mlp_bias=True, attention_sinks=True), UNTIED, _wide, (_WINDOWED, _SINKS)),
    "olmoe": Architecture(fields(**LLAMA, query_key_norm="all"), UNTIED, _wide),
    "granitemoe": Architecture(LLAMA, UNTIED, _wide),
    "granitemoeshared": Architecture(LLAMA, UNTIED, _granite_shared),
    "phimoe": Architecture(fields(**{**LLAMA, "norm": "layernorm"}), UNTIED, _phi),
    "glm4_moe": Architecture(LLAMA, UNTIED, _glm, (_CORRECTED,)),
    "dots1": Architecture(fields(**LLAMA, query_key_norm="head"), UNTIED, _dots, (_CORRECTED,)),
    "minimax_m2": Architecture(fields(**LLAMA, query_key_norm="all"), UNTIED, _MIXTRAL, (_CORRECTED,)),
}
