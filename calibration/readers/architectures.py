"""What a table of runs does not say of a mixture of experts: the published shape of models known by their name.

Sources are the models' own `config.json` and reports. Tables give an expert's width, the number of experts and how many
a token goes to; shared experts, first layers without experts and latent attention follow from the name.
"""

from __future__ import annotations

import re
from typing import Any

from calibration.readers.cells import Row, Unmodelled, whole

_LATENT = {"key_value_rank": 512, "head_dim": 192, "rotary_head_dim": 64, "value_head_dim": 128}
"""Multi-head latent attention as DeepSeek-V2 brought it up (arXiv:2405.04434, section 3.1.2)."""

#: (pattern of the model's name, what its report or config.json says besides)
_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    # arXiv:2412.19437, section 4.2; arXiv:2507.20534, table 2 (Kimi K2)
    (r"deepseek.?v3|deepseek.?r1", {**_LATENT, "query_rank": 1536, "num_dense_layers": 3, "intermediate_size": 18432,
                                    "shared_expert_intermediate_size": 2048}),
    (r"kimi.?k2", {**_LATENT, "query_rank": 1536, "num_dense_layers": 1, "intermediate_size": 18432,
                   "shared_expert_intermediate_size": 2048}),
    # arXiv:2405.04434, section 3.1.2 and appendix B
    (r"deepseek.?v2.?lite|moonlight", {**_LATENT, "num_dense_layers": 1, "intermediate_size": 10944,
                                       "shared_expert_intermediate_size": 2816}),
    (r"deepseek.?v2", {**_LATENT, "query_rank": 1536, "num_dense_layers": 1, "intermediate_size": 12288,
                       "shared_expert_intermediate_size": 3072}),
    # arXiv:2505.09388, table 2
    (r"qwen3", {"head_dim": 128, "query_key_norm": "head"}),
    (r"qwen2.?57b|qwen2.?moe", {"qkv_bias": True, "shared_expert_intermediate_size": 20480}),
    # arXiv:2508.10925, section 2
    (r"gpt.?oss", {"head_dim": 64, "bias": True}),
    (r"llama.?4.*scout|llama.?4.*17b.?16e", {"shared_expert_intermediate_size": 8192}),
    (r"mixtral|dbrx|grok", {}),
)  # fmt: skip


def with_experts(row: Row, model: dict[str, Any], inferred: list[str]) -> dict[str, Any]:
    """A model's description with its experts; what the row says of widths is an expert's.

    Raises
    ------
    Unmodelled
        The row does not say how many experts a token goes to.
    """
    name = model["name"]
    known = next((facts for words, facts in _MODELS if re.search(words, name.lower())), None)
    found: dict[str, Any] = {
        "num_experts": whole(row, "experts"),
        "experts_per_token": whole(row, "topk"),
        "expert_intermediate_size": whole(row, "ffn_hidden"),
        "gated_mlp": row.get("gated_mlp") != "n",
        "position": "rotary",
        "norm": "rmsnorm",
        "bias": False,
        "tied_embeddings": False,
        "dropout": 0.0,
        **(known or {}),
    }
    if found.get("shared_expert_intermediate_size", 0) % whole(row, "tp", 1):
        raise Unmodelled("tp does not divide the width of the shared experts")
    listed = ", ".join(f"{key} {value}".replace("_", " ") for key, value in (known or {}).items())
    inferred.append(f"{listed or 'no shared experts, every layer with experts'}: by the model's name")
    if "key_value_rank" in found:
        model = {key: value for key, value in model.items() if key != "num_kv_heads"}
    return {**model, **found}


def head_dim_of(name: str) -> int | None:
    """Columns of a head, for models in which they are not the hidden size over the heads."""
    return next((facts.get("head_dim") for words, facts in _MODELS if re.search(words, name.lower())), None)
