"""Hugging Face's config.json, as save_pretrained and people write it: alone and inside other models, with and without what
equals the class's own values, dense, with experts and hybrid."""

import json

NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3", "olmo2": "Olmo2"}
ROPES = [
    {"rope_theta": 10000.0, "rope_scaling": None},
    {"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
]  # fmt: skip
QUANTIZED = [
    {"bits": 4, "group_size": 128, "quant_method": "gptq", "desc_act": False},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "quant_method": "bitsandbytes"},
]


def write(rng):
    data, expected = rng.choice([_dense, _windows, _latent, _mixture, _blocks, _gpt2])(rng)
    if rng.random() < 0.4 and data.get("model_type") not in (None, "gpt2", "nemotron_h"):
        data, expected = _inside(data, expected, rng)
    if rng.random() < 0.2:
        data["quantization_config"] = rng.choice(QUANTIZED)
    return "config.json", json.dumps(_shuffled(data, rng), indent=2), expected, {}


def _shuffled(data, rng):
    items = list(data.items())
    rng.shuffle(items)
    return dict(items)


def _trunk(rng, kind):
    heads = rng.choice([16, 32, 40])
    sizes = {
        "num_hidden_layers": rng.choice([12, 24, 32]), "hidden_size": heads * 128, "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([8, heads]), "intermediate_size": rng.choice([8192, 11008, 14336]),
        "vocab_size": rng.choice([32000, 128256, 151936]),
        "max_position_embeddings": rng.choice([4096, 32768, 131072]),
        "tie_word_embeddings": rng.choice([True, False]),
    }  # fmt: skip
    data = {
        "architectures": [f"{NAMES.get(kind, kind.title())}ForCausalLM"], "model_type": kind, **sizes,
        "bos_token_id": 1, "eos_token_id": rng.choice([2, [128001, 128008]]), "hidden_act": "silu",
        "rms_norm_eps": 1e-05, "use_cache": True,
        "transformers_version": rng.choice(["4.31.0.dev0", "4.57.1", "5.3.0"]),
        rng.choice(["torch_dtype", "dtype"]): "bfloat16", **rng.choice(ROPES),
    }  # fmt: skip
    if rng.random() < 0.3:
        data |= {"pretraining_tp": 1, "attention_dropout": 0.0, "output_past": True, "pad_token_id": None}
    if rng.random() < 0.3:
        data["_name_or_path"] = "./checkpoints/run-7/step-1000"
    names = {
        "num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings", "tied_embeddings": "tie_word_embeddings",
    }  # fmt: skip
    return data, {f"model.{field}": sizes[key] for field, key in names.items()}


def _dense(rng):
    """Llama and kin. Files of before grouped queries do not say their key/value heads; some say biases."""
    kind = rng.choice(["llama", "mistral", "qwen2", "qwen3", "olmo2"])
    data, expected = _trunk(rng, kind)
    if kind == "qwen3":
        data["head_dim"] = expected["model.head_dim"] = rng.choice([64, 128])
    if kind == "llama" and rng.random() < 0.4:
        del data["num_key_value_heads"]
        expected["model.num_kv_heads"] = expected["model.num_heads"]
    if kind == "mistral" and data["num_key_value_heads"] == 8 and rng.random() < 0.5:
        del data["num_key_value_heads"]  # which its class has
    if kind == "mistral":
        data["sliding_window"] = rng.choice([None, 4096])
        expected["model.sliding_window"] = data["sliding_window"] or 0
    if kind in ("llama", "qwen3") and rng.random() < 0.5:
        data["attention_bias"] = expected["model.qkv_bias"] = rng.choice([True, False])
    if kind == "qwen2":
        data |= {"use_sliding_window": False, "max_window_layers": 21, "sliding_window": 32768}
        expected |= {"model.qkv_bias": True, "model.layer_types": ["full_attention"]}
    if not data["tie_word_embeddings"] and rng.random() < 0.3:
        del data["tie_word_embeddings"]
    return data, expected


