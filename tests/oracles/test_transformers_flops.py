"""FLOPs are those torch counts when transformers' own models run forward and backward.

Small models run on the CPU, because experts are chosen by values. Multiplies of weights (`mm`, `addmm`) are compared with
projections, MLPs, routers and logits; batched multiplies (`bmm`) of models whose layers all attend with scores and values,
which transformers' eager attention computes whole, whatever a window hides. Of layers that carry a state only the
multiplies around it are compared: its core there is a loop over tokens or chunks that counts otherwise than any kernel.
Llama 4 is left out: its experts there all multiply all tokens.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from counts import layer_work, layers_forward_flop, logits_flop, mixer_core_flop
from rows import mostly_thorough, rows

from sim.foreign.importers import import_text
from sim.specs import ModelSpec, StackSpec
from sim.work.pieces import Cut

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch.utils import flop_counter  # noqa: E402

BATCH, SEQUENCE = 2, 64
SMALL = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "vocab_size": 160, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
# Model type, or one and what is unusual about it -> keys beside the small ones.
MODELS = {
    "llama": {"num_hidden_layers": 2},
    "mistral": {"num_hidden_layers": 2, "sliding_window": 16},
    "gemma3_text": {"num_hidden_layers": 7, "sliding_window": 16},
    "cohere2": {"num_hidden_layers": 5, "sliding_window": 16},
    "olmo3": {"num_hidden_layers": 5, "sliding_window": 16, "head_dim": None},
    "mixtral": {"num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {"num_hidden_layers": 4, "decoder_sparse_step": 2, **EXPERTS},
    "gpt_oss": {"num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
    "deepseek_v3": {"num_hidden_layers": 3, **LATENT, "head_dim": None},
    "glm4_moe": {"num_hidden_layers": 3, **{k: v for k, v in LATENT.items() if "lora" not in k}, "use_qk_norm": True},
    "ernie4_5_moe": {"num_hidden_layers": 3, "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 40, "head_dim": None},
    "qwen3_next": {"num_hidden_layers": 5, "shared_expert_intermediate_size": 48, **EXPERTS, **DELTA},
    "qwen3_5_text": {"num_hidden_layers": 5, **DELTA},
    "olmo_hybrid": {"num_hidden_layers": 5, **DELTA, "head_dim": None},
    "kimi_linear": {"num_hidden_layers": 5, **LATENT, "q_lora_rank": None, "num_local_experts": 8, "linear_num_heads": 4, "linear_head_dim": 16},
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1], **MAMBA, "head_dim": None},
    "granitemoehybrid": {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48, **MAMBA, "head_dim": None},
    "nemotron_h": {
        "hybrid_override_pattern": "M-*E", "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
        "n_groups": 2, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 48,
    },
}  # fmt: skip


def counted(kind, keys):
    """(the configuration's text, FLOPs of multiplies of weights, FLOPs of batched ones) of a forward and its backward."""
    shape = {name: value for name, value in {**SMALL, **keys}.items() if value is not None or name.endswith("_id")}
    if keys.get("q_lora_rank", 0) is None:
        shape["q_lora_rank"] = None
    if keys.get("sliding_window", 0) is None:
        shape["sliding_window"] = None
    try:
        config = transformers.AutoConfig.for_model(kind, **shape, attn_implementation="eager")
    except ValueError:
        pytest.skip(f"this release of transformers does not know {kind}")
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(0, 160, (BATCH, SEQUENCE))
    with flop_counter.FlopCounterMode(display=False, depth=None) as counter:
        model(tokens, use_cache=False).logits.sum().backward()
    found = counter.get_flop_counts()
    by_kind = {str(name).rpartition(".")[2]: flop for name, flop in found["Global"].items()}
    turning = sum(sum(flops.values()) for name, flops in found.items() if name.endswith("rotary_emb"))
    weights = by_kind.get("mm", 0) + by_kind.get("addmm", 0)
    return config.to_json_string(use_diff=False), weights, by_kind.get("bmm", 0) - turning


ALWAYS = ("llama", "gpt_oss", "qwen3_next", "nemotron_h")
"""Windows, experts and both kinds of state; the others run in the thorough form."""


@pytest.mark.parametrize("name", mostly_thorough(MODELS, ALWAYS))
def test_multiplies_are_those_of_transformers(name):
    text, weights, batched = counted(name.partition(" ")[0], MODELS[name])
    model = ModelSpec.read(import_text(text, "config.json").data["model"], name).replace(num_mtp_layers=0)
    credited = layers_forward_flop(model, BATCH, SEQUENCE)
    cores = sum(mixer_core_flop(model, BATCH, SEQUENCE, kind) for kind in model.kind_of_layer)
    assert 3 * (credited - cores + logits_flop(model, BATCH, SEQUENCE)) == pytest.approx(weights, rel=1e-12)
    if all(kind.attends for kind in model.kind_of_layer):
        whole = model.replace(layer_types=("full_attention",))
        assert 3 * model.num_layers * mixer_core_flop(whole, BATCH, SEQUENCE) == batched


@rows(("heads", "columns", "batch", "sequence"), [(8, 32, 1, 64), (8, 48, 3, 40)])
def test_flash_attention_runs_five_multiplies_backward_and_is_credited_four(heads, columns, batch, sequence):
    model = ModelSpec(num_layers=2, hidden_size=256, num_heads=heads, head_dim=columns, vocab_size=512)
    shape, cut = (batch, heads, sequence, columns), Cut(1, batch, sequence, False)
    math, flash = (layer_work(model, StackSpec(attention=name, kernel_launch_s=0.0), cut) for name in ("math", "flash"))
    (forward,) = (operation for operation in flash.forward.operations if operation.kind == "attention")
    (backward,) = (operation for operation in flash.input_grad.operations if operation.kind == "attention")
    # torch counts whole squares of scores, of which the kernels compute half.
    assert 2 * forward.flop == flop_counter.sdpa_flop_count(shape, shape, shape)
    assert 2 * backward.flop == flop_counter.sdpa_backward_flop_count(shape, shape, shape, shape)
    assert (flash.forward.model_flop, flash.input_grad.model_flop) == (math.forward.flop, math.input_grad.flop)
