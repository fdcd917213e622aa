"""nanotron's YAML."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"parallelism.recompute_layer": True}, {"plan.recompute": "full"}),
    ({"parallelism.pp_engine": "afab"}, {"plan.schedule": "gpipe"}),
    ({"model.dtype": "float32"}, {"training.precision": "fp32"}),
    ({"model.model_config.tie_word_embeddings": False}, {"model.tied_embeddings": False}),
    ({"model.model_config.num_key_value_heads": 32}, {"model.num_kv_heads": 32}),
    ({"optimizer.accumulate_grad_in_fp32": True}, {"stack.gradient_precision": "fp32"}),
]  # fmt: skip


def write(rng):
    dp, tp, pp = rng.choice([1, 2, 8]), rng.choice([1, 2, 4]), rng.choice([1, 2])
    micro, steps, length, mode = (
        rng.choice([1, 2]), rng.choice([4, 8]), rng.choice([2048, 4096]),
        rng.choice(["REDUCE_SCATTER", "ALL_REDUCE"]),
    )  # fmt: skip
    kind, stage = rng.choice(["is_llama_config", "is_qwen2_config"]), rng.choice([0, 1])
    data = {
        "general": {"project": "p", "run": "r", "seed": 42}, "checkpoints": {"checkpoint_interval": 10},
        "model": {
            "dtype": "bfloat16", "ddp_bucket_cap_mb": 25, "make_vocab_size_divisible_by": 1,
            "model_config": {
                kind: True, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
                "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
            },
        },
        "optimizer": {"zero_stage": stage, "accumulate_grad_in_fp32": True, "optimizer_factory": {"name": "adamW"}},
        "parallelism": {"dp": dp, "tp": tp, "pp": pp, "pp_engine": "1f1b", "tp_mode": mode},
        "tokens": {"micro_batch_size": micro, "batch_accumulation_per_replica": steps, "sequence_length": length, "train_steps": 10},
    }  # fmt: skip
    batch = micro * steps * dp
    expected = {
        "gpus": dp * tp * pp, "plan.dp": dp, "plan.tp": tp, "plan.pp": pp, "plan.zero_stage": stage,
        "plan.sequence_parallel": mode == "REDUCE_SCATTER" and tp > 1, "training.global_batch_size": batch,
        "plan.microbatch_size": micro, "training.sequence_length": length, "training.tokens": 10 * batch * length, "model.num_kv_heads": 8,
        "model.qkv_bias": kind == "is_qwen2_config",
    }  # fmt: skip
    with_some(rng, data, expected, MORE, 4)
    return "config.yaml", as_yaml(rng, data), expected, {}