def _windows(rng):
    """Gemma 3: windows by the list, by the pattern's length, or by what the class means; its embeddings are tied."""
    data, expected = _trunk(rng, "gemma3_text")
    layers, every = expected["model.num_layers"], rng.choice([6, 6, 4])
    data |= {"head_dim": 256, "sliding_window": rng.choice([512, 1024]), "query_pre_attn_scalar": 256}
    words = ["full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers)]
    if rng.random() < 0.5:
        data["layer_types"] = words
    elif every != 6 or rng.random() < 0.5:
        data["sliding_window_pattern"] = every
    data["tie_word_embeddings"] = expected["model.tied_embeddings"] = True
    if rng.random() < 0.5:
        del data["tie_word_embeddings"]
    return data, expected | {
        "model.layer_types": words[:every], "model.sliding_window": data["sliding_window"], "model.head_dim": 256,
    }  # fmt: skip


def _mixture(rng):
    """Mixtral, whose experts are as wide as it says; Qwen 3, whose have a width of their own."""
    kind = rng.choice(["mixtral", "qwen3_moe"])
    data, expected = _trunk(rng, kind)
    experts, some = rng.choice([(8, 2), (64, 6), (128, 8)])
    data |= {"num_experts_per_tok": some, "router_aux_loss_coef": 0.001, "output_router_logits": False}
    data["num_local_experts" if kind == "mixtral" else "num_experts"] = experts
    width = expected["model.intermediate_size"]
    if kind == "qwen3_moe":
        width = data["moe_intermediate_size"] = rng.choice([768, 1536])
        data |= {"head_dim": 128, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return data, expected | {
        "model.num_experts": experts, "model.experts_per_token": some, "model.expert_intermediate_size": width,
    }  # fmt: skip


def _latent(rng):
    """DeepSeek-V3 and its kin on the hub."""
    data, expected = _trunk(rng, rng.choice(["deepseek_v3", "kimi_k2"]))
    dense, heads = rng.choice([1, 3]), expected["model.num_heads"]
    data |= {
        "kv_lora_rank": 512, "q_lora_rank": rng.choice([None, 1536]), "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
        "topk_group": 4, "moe_intermediate_size": 2048, "first_k_dense_replace": dense, "moe_layer_freq": 1,
        "num_key_value_heads": rng.choice([heads, 128]), "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    }  # fmt: skip
    modules = rng.choice([None, 1])
    if modules:
        data["num_nextn_predict_layers"] = modules
    return data, expected | {
        "model.num_kv_heads": heads, "model.head_dim": 192, "model.key_value_rank": 512,
        "model.query_rank": data["q_lora_rank"] or 0, "model.num_experts": 256, "model.num_dense_layers": dense,
        "model.shared_expert_intermediate_size": 2048, "model.num_mtp_layers": modules or 0,
    }  # fmt: skip


def _blocks(rng):
    """Nemotron-H, whose files have Infinity in them, as Python writes it."""
    data, expected = _trunk(rng, "nemotron_h")
    pattern = rng.choice(["M-M*-", "MEM*E", "M-M-M*-M-"]) * rng.choice([2, 4])
    del data["num_hidden_layers"]
    data |= {
        "hybrid_override_pattern": pattern, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
        "n_groups": 8, "conv_kernel": 4, "head_dim": 128, "time_step_limit": [0.0, float("inf")], "use_conv_bias": True,
        "n_routed_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1024,
        "moe_shared_expert_intermediate_size": 2048,
    }  # fmt: skip
    return data, expected | {
        "model.num_layers": len(pattern), "model.num_experts": 32 if "E" in pattern else 0,
        "model.linear_num_heads": 64, "model.linear_key_head_dim": 128,
    }  # fmt: skip


def _gpt2(rng):
    """GPT-2 in its own words; old files name a class and no model_type."""
    heads = rng.choice([12, 16, 25])
    data = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": rng.choice([12, 24]), "n_head": heads,
        "n_embd": heads * 64, "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257, "resid_pdrop": 0.1,
        "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "summary_type": "cls_index",
    }  # fmt: skip
    if rng.random() < 0.5:
        data |= {
            "n_inner": None, "activation_function": "gelu_new", "task_specific_params": {"text": {"max_length": 50}},
        }  # fmt: skip
    layers, hidden = data["n_layer"], data["n_embd"]
    if rng.random() < 0.3:
        del data["model_type"]
    return data, {
        "model.num_layers": layers,
        "model.tied_embeddings": True,
        "parameters": layers * (12 * hidden**2 + 13 * hidden) + (50257 + 1024) * hidden + 2 * hidden,
    }


def _inside(data, expected, rng):
    """The same model inside another, where what equals the class's own may be left out."""
    kind = data["model_type"]
    section, wrapper = rng.choice(
        [("text_config", "llava"), ("llm_config", "internvl_chat"), ("language_config", "new_vl")]
    )
    if kind == "llama" and data["hidden_size"] == 4096 and rng.random() < 0.8:
        for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
            if data[key] in (4096, 32):
                del data[key]
        if data["intermediate_size"] == 11008:
            del data["intermediate_size"]
    outer = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": wrapper, section: _shuffled(data, rng),
        "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "model_type": "clip_vision_model"},
        "image_token_index": 32000, "projector_hidden_act": "gelu", "torch_dtype": "bfloat16",
    }  # fmt: skip
    if "tie_word_embeddings" in data and rng.random() < 0.5:
        outer["tie_word_embeddings"] = data.pop("tie_word_embeddings")
        outer[section] = data
    if kind == "llama" and wrapper == "llava" and rng.random() < 0.5:
        outer[section] = {key: value for key, value in data.items() if key != "model_type"}
    return outer, expected
