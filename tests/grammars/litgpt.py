"""LitGPT's YAML of fine-tuning and of pre-training by a model's name."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"precision": "16-mixed"}, {"training.precision": "fp16"}),
    ({"train.max_seq_length": 2048}, {"training.sequence_length": 2048}),
    ({"optimizer": "AdamW"}, {"training.optimizer": "adam"}),
    ({"precision": "32-true"}, {"training.precision": "fp32"}),
]  # fmt: skip


def write(rng):
    devices, micro, batch, tuning = rng.choice([1, 4]), rng.choice([1, 2]), rng.choice([8, 16]), rng.random() < 0.6
    train = {
        "global_batch_size": batch, "micro_batch_size": micro, "max_seq_length": 512, "epochs": 2,
        "learning_rate": 2e-4,
    }  # fmt: skip
    data = {"precision": "bf16-true", "devices": devices, "train": train, "eval": {"interval": 100}, "seed": 1337}
    data |= {"out_dir": "out", "logger_name": "csv", "data": {"class_path": "litgpt.data.Alpaca"}}
    expected = {
        "gpus": devices, "plan.microbatch_size": micro, "training.global_batch_size": batch, "training.precision": "bf16",
        "training.sequence_length": 512, "parameters": 1100048384, "plan.zero_stage": 3 if devices > 1 else 0,
        "stack.compiled": not tuning, "training.adapter_rank": 0,
    }  # fmt: skip
    if tuning:
        data["checkpoint_dir"] = "checkpoints/TinyLlama/TinyLlama-1.1B-Chat-v1.0"
        if rng.random() < 0.6:
            data |= {
                "lora_r": 8, "lora_query": True, "lora_key": False, "lora_value": True, "lora_mlp": True,
                "quantize": None,
            }  # fmt: skip
            expected |= {
                "training.adapter_rank": 8,
                "training.adapter_targets": ["linear_qkv", "linear_fc1", "linear_fc2"],
            }
    else:
        data["model_name"] = "tiny-llama-1.1b"
    expected["plan.recompute"] = "full" if tuning and devices > 1 else "none"
    with_some(rng, data, expected, MORE, 1)
    return "lora.yaml", as_yaml(rng, data), expected, {}
