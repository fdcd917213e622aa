"""NeMo 1's YAML: GPT's and Llama's layers, values that name others."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"trainer.precision": "16"}, {"training.precision": "fp16"}),
    ({"model.context_parallel_size": 2}, {"plan.cp": 2}),
    ({"model.use_flash_attention": True}, {"stack.attention": "flash"}),
    ({"model.optim.grad_sync_dtype": "bf16"}, {"stack.gradient_precision": "bf16"}),
    ({"trainer.max_steps": 10}, {"training.tokens": 10}),
    ({"model.apply_rope_fusion": False}, {"stack.fused_rotary": False}),
]  # fmt: skip


def write(rng):
    nodes, tp, pp, chunks = rng.choice([2, 16]), rng.choice([1, 2, 8]), rng.choice([1, 2]), rng.choice([None, 2])
    length, llama = rng.choice([2048, 4096]), rng.random() < 0.5
    model = {
        "micro_batch_size": rng.choice([1, 2]), "global_batch_size": 256, "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": chunks if pp > 1 else None,
        "encoder_seq_length": length, "max_position_embeddings": "${.encoder_seq_length}", "num_layers": 32,
        "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
        "kv_channels": None, "make_vocab_size_divisible_by": 128, "sequence_parallel": rng.choice([True, False]),
        "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer", "model": None},
        "optim": {"name": rng.choice(["fused_adam", "distributed_fused_adam"]), "lr": 1e-4},
        "data": {"seq_length": "${model.encoder_seq_length}", "data_prefix": "???"}, "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip
    if llama:
        model |= {
            "normalization": "rmsnorm", "activation": "fast-swiglu", "bias": False, "position_embedding_type": "rope",
        }  # fmt: skip
        model |= {"share_embeddings_and_output_weights": False, "num_query_groups": 8, "ffn_hidden_size": 14336}
    granularity = rng.choice([None, "full", "selective"])
    if granularity is not None:
        model |= {"activations_checkpoint_granularity": granularity}
        model |= {"activations_checkpoint_method": "uniform", "activations_checkpoint_num_layers": 1}
    data = {
        "name": "megatron_gpt", "exp_manager": {"name": "megatron_gpt"}, "model": model,
        "trainer": {"num_nodes": nodes, "devices": 8, "precision": rng.choice(["bf16", "bf16-mixed"]), "max_steps": 100},
    }  # fmt: skip
    expected = {
        "gpus": 8 * nodes, "plan.tp": tp, "plan.pp": pp, "plan.microbatch_size": model["micro_batch_size"],
        "plan.num_chunks": chunks if pp > 1 and chunks else 1, "training.global_batch_size": 256,
        "training.sequence_length": length, "model.max_sequence_length": length, "training.precision": "bf16",
        "plan.sequence_parallel": model["sequence_parallel"] and tp > 1, "plan.recompute": granularity or "none",
        "plan.zero_stage": 1 if model["optim"]["name"].startswith("distributed") else 0, "model.gated_mlp": llama,
        "model.intermediate_size": 14336 if llama else 16384, "model.num_kv_heads": 8 if llama else 32,
        "model.norm": "rmsnorm" if llama else "layernorm",
    }  # fmt: skip
    with_some(rng, data, expected, MORE, 3)
    expected["training.tokens"] = data["trainer"]["max_steps"] * 256 * length
    expected["gpus"] = max(
        8 * nodes, tp * pp * expected.get("plan.cp", 1)
    )  # as few as hold the plan, which the account says
    return "megatron_gpt_config.yaml", as_yaml(rng, data), expected, {}
