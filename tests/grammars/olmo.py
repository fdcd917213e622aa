"""OLMo's YAML."""

from grammars.recipe_parts import as_yaml


def write(rng):
    """A file's name, its text, the facts expected of it and the options it needs."""
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
    return "OLMo-7B.yaml", as_yaml(rng, data), expected, {"gpus": 64}
