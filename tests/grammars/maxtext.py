"""MaxText's YAML, laid over base.yml: a model by its name or by its numbers, meshes of several axes."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"attention": "dot_product"}, {"stack.attention": "math"}),
    ({"quantization": "", "dtype": "float32"}, {"training.precision": "fp32"}),
    ({"remat_policy": "none"}, {"plan.recompute": "none"}),
    ({"opt_type": "sgd"}, {"training.optimizer": "sgd"}),
    ({"quantization": "te_mxfp8"}, {"training.precision": "mxfp8"}),
]  # fmt: skip


def write(rng):
    tensor, fsdp, data_axis = rng.choice([1, 2, 4]), rng.choice([-1, 8]), rng.choice([-1, 2])
    each, length, policy = (
        rng.choice([1, 2, 4]),
        rng.choice([2048, 8192]),
        rng.choice(["full", "minimal", "minimal_flash"]),
    )
    steps = rng.choice([1, 2])
    gpus = 64 if -1 in (fsdp, data_axis) else tensor * fsdp * data_axis
    data = {
        "base_config": "base.yml", "run_name": "run", "hardware": "gpu", "steps": 30, "per_device_batch_size": each,
        "max_target_length": length, "remat_policy": policy, "attention": "cudnn_flash_te", "dataset_type": "synthetic", "gradient_accumulation_steps": steps,
        "ici_tensor_parallelism": tensor, "ici_fsdp_parallelism": fsdp, "dcn_data_parallelism": data_axis,
        "quantization": rng.choice(["", "fp8"]), "enable_checkpointing": False,
    }  # fmt: skip
    expected = {
        "gpus": gpus, "plan.tp": tensor, "plan.dp": gpus // tensor, "plan.zero_stage": 3, "plan.microbatch_size": each * tensor,
        "training.global_batch_size": each * gpus * steps, "training.sequence_length": length, "stack.framework": "xla",
        "plan.recompute": "full" if policy == "full" else "selective", "training.tokens": 30 * each * gpus * steps * length,
        "training.precision": "fp8" if data["quantization"] else "bf16",
    }  # fmt: skip
    replicas = gpus // tensor
    groups = data_axis if data_axis > 0 else replicas // fsdp if fsdp > 0 else 1
    expected["plan.sharding_group"] = replicas // groups if groups > 1 else None
    if rng.random() < 0.5:
        data["model_name"] = rng.choice(["llama2-7b", "llama3-8b", "llama3.1-8b", "mistral-7b"])
    else:
        data |= {
            "base_emb_dim": 4096, "base_num_query_heads": 32, "base_num_kv_heads": 8, "base_num_decoder_layers": 32,
        }  # fmt: skip
        data |= {"base_mlp_dim": 14336, "head_dim": 128, "vocab_size": 128256, "mlp_activations": ["silu", "linear"]}
        data |= {"decoder_block": rng.choice(["llama2", "mistral"])}
        expected["parameters"] = 8030261248
    with_some(rng, data, expected, MORE, 3)
    return "llama.yml", as_yaml(rng, data), expected, {"gpus": gpus}
