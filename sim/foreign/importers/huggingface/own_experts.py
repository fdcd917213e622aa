"""Experts in Hugging Face's `config.json`: how many, how wide, how many a token goes to, in which layers, by the keys
that an architecture alone has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.foreign.importers.huggingface.config_keys import ConfigKeys
from sim.foreign.importers.huggingface.layer_kinds import (
    after_the_first,
    between,
    blocks,
    by_step,
    experts_in,
    interleaved,
    number_of_layers,
)

Fields = dict[str, Any]


def _experts(keys: ConfigKeys) -> Fields:
    """How many experts and how many a token goes to; intermediate_size is an expert's, as ModelSpec takes it to be."""
    groups, some = (keys.whole(name, least=0) or 1 for name in ("n_group", "topk_group"))
    return {
        "num_experts": keys.needed("num_local_experts", "num_experts", "n_routed_experts"),
        "experts_per_token": keys.needed("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
        "num_expert_groups": groups if some < groups else None,
        "expert_groups_per_token": some if some < groups else None,
    }


def _wide_experts(keys: ConfigKeys) -> Fields:
    """Experts with a width of their own."""
    return {**_experts(keys), "expert_intermediate_size": keys.needed("moe_intermediate_size")}


def _first_dense(keys: ConfigKeys) -> Fields:
    """Experts behind the first layers, and `n_shared_experts` that every token goes to."""
    found = _wide_experts(keys)
    shared = keys.whole("n_shared_experts", "num_shared_experts", least=0) or 0
    width = keys.whole("moe_shared_expert_intermediate_size")
    if width not in (None, found["expert_intermediate_size"]):
        raise keys.wrong(
            "moe_shared_expert_intermediate_size", width, "is not an expert's, which flopcast cannot count"
        )
    return {
        **found,
        **after_the_first(keys),
        "shared_expert_intermediate_size": shared * found["expert_intermediate_size"],
    }


def _sparse_step(keys: ConfigKeys) -> Fields:
    return {**_wide_experts(keys), **by_step(keys)}


def _llama4(keys: ConfigKeys) -> Fields:
    """`intermediate_size` is an expert's and the shared one's, `intermediate_size_mlp` that of layers without."""
    width = keys.needed("intermediate_size")
    return {
        **_experts(keys),
        **interleaved(keys),
        "intermediate_size": keys.needed("intermediate_size_mlp"),
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": width,
    }


def _ernie(keys: ConfigKeys) -> Fields:
    width = keys.needed("moe_intermediate_size")
    return {
        "num_experts": keys.needed("moe_num_experts", "num_experts"),
        "experts_per_token": keys.needed("moe_k", "num_experts_per_tok"),
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": width * (keys.whole("moe_num_shared_experts", least=0) or 0),
        **between(keys),
    }


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


def _granite_hybrid(keys: ConfigKeys) -> Fields:
    """Granite 4: experts and a shared one, or where there are none that one alone; positions if it says so."""
    shared = keys.whole("shared_intermediate_size", least=0) or 0
    position = {"position": "rotary" if keys.text("position_embedding_type") == "rope" else "none"}
    if keys.raw("num_local_experts"):
        return {**_experts(keys), **position, "shared_expert_intermediate_size": shared}
    keys.whole("num_local_experts", least=0)
    keys.whole("num_experts_per_tok", least=0)
    return {**position, "intermediate_size": shared}


def _shared_expert(keys: ConfigKeys) -> Fields:
    return {"shared_expert_intermediate_size": keys.needed("shared_expert_intermediate_size")}


def _shared_width(keys: ConfigKeys) -> Fields:
    return {"shared_expert_intermediate_size": keys.whole("shared_intermediate_size", least=0) or 0}


def _wide_everywhere(keys: ConfigKeys) -> Fields:
    """Experts of a width of their own in every layer that `mlp_layer_types` does not call dense."""
    return {**_wide_experts(keys), **experts_in([True] * number_of_layers(keys), keys)}


def _leading_dense(keys: ConfigKeys) -> Fields:
    """Experts behind `num_dense_layers`, and `num_shared_experts` that every token goes to (AFMoE)."""
    found, dense = _wide_experts(keys), keys.whole("num_dense_layers", least=0) or 0
    shared = keys.whole("num_shared_experts", least=0) or 0
    return {
        **found,
        **experts_in([layer >= dense for layer in range(number_of_layers(keys))], keys),
        "shared_expert_intermediate_size": shared * found["expert_intermediate_size"],
    }


def _aria(keys: ConfigKeys) -> Fields:
    """`intermediate_size` is an expert's, and that of each of `moe_num_shared_experts`."""
    width, shared = keys.needed("intermediate_size"), keys.whole("moe_num_shared_experts", least=0) or 0
    return {
        "num_experts": keys.needed("moe_num_experts"),
        "experts_per_token": keys.needed("moe_topk"),
        "intermediate_size": width,
        "shared_expert_intermediate_size": shared * width,
    }


def _cohere2_moe(keys: ConfigKeys) -> Fields:
    """`intermediate_size` is an expert's and a shared one's, and that of layers without unless they have their own."""
    width, shared = keys.needed("intermediate_size"), keys.whole("num_shared_experts", least=0) or 0
    return {
        **_experts(keys),
        **after_the_first(keys),
        "intermediate_size": keys.whole("prefix_dense_intermediate_size") or width,
        "expert_intermediate_size": width,
        "shared_expert_intermediate_size": shared * width,
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


EXPERTS: dict[str, Callable[[ConfigKeys], Fields]] = {
    "experts": _experts,
    "first_dense": _first_dense,
    "leading_dense": _leading_dense,
    "wide_experts": _wide_everywhere,
    "sparse_step": _sparse_step,
    "shared_expert": _shared_expert,
    "shared_width": _shared_width,
    "llama4": _llama4,
    "ernie": _ernie,
    "aria": _aria,
    "cohere2_moe": _cohere2_moe,
    "hunyuan_experts": _hunyuan,
    "dbrx": _dbrx,
    "blocks": _blocks,
    "granite_hybrid": _granite_hybrid,
}
"""What the table calls readers, of architectures with experts."""
