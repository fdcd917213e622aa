"""Keys that one architecture alone has in Hugging Face's `config.json`, and fields that follow from several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.foreign.importers.huggingface.layer_kinds import KIND, ConfigKeys, blocks, layers_with_experts
from sim.foreign.importers.keys import MOST, table
from sim.foreign.importers.ledger import Section
from sim.foreign.importers.recipes.rows import RecipeRows

Fields = dict[str, Any]


_COUNT = ["num_local_experts", "num_experts", "n_routed_experts"]
_CHOSEN = ["num_experts_per_tok", "num_experts_per_token", "experts_per_token"]


def experts(rule: Mapping[str, Any], keys: ConfigKeys) -> Fields:
    """Experts by a row of the table's `experts`; intermediate_size is an expert's where the row names no width."""
    groups, some = (keys.whole(name, least=0) or 1 for name in ("n_group", "topk_group"))
    found: Fields = {
        "num_experts": keys.needed(*rule.get("experts", _COUNT)),
        "experts_per_token": keys.needed(*rule.get("chosen", _CHOSEN)),
        "num_expert_groups": groups if some < groups else None,
        "expert_groups_per_token": some if some < groups else None,
    }
    if "width" in rule:
        found["expert_intermediate_size"] = keys.needed(rule["width"])
    shared = rule.get("shared")
    number = 1 if shared == "one" else (keys.whole(*shared, least=0) or 0) if shared else None
    if "layers" in rule:
        found |= layers_with_experts(rule["layers"], keys)
    if "dense" in rule:
        found["intermediate_size"] = keys.needed(rule["dense"])
    width = found.get("expert_intermediate_size") or found.get("intermediate_size", 0)
    if "own_dense" in rule:
        found["intermediate_size"] = keys.whole(rule["own_dense"]) or width
    if number is not None:
        found["shared_expert_intermediate_size"] = number * width
    other = keys.whole(rule["same_width"]) if "same_width" in rule else None
    if other not in (None, width):
        raise keys.wrong(rule["same_width"], other, "is not an expert's, which flopcast cannot count")
    return found


_BLOCK_EXPERTS = (
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
)


def _blocks(keys: ConfigKeys) -> Fields:
    """Nemotron-H: one block a layer, experts only where a block has them."""
    found = blocks(keys)
    keys.take("n_shared_experts")  # whose width is said for all together
    if "sparse" not in found["mlp_layer_types"]:
        for name in _BLOCK_EXPERTS:
            keys.forget(name)
            value = keys.take(name)[1]
            if value is not None:
                keys.ledger.ignore(f"{keys.label}{name}", value, "no layer has experts")
        return found
    return {
        **found,
        "num_experts": keys.needed("n_routed_experts", "num_local_experts"),
        "experts_per_token": keys.needed("num_experts_per_tok"),
        "expert_intermediate_size": keys.needed("moe_intermediate_size"),
        "shared_expert_intermediate_size": keys.needed("moe_shared_expert_intermediate_size", least=0),
        "expert_latent_size": keys.whole("moe_latent_size") or 0,
    }


def _hunyuan(keys: ConfigKeys) -> Fields:
    """Numbers that files give once a layer, all of them alike; one shared expert where they do not say how many."""
    dense = keys.needed("intermediate_size")
    width, shared = _one_for_all(keys, "moe_intermediate_size") or dense, _one_for_all(keys, "num_shared_expert")
    return {
        "num_experts": keys.needed("num_experts"),
        "experts_per_token": _one_for_all(keys, "moe_topk", "num_experts_per_tok") or 1,
        "intermediate_size": dense,
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": (1 if shared is None else shared) * width,
    }


def _one_for_all(keys: ConfigKeys, *names: str) -> int | None:
    """A whole number, be it written once for each layer."""
    key, value = keys.take(*names)
    if value is None:
        return None
    each = value if isinstance(value, list) else [value]
    if len({str(item) for item in each}) != 1:
        raise keys.wrong(key, value, "differs from layer to layer, which flopcast cannot count")
    if type(each[0]) is not int or each[0] < 0:
        raise keys.wrong(key, value, "must be a whole number, or one for each layer")
    return each[0]


def _dbrx(keys: ConfigKeys) -> Fields:
    """DBRX: attention and experts in sections of their own."""
    attention, experts = keys.section("attn_config"), keys.section("ffn_config")
    width = experts.needed("ffn_hidden_size")
    found = {
        "num_kv_heads": attention.needed("kv_n_heads"),
        "num_experts": experts.needed("moe_num_experts"),
        "experts_per_token": experts.needed("moe_top_k"),
        "intermediate_size": width,
    }
    attention.leave()
    experts.leave()
    return found


def _kimi_delta(keys: ConfigKeys) -> Fields:
    """Kimi delta attention, whose sizes stand in a section of their own in files on the hub."""
    inside = keys.section("linear_attn_config")
    inside.take("full_attn_layers")
    inside.take("kda_layers")  # which the pattern of layers has read
    if inside.flag("use_full_rank_gate"):
        raise inside.wrong("use_full_rank_gate", True, "makes gates of another shape, which flopcast cannot count")
    found = {
        "linear_num_heads": inside.whole("num_heads") or keys.whole("linear_num_heads"),
        "linear_head_dim": inside.whole("head_dim") or keys.whole("linear_head_dim"),
        "linear_conv_kernel": inside.whole("short_conv_kernel_size") or keys.whole("linear_conv_kernel_dim"),
    }
    inside.leave()
    return found


def _mamba(keys: ConfigKeys) -> Fields:
    """Mamba-2: heads that share the B and C of their group, and a state of so many numbers a column."""
    heads, width = keys.needed("mamba_n_heads", "mamba_num_heads"), keys.raw("hidden_size")
    width = width if type(width) is int else 0  # which reading the sizes complains of
    if keys.raw("mamba_d_head") == "auto":
        keys.take("mamba_d_head")
        columns = max(1, (keys.whole("mamba_expand") or 2) * width // heads)
    else:
        columns = keys.needed("mamba_d_head", "mamba_head_dim")
    return {
        "linear_num_heads": heads,
        "linear_head_dim": columns,
        "linear_num_key_heads": keys.whole("mamba_n_groups", "n_groups") or 1,
        "linear_key_head_dim": keys.needed("mamba_d_state", "ssm_state_size"),
        "linear_conv_kernel": keys.whole("mamba_d_conv", "conv_kernel") or 4,
    }


def _latent(keys: ConfigKeys) -> Fields:
    """Latent attention: ranks, and of a head's columns those that turn with the position. Small models of the same type
    do without it (use_mla)."""
    if keys.flag("use_mla") is False:
        for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"):
            keys.forget(name)
            keys.take(name)
        return {}
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


def _mpt(keys: ConfigKeys) -> Fields:
    """MPT: attention and the MLP in sections of their own, of which LLM Foundry writes more than transformers reads."""
    attention, mlp = keys.section("attn_config"), keys.section("ffn_config")
    hidden = keys.raw("d_model") or keys.raw("hidden_size")
    heads = keys.raw("n_heads") or keys.raw("num_attention_heads")
    kind = attention.text("attn_type") or "multihead_attention"
    if kind == "grouped_query_attention":
        heads = attention.needed("kv_n_heads")
    elif kind == "multiquery_attention":
        heads = 1
    elif kind != "multihead_attention":
        raise attention.wrong("attn_type", kind, "is an attention that flopcast does not know")
    for key in ("qk_ln", "qk_gn"):
        if attention.flag(key):
            raise attention.wrong(key, True, "norms queries and keys, which flopcast cannot count here")
    alibi, rotary, learned = attention.flag("alibi"), attention.flag("rope"), keys.flag("learned_pos_emb")
    position = "none" if alibi is not False else "rotary" if rotary else "none" if learned is False else "learned"
    biased, norm = (
        keys.flag("no_bias") is False,
        "rmsnorm" if "rmsnorm" in (keys.text("norm_type") or "") else "layernorm",
    )
    ratio, width = keys.number("expansion_ratio") or 4, mlp.whole("ffn_hidden_size")
    found = {
        "position": position,
        "num_kv_heads": heads,
        "norm": norm,
        "bias": biased,
        "norm_bias": biased and norm == "layernorm",
        "gated_mlp": "glu" in (mlp.text("ffn_type") or ""),
        "intermediate_size": width or (int(ratio * hidden) if type(hidden) is int and 0 < hidden <= MOST else 1),
    }
    attention.leave()
    mlp.leave()
    return found


READERS: dict[str, Callable[[ConfigKeys], Fields]] = {
    "hunyuan_experts": _hunyuan,
    "dbrx": _dbrx,
    "blocks": _blocks,
    "mpt": _mpt,
    "latent": _latent,
    "kimi_delta": _kimi_delta,
    "mamba": _mamba,
}
"""What the table calls readers beside its rows: fields that follow from keys of one architecture."""


def fields_of(reader: str, keys: ConfigKeys) -> Fields:
    """What a reader of an architecture finds: by a row of the table, or by a function."""
    known = table(KIND)
    if reader in known["experts"]:
        return experts(known["experts"][reader], keys)
    if reader in known["positions"]:
        return {"position": "rotary" if any(keys.raw(name) for name in known["positions"][reader]) else "none"}
    if reader in known["sizes"]:
        return {field: _size(names, keys) for field, names in known["sizes"][reader].items()}
    if reader in known["readers"]:
        rows = RecipeRows.on(keys, {"model": Section("model", keys.ledger)}, {"experts": _experts_of_row})
        rows.follow(known["readers"][reader])
        return dict(rows.recipe.sections["model"])
    return READERS[reader](keys)


def _experts_of_row(rows: RecipeRows) -> None:
    rows.recipe.sections["model"].update(experts({}, rows.keys))


def _size(names: Sequence[str | int], keys: ConfigKeys) -> int:
    """A number by the keys that may hold it; it must be there unless a number behind them says what it is else."""
    *said, last = names
    if isinstance(last, str):
        return keys.needed(*map(str, names))
    return keys.whole(*map(str, said), least=min(1, last)) or last
