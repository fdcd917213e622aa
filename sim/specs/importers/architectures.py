"""Dense architectures of Hugging Face's `config.json`: what each fixes, and what a file that leaves a key out means.

Values that a file leaves out are those of the configuration classes of huggingface/transformers (v5); the tests hold
the parameter counts against that library's own models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.ledger import Keys

Fields = dict[str, Any]


def _nothing(keys: Keys) -> Fields:
    return {}


@dataclass(frozen=True)
class Architecture:
    """A value of `model_type`.

    fixed : fields of ModelSpec that no key changes.
    absent : what a left-out key means, by the field of ModelSpec.
    own : fields that follow from keys this architecture alone has.
    notes : what of it flopcast does not price.
    """

    fixed: Mapping[str, Any]
    absent: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[Keys], Fields] = _nothing
    notes: tuple[str, ...] = ()


def fields(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


_GPT = fields(position="learned", norm="layernorm", bias=True, gated_mlp=False)
LLAMA = fields(position="rotary", norm="rmsnorm", bias=False, gated_mlp=True)
UNTIED = fields(tied_embeddings=False)
TIED = fields(tied_embeddings=True)
_PARALLEL = "attention and MLP read the same input and could run side by side; they are priced one after the other"
_ALIBI = "attention is biased by distance (ALiBi), at no cost here"


def attention_bias(keys: Keys) -> Fields:
    """`attention_bias`: queries, keys, values and the output projection alike."""
    bias = bool(keys.flag("attention_bias"))
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _llama(keys: Keys) -> Fields:
    return {**attention_bias(keys), "mlp_bias": bool(keys.flag("mlp_bias"))}


def _cohere(keys: Keys) -> Fields:
    return {**attention_bias(keys), "query_key_norm": "all" if keys.flag("use_qk_norm") else "none"}


def _gpt_neox(keys: Keys) -> Fields:
    given = keys.flag("attention_bias")
    bias = True if given is None else given
    keys.flag("use_parallel_residual")  # two norms either way
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _opt(keys: Keys) -> Fields:
    narrow = keys.whole("word_embed_proj_dim")
    hidden = keys.raw("hidden_size")
    if narrow is not None and narrow != hidden:
        raise keys.wrong("word_embed_proj_dim", narrow, f"projects embeddings to {hidden}, which flopcast cannot count")
    if keys.flag("do_layer_norm_before") is False or keys.flag("_remove_final_layer_norm"):
        raise SpecError("an OPT without a final norm (do_layer_norm_before false) is not one that flopcast can count")
    if keys.flag("layer_norm_elementwise_affine") is False:
        raise SpecError("norms without weights (layer_norm_elementwise_affine false) cannot be counted")
    bias = keys.flag("enable_bias")
    return {"bias": True if bias is None else bias}


def _falcon(keys: Keys) -> Fields:
    new, parallel = bool(keys.flag("new_decoder_architecture")), keys.flag("parallel_attn")
    heads, kv_heads = keys.raw("num_attention_heads") or keys.raw("n_head"), keys.whole("num_kv_heads", "n_head_kv")
    multi_query = keys.flag("multi_query")
    norms = keys.whole("num_ln_in_parallel_attn")
    parallel = True if parallel is None else parallel
    one = parallel if not new else norms == 1
    return {
        "bias": bool(keys.flag("bias")),
        "norms_per_layer": 1 if one else 2,
        "num_kv_heads": (kv_heads or heads) if new else heads if multi_query is False else 1,
        "position": "none" if keys.flag("alibi") else "rotary",
    }


def _phi(keys: Keys) -> Fields:
    _without(keys, "qk_layernorm")
    return {}


def _without(keys: Keys, name: str) -> None:
    if keys.flag(name):
        raise keys.wrong(name, True, "norms with biases over queries and keys, which flopcast cannot count")


def _stablelm(keys: Keys) -> Fields:
    return {
        "qkv_bias": bool(keys.flag("use_qkv_bias")),
        "query_key_norm": "all" if keys.flag("qk_layernorm") else "none",
        "norms_per_layer": 1 if keys.flag("use_parallel_residual") else 2,
    }


def _starcoder2(keys: Keys) -> Fields:
    bias = keys.flag("use_bias")
    return {"bias": True if bias is None else bias}


def _gpt_bigcode(keys: Keys) -> Fields:
    return {} if keys.flag("multi_query") is False else {"num_kv_heads": 1}


def _bloom(keys: Keys) -> Fields:
    _without_residual_of_norm(keys)
    return {}


def _without_residual_of_norm(keys: Keys) -> None:
    keys.flag("apply_residual_connection_post_layernorm")  # the same parameters and the same kernels


DENSE: Mapping[str, Architecture] = {
    "llama": Architecture(LLAMA, UNTIED, _llama),
    "mistral": Architecture(LLAMA, fields(tied_embeddings=False, num_kv_heads=8)),
    "ministral": Architecture(LLAMA, fields(tied_embeddings=False, num_kv_heads=8)),
    "qwen2": Architecture(fields(**LLAMA, qkv_bias=True), UNTIED),
    "qwen3": Architecture(
        fields(**LLAMA, query_key_norm="head"), fields(tied_embeddings=False, head_dim=128), attention_bias
    ),
    "gemma": Architecture(LLAMA, fields(tied_embeddings=True, head_dim=256), attention_bias),
    "gemma2": Architecture(
        fields(**LLAMA, norms_per_layer=4),
        fields(tied_embeddings=True, head_dim=256, num_kv_heads=4),
        attention_bias,
    ),
    "gemma3_text": Architecture(
        fields(**LLAMA, norms_per_layer=4, query_key_norm="head"),
        fields(tied_embeddings=True, head_dim=256, num_kv_heads=4),
        attention_bias,
    ),
    "phi3": Architecture(LLAMA, UNTIED),
    "granite": Architecture(LLAMA, UNTIED, _llama),
    "smollm3": Architecture(
        LLAMA,
        fields(tied_embeddings=True, num_kv_heads=4),
        _llama,
        ("layers without rotary positions are priced with them",),
    ),
    "olmo2": Architecture(fields(**LLAMA, query_key_norm="all"), UNTIED, attention_bias),
    "stablelm": Architecture(fields(**{**LLAMA, "norm": "layernorm"}), UNTIED, _stablelm),
    "cohere": Architecture(
        fields(**{**LLAMA, "norm": "layernorm"}, norm_bias=False, norms_per_layer=1), TIED, _cohere, (_PARALLEL,)
    ),
    "starcoder2": Architecture(
        fields(position="rotary", norm="layernorm", gated_mlp=False),
        fields(tied_embeddings=True, num_kv_heads=2),
        _starcoder2,
    ),
    "nemotron": Architecture(fields(position="rotary", norm="layernorm", bias=False, gated_mlp=False), UNTIED, _llama),
    "gpt2": Architecture(_GPT, TIED),
    "gpt_neo": Architecture(
        fields(**_GPT, qkv_bias=False), TIED, notes=("layers of local attention are priced with full attention",)
    ),
    "gpt_neox": Architecture(fields(**{**_GPT, "position": "rotary"}), UNTIED, _gpt_neox),
    "gptj": Architecture(
        fields(
            position="rotary",
            norm="layernorm",
            bias=False,
            mlp_bias=True,
            head_bias=True,
            gated_mlp=False,
            norms_per_layer=1,
        ),
        UNTIED,
        notes=(_PARALLEL,),
    ),
    "gpt_bigcode": Architecture(_GPT, TIED, _gpt_bigcode),
    "opt": Architecture(fields(position="learned", norm="layernorm", gated_mlp=False), TIED, _opt),
    "phi": Architecture(
        fields(position="rotary", norm="layernorm", bias=True, head_bias=True, gated_mlp=False, norms_per_layer=1),
        UNTIED,
        _phi,
        (_PARALLEL,),
    ),
    "falcon": Architecture(fields(norm="layernorm", gated_mlp=False), TIED, _falcon),
    "bloom": Architecture(
        fields(position="none", norm="layernorm", bias=True, gated_mlp=False, embedding_norm=True),
        TIED,
        _bloom,
        (_ALIBI,),
    ),
    "mpt": Architecture(
        fields(position="none", norm="layernorm", norm_bias=False, bias=False, gated_mlp=False), TIED, notes=(_ALIBI,)
    ),
}
