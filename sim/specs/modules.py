"""Parts of a transformer layer that can be recomputed, or launched as CUDA graphs, one by one: Megatron-Core's names.

Each of them stands for modules that operations and collectives of `sim.work` carry. Megatron-Core with Transformer
Engine runs the norm before a multiply inside that multiply's module, so that it goes with `attn` and `mlp`; the norms
before latent attention and before experts are modules of their own [1]_.

.. [1] NVIDIA/Megatron-LM:megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_layer_with_transformer_engine_submodules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sim.errors import nearest

if TYPE_CHECKING:
    from sim.specs.model import ModelSpec

ROUTED = ("moe_router", "moe_preprocess", "moe_dispatch", "experts", "moe_act", "shared_experts")
"""Modules of operations of a layer of experts, between its norm and its residual."""

RECOMPUTE_MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("core_attn",),
    "layernorm": ("attn_layernorm", "moe_layernorm"),
    "mla_up_proj": ("mla_up_proj",),
    "mlp": ("mlp",),
    "moe": ROUTED,
    "moe_act": ("moe_act",),
    "shared_experts": ("shared_experts",),
}
"""What a layer may recompute, by name, and the modules of operations that run again.

layernorm, mla_up_proj and moe_act only throw their output away, which the multiplies that read it get back before their
backward; the others run again from their input (NVIDIA/Megatron-LM:megatron/core/transformer/transformer_config.py,
recompute_modules).
"""

GRAPH_MODULES: Mapping[str, tuple[str, ...]] = {
    "attn": ("attn", "attn_layernorm", "core_attn", "mla_up_proj"),
    "mlp": ("mlp", "mlp_residual"),
    "moe_router": ("moe_layernorm", "moe_router", "shared_experts"),
    "moe_preprocess": ("moe_preprocess",),
    "mamba": ("mamba",),
}
"""Parts of a layer that may be a CUDA graph, by name, and the modules of operations in each.

The router's holds the norm before it and experts that every token goes through; what follows the host's wait for the
numbers of tokens is launched kernel by kernel (NVIDIA/Megatron-LM:docs/user-guide/features/cuda_graph.md). Megatron-
Core's `moe`, for experts that drop what exceeds a fixed number of tokens, has no counterpart: none are dropped here.
"""


def what_is_missing(model: ModelSpec, module: str) -> str:
    """What a model would need to have a module of RECOMPUTE_MODULES; empty where it has that."""
    needs = {
        "moe": (model.num_experts, "experts"),
        "moe_act": (model.num_experts, "experts"),
        "shared_experts": (model.shared_expert_intermediate_size, "shared experts"),
        "mla_up_proj": (model.key_value_rank, "latent attention"),
        "mlp": (model.has("dense"), "layers without experts"),
    }
    there, what = needs.get(module, (True, ""))
    return "" if there else what


def as_names(value: Any) -> Any:
    """Names of a file or a command line as a list: one text may hold several, between commas, pluses or blanks."""
    return tuple(each for each in re.split(r"[\s,+]+", value) if each) if isinstance(value, str) else value


def check_names(field: str, names: Collection[str], known: Collection[str]) -> None:
    """Refuse names that are not known, or that stand twice.

    Raises
    ------
    ValueError
        With the name that is meant, where one is near.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"{field} has no {name!r}{nearest(name, known)}")
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(f"{field} names {twice[0]!r} twice; keep one")
