"""Architectures of Hugging Face's `config.json`: what a model_type fixes, and what its own keys mean. They are data, in
presets/importers/huggingface.yaml; here stands what follows from several keys at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.importers.keys import Keys, table
from sim.specs.importers.ledger import short

KIND = "huggingface"
Fields = dict[str, Any]
_SPREAD = "layers with experts must follow all layers without for flopcast to deal them to pipeline stages"


def architecture_of(kind: str | None, keys: Keys) -> dict[str, Any]:
    """What the table says of a model_type.

    Raises
    ------
    SpecError
        Nothing, with the reason: it is not a decoder, has experts that nothing says the layers of, or is not known.
    """
    where, known = keys.ledger.where, table(KIND)
    if kind is None:
        raise SpecError(f"{where}: no model_type; it is no config.json of a model that flopcast knows")
    said = f"{where}: model_type {short(kind)!r}"
    if "text_config" in keys:
        raise SpecError(
            f"{said} wraps a language model beside another; save its text_config as a file of its own and import that"
        )
    if keys.raw("is_encoder_decoder") is True:
        raise SpecError(f"{said} has an encoder; flopcast models decoders only")
    name, dense, mixtures = kind.lower(), known["dense"], known["mixtures"]
    if name in dense:
        counts = (key for key in known["numbers_of_experts"] if isinstance(keys.raw(key), int) and keys.raw(key) > 1)
        experts = next(counts, None)
        if experts is not None:
            raise SpecError(
                f"{where}: {experts} = {short(keys.raw(experts))}, but model_type {short(kind)!r} has no experts; "
                "which of its layers they replace is not known"
            )
    found: dict[str, Any] | None = mixtures.get(name, dense.get(name))
    if found is not None:
        return found
    for what, parts in known["refused"].items():
        if any(part in name for part in parts):
            examples = ", ".join([*sorted(dense)[:3], *sorted(mixtures)[:3]])
            raise SpecError(f"{said} is {what}, which flopcast does not model; decoders such as {examples} it does")
    raise SpecError(
        f"{said} is not known{nearest(kind[:60], [*dense, *mixtures])}; describe the model by its shape in a scenario "
        "instead (model: {num_layers: 32, ...})"
    )


def shape_of(architecture: dict[str, Any], keys: Keys) -> Fields:
    """Fields that the architecture fixes, and those that follow from keys it alone has."""
    found: Fields = {**table(KIND)["families"].get(architecture.get("family"), {}), **architecture.get("fixed", {})}
    for part, rules in architecture.items():
        if part == "switches":
            for key, rule in rules.items():
                found |= _switched(key, rule, keys)
        elif part == "readers":
            for name in rules:
                found |= READERS[name](keys)
    return found


def _switched(key: str, rule: Mapping[Any, Any], keys: Keys) -> Fields:
    """Fields that a key sets by being true, false or left out."""
    value = keys.flag(key)
    if "refused" in rule:
        if value is rule["refused"]:
            raise keys.wrong(key, value, rule["because"])
        return {}
    fields: Fields = rule.get(rule["absent"] if value is None else value, {})
    return fields


def _falcon(keys: Keys) -> Fields:
    new, parallel = bool(keys.flag("new_decoder_architecture")), keys.flag("parallel_attn")
    heads, kv_heads = keys.raw("num_attention_heads") or keys.raw("n_head"), keys.whole("num_kv_heads", "n_head_kv")
    multi_query = keys.flag("multi_query")
    norms = keys.whole("num_ln_in_parallel_attn")
    one = norms == 1 if new else parallel is not False
    return {
        "bias": bool(keys.flag("bias")),
        "norms_per_layer": 1 if one else 2,
        "num_kv_heads": (kv_heads or heads) if new else heads if multi_query is False else 1,
        "position": "none" if keys.flag("alibi") else "rotary",
    }


def _embedding_projection(keys: Keys) -> Fields:
    """OPT's embeddings that are narrower than its layers are refused."""
    narrow, hidden = keys.whole("word_embed_proj_dim"), keys.raw("hidden_size")
    if narrow is not None and narrow != hidden:
        raise keys.wrong("word_embed_proj_dim", narrow, f"projects embeddings to {hidden}, which flopcast cannot count")
    return {}


def _experts(keys: Keys) -> Fields:
    """How many experts and how many a token goes to; intermediate_size is an expert's, as ModelSpec takes it to be."""
    return {
        "num_experts": keys.needed("num_local_experts", "num_experts", "n_routed_experts"),
        "experts_per_token": keys.needed("num_experts_per_tok", "experts_per_token"),
    }


def _wide_experts(keys: Keys) -> Fields:
    """Experts with a width of their own."""
    return {**_experts(keys), "expert_intermediate_size": keys.needed("moe_intermediate_size")}


def _first_dense(keys: Keys) -> Fields:
    """`first_k_dense_replace` layers without experts and `n_shared_experts` that every token goes to."""
    spread = keys.whole("moe_layer_freq")
    if spread not in (None, 1):
        raise keys.wrong("moe_layer_freq", spread, f"must be 1: {_SPREAD}")
    found = _wide_experts(keys)
    shared = keys.whole("n_shared_experts", least=0) or 0
    return {
        **found,
        "num_dense_layers": keys.whole("first_k_dense_replace", least=0) or 0,
        "shared_expert_intermediate_size": shared * found["expert_intermediate_size"],
    }


def _sparse_step(keys: Keys) -> Fields:
    """`decoder_sparse_step` and `mlp_only_layers`: which layers have experts."""
    step = keys.whole("decoder_sparse_step")
    if step not in (None, 1):
        raise keys.wrong("decoder_sparse_step", step, f"must be 1: {_SPREAD}")
    _, without = keys.take("mlp_only_layers")
    without = without if isinstance(without, list) else []
    if without != list(range(len(without))):
        raise keys.wrong("mlp_only_layers", without, f"must be the first layers: {_SPREAD}")
    return {**_wide_experts(keys), "num_dense_layers": len(without)}


def _latent(keys: Keys) -> Fields:
    """Latent attention: ranks, and of a head's columns those that turn with the position."""
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


def _shared_expert(keys: Keys) -> Fields:
    return {"shared_expert_intermediate_size": keys.needed("shared_expert_intermediate_size")}


def _shared_width(keys: Keys) -> Fields:
    return {"shared_expert_intermediate_size": keys.whole("shared_intermediate_size", least=0) or 0}


READERS: dict[str, Callable[[Keys], Fields]] = {
    "falcon": _falcon,
    "embedding_projection": _embedding_projection,
    "experts": _experts,
    "first_dense": _first_dense,
    "sparse_step": _sparse_step,
    "latent": _latent,
    "shared_expert": _shared_expert,
    "shared_width": _shared_width,
}
"""What the table calls readers: fields that follow from keys of one architecture, beyond switches."""
