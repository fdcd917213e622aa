"""OLMo's YAML."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"activation_checkpointing": "one_in_four"}, {"plan.recompute": "full", "plan.recompute_method": "block", "plan.recompute_num_layers": 4, "model.num_layers": 16}),
    ({"precision": "amp_fp16"}, {"training.precision": "fp16"}),
    ({"fsdp.sharding_strategy": "SHARD_GRAD_OP"}, {"plan.zero_stage": 3, "plan.reshard_after_forward": False}),
    ({"model.multi_query_attention": True}, {"model.num_kv_heads": 1}),
    ({"model.weight_tying": True}, {"model.tied_embeddings": True}),
    ({"model.rope": False}, {"model.position": "learned"}),
    ({"model.activation_type": "gelu"}, {"model.gated_mlp": False}),
    ({"model.layer_norm_type": "rms"}, {"model.norm": "rmsnorm"}),
]  # fmt: skip


def write(rng):
    layers, heads, ratio = rng.choice([16, 32]), rng.choice([16, 32]), rng.choice([4, 8])
    hidden, batch, micro, length = heads * 128, rng.choice([512, 2048]), rng.choice([2, 4]), rng.choice([2048, 4096])
    data = {
        "run_name": "OLMo", "seed": 6198, "global_train_batch_size": batch, "device_train_microbatch_size": micro,
        "model": {
            "d_model": hidden, "n_heads": heads, "n_layers": layers, "mlp_ratio": ratio, "weight_tying": False, "rope": True,
            "alibi": False, "activation_type": "swiglu", "include_bias": False, "layer_norm_type": "default", "vocab_size": 50280,
            "embedding_size": 50304, "max_sequence_length": length, "flash_attention": True, "block_type": "sequential",
        },
        "optimizer": {"name": "adamw", "learning_rate": 3e-4}, "precision": "amp_bf16", "max_duration": "2e12T",
        "fsdp": {"wrapping_strategy": "by_block", "precision": "mixed"}, "tokenizer": {"identifier": "dolma"},
    }  # fmt: skip
    expected = {
        "model.num_layers": layers, "model.intermediate_size": ratio * hidden // 2, "model.vocab_size": 50304,
        "model.tied_embeddings": False, "model.position": "rotary", "model.bias": False, "plan.zero_stage": 3,
        "training.global_batch_size": batch, "plan.microbatch_size": micro, "training.sequence_length": length,
        "training.tokens": 2e12, "plan.recompute": "none",
    }  # fmt: skip
    if rng.random() < 0.5:
        data["activation_checkpointing"] = "whole_layer"
        expected["plan.recompute"] = "full"
    if rng.random() < 0.5:
        data["compile"] = {"fullgraph": False}
    expected["stack.compiled"] = "compile" in data
    with_some(rng, data, expected, MORE, 3)
    data["model"]["n_layers"] = expected["model.num_layers"]
    if data["model"]["activation_type"] == "gelu":
        expected["model.intermediate_size"] = ratio * hidden
    return "OLMo-7B.yaml", as_yaml(rng, data), expected, {"gpus": 64}
