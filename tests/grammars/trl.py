"""The Trainer's arguments, in YAML and in JSON, as TRL and alignment-handbook write them."""

import json

from grammars.recipe_parts import MODELS, TARGETS, as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"optim": "adamw_8bit"}, {"training.moment_precision": "int8"}),
    ({"optim": "adafactor"}, {"training.optimizer": "adafactor"}),
    ({"bf16": False, "fp16": False}, {"training.precision": "fp32"}),
    ({"max_steps": 10}, {"training.tokens": 10.0}),
    ({"num_train_epochs": 3}, {}),
]  # fmt: skip


def write(rng):
    length_key, default = rng.choice([("max_seq_length", "none"), ("max_length", "full")])
    return trainer(rng, {"torch_dtype": "bfloat16"}, length_key, "use_peft", default=default)


def trainer(rng, more, length_key, switch, rank_key="lora_r", targets_key="lora_target_modules", default="none"):
    """A recipe of the Trainer's kin: what else stands in it, and how they call length and adapters."""
    gpus, micro, steps = rng.choice([1, 8]), rng.choice([1, 4, 16]), rng.choice([1, 2])
    model, length, precision = rng.choice(list(MODELS)), rng.choice([1024, 4096]), rng.choice(["bf16", "fp16"])
    data = {
        "model_name_or_path": model, "per_device_train_batch_size": micro, "gradient_accumulation_steps": steps,
        "learning_rate": 2e-5, "num_train_epochs": 1, "max_steps": -1, length_key: length, precision: True,
        "output_dir": "data/out", "logging_steps": 5, "lr_scheduler_type": "cosine", "seed": 42, **more,
    }  # fmt: skip
    expected = {
        "parameters": MODELS[model], "gpus": gpus, "plan.microbatch_size": micro, "training.precision": precision,
        "training.global_batch_size": micro * steps * gpus, "training.sequence_length": length,
        "training.adapter_rank": 0, "plan.recompute": default,
    }  # fmt: skip
    if rng.random() < 0.5:
        data |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
        expected["plan.recompute"] = "full"
    if rng.random() < 0.5:
        targets, ours = rng.choice(TARGETS)
        data |= {switch: "lora" if switch != "use_peft" else True, rank_key: 16, targets_key: targets}
        expected |= {"training.adapter_rank": 16, "training.adapter_targets": ours}
    elif switch != "use_peft":
        data[switch] = "full"
    if rng.random() < 0.5:
        data["deepspeed"] = "configs/ds_z3_config.json"
        expected |= {"plan.zero_stage": 3, "stack.framework": "deepspeed"}
    if rng.random() < 0.3:
        data["use_liger_kernel"] = True
        expected["stack.chunked_loss"] = True
    with_some(rng, data, expected, MORE, 1)
    if "training.tokens" in expected:
        expected["training.tokens"] *= expected["training.global_batch_size"] * length
    if rng.random() < 0.3:
        return "args.json", json.dumps(data, indent=1), expected, {"gpus": gpus}
    return "recipe.yaml", as_yaml(rng, data), expected, {"gpus": gpus}
