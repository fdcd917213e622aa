"""llm-foundry's YAML: MPT in the old and the new form, with values that name others."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"fsdp_config.activation_checkpointing": False}, {"plan.recompute": "none"}),
    ({"fsdp_config.sharding_strategy": "SHARD_GRAD_OP"}, {"plan.reshard_after_forward": False}),
    ({"fsdp_config.sharding_strategy": "NO_SHARD"}, {"plan.zero_stage": 0}),
    ({"precision": "amp_fp16"}, {"training.precision": "fp16"}),
    ({"model.attn_config.attn_impl": "torch"}, {"stack.attention": "math"}),
    ({"model.attn_config.alibi": True}, {"model.position": "none"}),
    ({"model.attn_config.attn_type": "multiquery_attention"}, {"model.num_kv_heads": 1}),
    ({"max_duration": "1000000tok"}, {"training.tokens": 1e6}),
    ({"optimizer.name": "adafactor"}, {"training.optimizer": "adafactor"}),
]  # fmt: skip


def write(rng):
    layers, heads, gpus = rng.choice([12, 24, 32]), rng.choice([12, 16, 32]), rng.choice([8, 64])
    hidden, batch, micro, length = heads * 64, rng.choice([256, 1024]), rng.choice([1, 2, 4]), rng.choice([1024, 2048])
    variables = rng.random() < 0.5
    place = "variables.max_seq_len" if variables else "max_seq_len"
    model = {
        "name": rng.choice(["mpt_causal_lm", "mosaic_gpt"]), "init_device": "meta", "d_model": hidden, "n_heads": heads,
        "n_layers": layers, "max_seq_len": f"${{{place}}}", "vocab_size": 50368,
        "attn_config": {"attn_impl": rng.choice(["triton", "flash"])},
    }  # fmt: skip
    model |= rng.choice([{"expansion_ratio": 4}, {"mlp_ratio": 4}, {"ffn_config": {"expansion_ratio": 4}}, {}])
    model |= rng.choice([{"no_bias": True}, {}])
    data = {
        "max_seq_len": f"${{{place}}}" if variables else length, "model": model, "global_train_batch_size": batch,
        "device_train_microbatch_size": micro, "max_duration": rng.choice(["100ba", "2ep"]), "precision": "amp_bf16",
        "optimizer": {"name": "decoupled_adamw", "lr": 1.2e-4}, "tokenizer": {"name": "EleutherAI/gpt-neox-20b"},
        "fsdp_config": {"sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE", "activation_checkpointing": True},
        "train_loader": {"name": "text", "dataset": {"max_seq_len": f"${{{place}}}"}},
    }  # fmt: skip
    if variables:
        data["variables"] = {"max_seq_len": length, "global_seed": 17}
    expected = {
        "model.num_layers": layers, "model.hidden_size": hidden, "model.intermediate_size": 4 * hidden, "gpus": gpus,
        "model.bias": "no_bias" not in model, "model.position": "learned", "model.max_sequence_length": length,
        "training.sequence_length": length, "training.global_batch_size": batch, "plan.microbatch_size": micro,
        "plan.zero_stage": 3, "plan.recompute": "full", "training.precision": "bf16",
    }  # fmt: skip
    if data["max_duration"] == "100ba":
        expected["training.tokens"] = 100 * batch * length
    with_some(rng, data, expected, MORE, 2)
    if data["fsdp_config"]["sharding_strategy"] == "NO_SHARD":
        expected.pop("plan.reshard_after_forward", None)
    elif "plan.reshard_after_forward" in expected and data["fsdp_config"]["sharding_strategy"] != "SHARD_GRAD_OP":
        expected["plan.reshard_after_forward"] = True
    expected["plan.zero_stage"] = 0 if data["fsdp_config"]["sharding_strategy"] == "NO_SHARD" else 3
    return "mpt.yaml", as_yaml(rng, data), expected, {"gpus": gpus}
