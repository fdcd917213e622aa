"""Megatron-Bridge's YAML: configurations with their model, and what is laid over a recipe."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"model.recompute_granularity": "selective", "model.recompute_modules": ["mlp"]}, {"plan.recompute": "selective", "plan.recompute_modules": ["mlp"]}),
    ({"mixed_precision": "bf16_with_fp8_delayed_scaling_mixed"}, {"training.precision": "fp8"}),
    ({"mixed_precision": "bf16_with_mxfp8_mixed"}, {"training.precision": "mxfp8"}),
    ({"model.cuda_graph_impl": "none"}, {"plan.zero_stage": 1}),
    ({"optimizer.optimizer": "adam", "optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "bf16"}, {"training.moment_precision": "bf16", "training.second_moment_precision": "fp32"}),
    ({"ddp.overlap_grad_reduce": True}, {"stack.overlap_grad_reduce": True}),
    ({"model.context_parallel_size": 2}, {"plan.cp": 2}),
]  # fmt: skip


def write(rng):
    whole, after = rng.random() < 0.6, rng.choice(["", "_config"])
    tp, pp, micro, batch = rng.choice([1, 2, 4]), rng.choice([1, 4]), rng.choice([1, 2]), rng.choice([128, 256])
    model = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "context_parallel_size": 1}
    expected = {
        "gpus": 32, "plan.tp": tp, "plan.pp": pp, "plan.microbatch_size": micro, "training.global_batch_size": batch,
        "training.precision": "bf16", "stack.framework": "megatron-bridge",
    }  # fmt: skip
    data = {f"train{after}": {"global_batch_size": batch, "micro_batch_size": micro, "train_iters": 50}}
    data |= {f"ddp{after}": {"grad_reduce_in_fp32": True, "use_distributed_optimizer": True}}
    data |= {f"logger{after}": {"log_interval": 1}}
    options = {"gpus": 32}
    if whole:
        model |= {
            "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "ffn_hidden_size": 14336,
            "seq_length": 8192, "normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False,
            "share_embeddings_and_output_weights": False, "position_embedding_type": "rope", "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "bf16": True, "vocab_size": 128256, "fp8": None, "sequence_parallel": False,
        }  # fmt: skip
        expected |= {"parameters": 8030261248, "training.sequence_length": 8192, "plan.sequence_parallel": False}
        expected |= {"training.tokens": 50 * batch * 8192}
    else:
        options["model"] = "llama3-8b"
    data[f"model{after}"] = model
    expected["plan.zero_stage"] = 1
    if not after:
        with_some(rng, data, expected, MORE, 3)
    return "override.yaml", as_yaml(rng, data), expected, options
