"""Axolotl's YAML, whole models and adapters, alone, under FSDP of both generations and under DeepSpeed."""

from grammars.recipe_parts import MODELS, TARGETS, as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"bf16": False, "fp16": True}, {"training.precision": "fp16"}),
    ({"gradient_checkpointing": "offload"}, {"plan.recompute": "full"}),
    ({"max_steps": 10}, {"training.tokens": 10.0}),
    ({"torch_compile": True}, {"stack.compiled": True}),
    ({"flash_attention": True}, {"stack.attention": "flash"}),
    ({"optimizer": "adafactor"}, {"training.optimizer": "adafactor", "training.moment_precision": "fp32"}),
]  # fmt: skip


def write(rng):
    gpus, micro, steps = rng.choice([1, 8, 16]), rng.choice([1, 2, 8]), rng.choice([1, 2, 4])
    model, length = rng.choice(list(MODELS)), rng.choice([512, 2048, 8192])
    data = {
        "base_model": model, "model_type": "AutoModelForCausalLM", "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
        "sequence_len": length, "micro_batch_size": micro, "gradient_accumulation_steps": steps, "bf16": rng.choice(["auto", True]),
        "learning_rate": 0.0002, "output_dir": "./out", "wandb_project": None, "num_epochs": 3, "load_in_8bit": False,
        "sample_packing": rng.choice([True, False]),
    }  # fmt: skip
    expected = {
        "parameters": MODELS[model], "gpus": gpus, "plan.microbatch_size": micro, "training.sequence_length": length,
        "training.global_batch_size": micro * steps * gpus, "training.precision": "bf16", "training.adapter_rank": 0,
        "plan.zero_stage": 0, "plan.recompute": "none",
    }  # fmt: skip
    if rng.random() < 0.5:
        data["gradient_checkpointing"] = True
        expected["plan.recompute"] = "full"
    name, moments = rng.choice(
        [("adamw_torch_fused", "fp32"), ("adamw_bnb_8bit", "int8"), ("paged_adamw_8bit", "int8")]
    )
    data["optimizer"], expected["training.moment_precision"] = name, moments
    kind = rng.choice(["full", "lora", "qlora"])
    if kind != "full":
        targets, ours = rng.choice(TARGETS)
        data |= {"adapter": kind, "lora_r": 32, "lora_alpha": 16, "load_in_4bit": kind == "qlora"}
        data |= {"lora_target_linear": True} if len(ours) == 4 else {"lora_target_modules": targets}
        expected |= {"training.adapter_rank": 32, "training.adapter_targets": ours}
    else:
        data |= {"adapter": None, "lora_r": None}
    sharded = rng.choice(["none", "fsdp", "fsdp2", "deepspeed"]) if gpus > 1 else "none"
    if sharded == "fsdp":
        data["fsdp"] = ["full_shard", "auto_wrap"]
        data["fsdp_config"] = {"fsdp_offload_params": False, "fsdp_state_dict_type": "FULL_STATE_DICT"}
    elif sharded == "fsdp2":
        data |= {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True, "offload_params": False}}
    elif sharded == "deepspeed":
        stage = rng.choice([1, 2, 3])
        data["deepspeed"] = f"deepspeed_configs/zero{stage}.json"
        expected |= {"plan.zero_stage": stage, "stack.framework": "deepspeed"}
    if sharded.startswith("fsdp"):
        expected["plan.zero_stage"] = 3
    with_some(rng, data, expected, MORE, 2)
    if (kind, sharded, data["optimizer"], expected["training.precision"]) == (
        "full",
        "none",
        "adamw_torch_fused",
        "bf16",
    ):
        expected["training.moment_precision"] = "bf16"  # of weights that are loaded in 16 bits and updated as they are
    if "training.tokens" in expected:
        expected["training.tokens"] *= micro * steps * gpus * length
    return "config.yml", as_yaml(rng, data), expected, {"gpus": gpus}
