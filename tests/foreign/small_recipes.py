"""The smallest recipe of each kind that says what its kind must."""

import json

SMALL = {
    "llm_foundry": {
        "model": {"name": "mpt_causal_lm", "d_model": 256, "n_heads": 8, "n_layers": 4, "vocab_size": 1024},
        "max_seq_len": 512, "global_train_batch_size": 64, "device_train_microbatch_size": 2,
        "fsdp_config": {"sharding_strategy": "FULL_SHARD"},
    },
    "olmo": {
        "model": {"d_model": 256, "n_heads": 8, "n_layers": 4, "mlp_ratio": 8, "vocab_size": 1024, "rope": True,
                  "max_sequence_length": 512, "include_bias": False},
        "global_train_batch_size": 64, "device_train_microbatch_size": 2, "fsdp": {"sharding_strategy": "FULL_SHARD"},
    },
    "maxtext": {"base_config": "base.yml", "model_name": "llama2-7b", "hardware": "gpu", "per_device_batch_size": 2, "max_target_length": 512},
    "nanotron": {
        "model": {"model_config": {"is_llama_config": True, "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 1024,
                                   "num_attention_heads": 8, "intermediate_size": 512, "max_position_embeddings": 512}},
        "parallelism": {"dp": 2, "tp": 2, "pp": 2},
        "tokens": {"micro_batch_size": 2, "sequence_length": 512, "batch_accumulation_per_replica": 4},
    },
    "nemo_yaml": {
        "trainer": {"num_nodes": 1, "devices": 8, "precision": "bf16"}, "exp_manager": {"name": "megatron_gpt"},
        "model": {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "encoder_seq_length": 512,
                  "micro_batch_size": 1, "global_batch_size": 64, "tensor_model_parallel_size": 2},
    },
    "bridge_yaml": {
        "model": {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 512, "tensor_model_parallel_size": 2},
        "train": {"micro_batch_size": 1, "global_batch_size": 64}, "mixed_precision": {"bf16": True},
    },
    "automodel": {
        "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                  "pretrained_model_name_or_path": "meta-llama/Llama-3.2-1B"},
        "distributed": {"tp_size": 1}, "step_scheduler": {"global_batch_size": 64, "local_batch_size": 2},
        "dataset": {"seq_length": 512},
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"}, "batch_size": 2, "dtype": "bf16",
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 512},
        "optimizer": {"_component_": "torch.optim.AdamW"},
    },
    "axolotl": {"base_model": "NousResearch/Llama-3.2-1B", "sequence_len": 512, "micro_batch_size": 2, "bf16": "auto"},
    "llama_factory": {"model_name_or_path": "meta-llama/Llama-3.2-1B", "stage": "sft", "finetuning_type": "full", "cutoff_len": 512, "per_device_train_batch_size": 2},
    "trl": {"model_name_or_path": "meta-llama/Llama-3.2-1B", "per_device_train_batch_size": 2, "max_seq_length": 512, "learning_rate": 1e-5},
    "swift": {"model": "Qwen/Qwen2.5-1.5B", "train_type": "full", "per_device_train_batch_size": 2, "dataset": "alpaca"},
    "surogate": {"model": "Qwen/Qwen3-0.6B", "sequence_len": 512, "per_device_train_batch_size": 2, "recipe": "bf16", "lora": False, "gpus": 8},
    "accelerate": {"distributed_type": "FSDP", "num_processes": 8, "mixed_precision": "bf16"},
    "prime_rl": {"model": {"name": "Qwen/Qwen3-0.6B"}, "data": {"seq_len": 512, "batch_size": 64}, "optim": {"lr": 1e-5}},
    "levanter": {"model": {"type": "gpt2", "num_layers": 4, "hidden_dim": 256, "num_heads": 8, "seq_len": 512}, "trainer": {"train_batch_size": 64, "mp": "p=f32,c=bfloat16"}},
    "verl": {"data": {"train_batch_size": 64, "max_length": 512}, "trainer": {"n_gpus_per_node": 8}, "model": {"partial_pretrain": "Qwen/Qwen2.5-1.5B"}},
    "paddlenlp": {"model_name_or_path": "meta-llama/Llama-3.2-1B", "sharding_parallel_degree": 8, "per_device_train_batch_size": 2, "output_dir": "o"},
    "gpt_neox": {
        "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 512, "pipe_parallel_size": 1,
        "model_parallel_size": 1, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    },
    "litgpt": {"checkpoint_dir": "checkpoints/meta-llama/Llama-3.2-1B", "devices": 1, "train": {"global_batch_size": 8, "micro_batch_size": 2, "max_seq_length": 512}},
}  # fmt: skip


def with_keys(base, keys):
    """Nested settings with values at dotted places."""
    data = json.loads(json.dumps(base))
    for path, value in keys.items():
        *sections, last = path.split(".")
        place = data
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    return data
