"""Surogate's YAML, whole models and adapters, in 16, 8 and 4 bits, with what it means where nothing is said."""

from grammars.recipe_parts import MODELS, TARGETS, as_yaml


def write(rng):
    model, gpus = (
        rng.choice(["meta-llama/Llama-3.2-1B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"]),
        rng.choice([1, 2, 8]),
    )
    data = {"model": model, "output_dir": "./output", "datasets": [{"path": "x", "type": "auto"}], "gpus": gpus, "learning_rate": 2e-4,
            "lora": rng.random() < 0.6, "max_steps": 10, "eval_steps": 25, "dataloader_num_workers": 4, "train_vision": False}  # fmt: skip
    said = {
        "per_device_train_batch_size": (2, [1, 4]), "gradient_accumulation_steps": (4, [1, 8]), "sequence_len": (1024, [512, 2048]),
        "zero_level": (1, [2, 3]), "recompute": (True, [False]), "recipe": ("bf16", ["fp8_hybrid", "fp8-hybrid"]),
    }  # fmt: skip
    value = {name: usual for name, (usual, _) in said.items()}
    for name, (_, others) in said.items():
        if rng.random() < 0.5:
            data[name] = value[name] = rng.choice(others)
    micro, steps, length = (
        value[name] for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "sequence_len")
    )
    expected = {
        "parameters": MODELS[model], "gpus": gpus, "stack.framework": "surogate", "plan.microbatch_size": micro, "plan.dp": gpus,
        "plan.zero_stage": value["zero_level"], "plan.recompute": "full" if value["recompute"] else "none",
        "training.global_batch_size": micro * steps * gpus, "training.sequence_length": length,
        "training.precision": "bf16" if value["recipe"] == "bf16" else "fp8", "training.moment_precision": "int8",
        "training.tokens": 10.0 * micro * steps * gpus * length, "training.adapter_rank": 0,
    }  # fmt: skip
    if data["lora"]:
        targets, ours = rng.choice(TARGETS)
        rank = rng.choice([None, 8])
        data |= {"lora_target_modules": targets, "lora_alpha": 32, "qlora_bnb": rng.random() < 0.5}
        data |= {"lora_rank": rank} if rank else {}
        expected |= {"training.adapter_rank": rank or 16, "training.adapter_targets": ours}
        expected["training.frozen_precision"] = "nf4" if data["qlora_bnb"] else None
    return "sft.yaml", as_yaml(rng, data), expected, {}
