"""Configurations of published models, as their config.json on the hub says them, and the parameters their cards name."""

_LATENT = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "tie_word_embeddings": False,
}  # fmt: skip
_GPT_OSS = {
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128, "attention_bias": True,
}  # fmt: skip
_LLAMA4 = {
    "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 1,
    "vocab_size": 202048, "attention_chunk_size": 8192,
}  # fmt: skip
_KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
# Name -> model type, keys of its configuration, and billions of parameters, without modules of multi-token prediction.
PUBLISHED = {
    "DeepSeek-V3": ("deepseek_v3", {
        **_LATENT, "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_routed_experts": 256, "first_k_dense_replace": 3, "vocab_size": 129280,
        "n_group": 8, "topk_group": 4,
    }, 671.03),
    "Kimi-K2": ("kimi_k2", {
        **_LATENT, "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64,
        "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840,
        "n_group": 1, "topk_group": 1,
    }, 1026.4),
    "GLM-4.5": ("glm4_moe", {
        "num_hidden_layers": 92, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 160,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 151552,
        "attention_bias": True, "use_qk_norm": True,
    }, 352.8),
    "GLM-4.5-Air": ("glm4_moe", {
        "num_hidden_layers": 46, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "vocab_size": 151552,
        "attention_bias": True, "use_qk_norm": False,
    }, 106.85),
    "Qwen3-Next-80B-A3B": ("qwen3_next", {
        "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 5120, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "full_attention_interval": 4, "decoder_sparse_step": 1,
    }, 79.67),
    "Qwen3-30B-A3B": ("qwen3_moe", {
        "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }, 30.53),
    "Qwen3-235B-A22B": ("qwen3_moe", {
        "num_hidden_layers": 94, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }, 235.09),
    "Qwen3-32B": ("qwen3", {
        "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    }, 32.76),
    "gpt-oss-20b": ("gpt_oss", {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32}, 20.91),
    "gpt-oss-120b": ("gpt_oss", {**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}, 116.83),
    "Gemma3-27B": ("gemma3_text", {
        "num_hidden_layers": 62, "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208, "sliding_window": 1024,
    }, 27.01),
    "Gemma-2-9B": ("gemma2", {
        "num_hidden_layers": 42, "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
    }, 9.24),
    "Llama4-Scout": ("llama4_text", {**_LLAMA4, "num_local_experts": 16, "interleave_moe_layer_step": 1}, 107.77),
    "Llama4-Maverick": ("llama4_text", {**_LLAMA4, "num_local_experts": 128, "interleave_moe_layer_step": 2}, 400.71),
    "Nemotron-H-8B": ("nemotron_h", {
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "hidden_size": 4096,
        "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
        "vocab_size": 131072,
    }, 8.10),
    "Nemotron-3-Nano-30B-A3B": ("nemotron_h", {
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "hidden_size": 2688,
        "intermediate_size": 1856, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "vocab_size": 131072,
    }, 31.58),
    "Kimi-Linear-48B-A3B": ("kimi_linear", {
        "num_hidden_layers": 27, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_attention_heads": 32, "num_key_value_heads": 32, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256,
        "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 163840,
        "linear_attn_config": {
            "full_attn_layers": _KIMI_FULL, "kda_layers": sorted({*range(1, 28)} - {*_KIMI_FULL}),
            "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        },
    }, 49.12),
    "Granite-4-H-Small": ("granitemoehybrid", {
        "num_hidden_layers": 40, "hidden_size": 4096, "intermediate_size": 768, "shared_intermediate_size": 1536,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 72, "num_experts_per_tok": 10,
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "mamba_n_heads": 128, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 100352,
        "tie_word_embeddings": True,
    }, 32.2),
    "Bamba-9B": ("bamba", {
        "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "vocab_size": 128256,
    }, 9.78),
    "OLMo3-32B": ("olmo3", {
        "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 100278, "sliding_window": 4096,
    }, 32.23),
    "Command-A": ("cohere2", {
        "num_hidden_layers": 64, "hidden_size": 12288, "intermediate_size": 36864, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 256000, "sliding_window": 4096,
    }, 111.06),
    "Mistral-Small-24B": ("mistral", {
        "num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 32768, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "sliding_window": None,
    }, 23.57),
    "Mixtral-8x22B": ("mixtral", {
        "num_hidden_layers": 56, "hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48,
        "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }, 140.62),
    "MiniMax-M2": ("minimax_m2", {
        "num_hidden_layers": 62, "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064, "num_local_experts": 256,
        "num_experts_per_tok": 8,
    }, 228.7),
    "ERNIE-4.5-21B-A3B": ("ernie4_5_moe", {
        "num_hidden_layers": 28, "hidden_size": 2560, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 20, "num_key_value_heads": 4, "moe_num_experts": 64, "moe_num_shared_experts": 2,
        "moe_k": 6, "moe_layer_start_index": 1, "vocab_size": 103424, "tie_word_embeddings": True,
    }, 21.83),
    "dots.llm1": ("dots1", {
        "num_hidden_layers": 62, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "n_routed_experts": 128,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 152064,
    }, 142.77),
    "Seed-OSS-36B": ("seed_oss", {
        "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 80,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 155136, "attention_bias": True,
        "attention_out_bias": False,
    }, 36.15),
    "EXAONE-4.0-32B": ("exaone4", {
        "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 27392, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 102400, "sliding_window": 4096,
        "sliding_window_pattern": 4,
    }, 32.0),
    "SmolLM3-3B": ("smollm3", {
        "num_hidden_layers": 36, "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 128256, "tie_word_embeddings": True,
    }, 3.075),
    "Phi-3-mini": ("phi3", {
        "num_hidden_layers": 32, "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32064, "sliding_window": 2047,
    }, 3.82),
}  # fmt: skip
