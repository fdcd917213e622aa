"""Architectures of Hugging Face's `config.json`: what a model_type fixes, and what its own keys mean. They are data, in
presets/importers/huggingface.yaml; here stands what follows from several keys at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.importers.keys import Keys, table
from sim.specs.importers.layer_kinds import after_the_first, between, blocks, by_step, interleaved, mixers
from sim.specs.importers.ledger import short

KIND = "huggingface"
Fields = dict[str, Any]


def architecture_of(kind: str | None, keys: Keys) -> dict[str, Any]:
    """What the table says of a model_type.

    Raises
    ------
    SpecError
        Nothing, with the reason: it is not a decoder, has experts that nothing says the layers of or layers that are
        not modelled, or is not known.
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
    name, dense, mixtures = kind.lower(), known["dense"], {**known["mixtures"], **known["hybrids"]}
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
    if "blocks" not in architecture.get("readers", ()):  # whose reader says the kinds of layers
        found |= mixers(architecture.get("layers", {}), keys)
    for part, rules in architecture.items():
        if part == "switches":
            for key, rule in rules.items():
                found |= _switched(key, rule, keys)
        elif part == "readers":
            for name in rules:
                found |= READERS[name](keys)
        elif part == "forbidden":
            for key, because in rules.items():
                if keys.raw(key):
                    raise keys.wrong(key, keys.raw(key), because)
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
    groups, some = (keys.whole(name, least=0) or 1 for name in ("n_group", "topk_group"))
    return {
        "num_experts": keys.needed("num_local_experts", "num_experts", "n_routed_experts"),
        "experts_per_token": keys.needed("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
        **({"num_expert_groups": groups, "expert_groups_per_token": some} if some < groups else {}),
    }


def _wide_experts(keys: Keys) -> Fields:
    """Experts with a width of their own."""
    return {**_experts(keys), "expert_intermediate_size": keys.needed("moe_intermediate_size")}


def _first_dense(keys: Keys) -> Fields:
    """Experts behind the first layers, and `n_shared_experts` that every token goes to."""
    found = _wide_experts(keys)
    shared = keys.whole("n_shared_experts", "num_shared_experts", least=0) or 0
    return {
        **found,
        **after_the_first(keys),
        "shared_expert_intermediate_size": shared * found["expert_intermediate_size"],
    }


def _sparse_step(keys: Keys) -> Fields:
    return {**_wide_experts(keys), **by_step(keys)}


def _llama4(keys: Keys) -> Fields:
    """`intermediate_size` is an expert's and the shared one's, `intermediate_size_mlp` that of layers without."""
    width = keys.needed("intermediate_size")
    return {
        **_experts(keys),
        **interleaved(keys),
        "intermediate_size": keys.needed("intermediate_size_mlp"),
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": width,
    }


def _ernie(keys: Keys) -> Fields:
    width = keys.needed("moe_intermediate_size")
    return {
        "num_experts": keys.needed("moe_num_experts", "num_experts"),
        "experts_per_token": keys.needed("moe_k", "num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": width * (keys.whole("moe_num_shared_experts", least=0) or 0),
        **between(keys),
    }


def _delta(keys: Keys) -> Fields:
    """Gated delta net: heads of values and of keys."""
    return {
        "linear_num_heads": keys.needed("linear_num_value_heads"),
        "linear_head_dim": keys.needed("linear_value_head_dim"),
        "linear_num_key_heads": keys.needed("linear_num_key_heads"),
        "linear_key_head_dim": keys.needed("linear_key_head_dim"),
        "linear_conv_kernel": keys.whole("linear_conv_kernel_dim") or 4,
    }


def _turned(keys: Keys) -> Fields:
    """Rotary positions where the file has any parameters of theirs."""
    return {"position": "rotary" if keys.raw("rope_parameters") or keys.raw("rope_theta") else "none"}


def _kimi_delta(keys: Keys) -> Fields:
    """Kimi delta attention, whose sizes stand in a section of their own in files on the hub."""
    inside = keys.section("linear_attn_config")
    inside.take("full_attn_layers")
    inside.take("kda_layers")  # which the pattern of layers has read
    own = {
        "linear_num_heads": inside.whole("num_heads") or keys.whole("linear_num_heads"),
        "linear_head_dim": inside.whole("head_dim") or keys.whole("linear_head_dim"),
        "linear_conv_kernel": inside.whole("short_conv_kernel_size") or keys.whole("linear_conv_kernel_dim"),
    }
    inside.leave()
    return {name: value for name, value in own.items() if value is not None}


def _mamba(keys: Keys) -> Fields:
    """Mamba-2: heads that share the B and C of their group, and a state of so many numbers a column."""
    heads, width = keys.needed("mamba_n_heads", "mamba_num_heads"), keys.raw("hidden_size")
    if keys.raw("mamba_d_head") == "auto":
        keys.take("mamba_d_head")
        columns = (keys.whole("mamba_expand") or 2) * int(width or 0) // heads
    else:
        columns = keys.needed("mamba_d_head", "mamba_head_dim")
    return {
        "linear_num_heads": heads,
        "linear_head_dim": columns,
        "linear_num_key_heads": keys.whole("mamba_n_groups", "n_groups") or 1,
        "linear_key_head_dim": keys.needed("mamba_d_state", "ssm_state_size"),
        "linear_conv_kernel": keys.whole("mamba_d_conv", "conv_kernel") or 4,
    }


def _blocks(keys: Keys) -> Fields:
    """Nemotron-H: one block a layer, experts only where a block has them."""
    found = blocks(keys)
    experts = {
        "num_experts": keys.whole("n_routed_experts", "num_local_experts"),
        "experts_per_token": keys.whole("num_experts_per_tok"),
        "expert_intermediate_size": keys.whole("moe_intermediate_size"),
        "shared_expert_intermediate_size": keys.whole("moe_shared_expert_intermediate_size", least=0),
    }
    keys.take("n_shared_experts")  # whose width is said for all together
    if "sparse" not in found["mlp_layer_types"]:
        return found
    missing = next((name for name, value in experts.items() if value is None), None)
    if missing is not None:
        raise keys.wrong("hybrid_override_pattern", "E", f"needs {missing}, which the file does not say")
    return {**found, **experts}


def _granite_hybrid(keys: Keys) -> Fields:
    """Granite 4: experts and a shared one, or where there are none that one alone; positions if it says so."""
    shared = keys.whole("shared_intermediate_size", least=0) or 0
    position = {"position": "rotary" if keys.text("position_embedding_type") == "rope" else "none"}
    if keys.raw("num_local_experts"):
        return {**_experts(keys), **position, "shared_expert_intermediate_size": shared}
    keys.whole("num_local_experts", least=0)
    keys.whole("num_experts_per_tok", least=0)
    return {**position, "intermediate_size": shared}


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
    "llama4": _llama4,
    "ernie": _ernie,
    "delta": _delta,
    "turned": _turned,
    "kimi_delta": _kimi_delta,
    "mamba": _mamba,
    "blocks": _blocks,
    "granite_hybrid": _granite_hybrid,
}
"""What the table calls readers: fields that follow from keys of one architecture, beyond switches."""
