"""DeepSpeed's JSON, in the sizes and spellings that people use."""

import json

from grammars.recipe_parts import with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"zero_optimization.overlap_comm": True}, {"plan.recompute": "full"}),
    ({"zero_optimization.contiguous_gradients": True, "optimizer": {"type": "SGD"}}, {"training.optimizer": "sgd"}),
    ({"data_types.grad_accum_dtype": "fp32"}, {"stack.gradient_precision": "fp32"}),
    ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, {"training.optimizer": "adam"}),
]  # fmt: skip


def write(rng):
    gpus, micro, steps = rng.choice([8, 16, 64]), rng.choice([1, 2, 4]), rng.choice([1, 2, 8])
    stage, half = rng.choice([0, 1, 2, 3]), rng.choice(["fp16", "bf16"])
    data = {
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps, half: {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": rng.choice([True, False]), "reduce_bucket_size": 5e8},
        "gradient_clipping": 1.0, "steps_per_print": 10,
    }  # fmt: skip
    if rng.random() < 0.5:
        data["train_batch_size"] = micro * steps * gpus
    if rng.random() < 0.5:
        data["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    expected = {
        "plan.zero_stage": stage, "plan.microbatch_size": micro, "training.global_batch_size": micro * steps * gpus,
        "training.precision": half,
        "plan.optimizer_offload": 1.0 if "offload_optimizer" in data["zero_optimization"] else 0.0, "gpus": gpus,
    }  # fmt: skip
    if rng.random() < 0.3:  # one of the three numbers alone: the batch of all GPUs in one micro-batch each
        del data["gradient_accumulation_steps"]
        data.pop("train_batch_size", None)
        expected["training.global_batch_size"] = micro * gpus
        if rng.random() < 0.5:
            del data["train_micro_batch_size_per_gpu"]
            data["train_batch_size"] = micro * gpus
    with_some(rng, data, expected, MORE, 2)
    items = list(data.items())
    rng.shuffle(items)
    return "ds_config.json", json.dumps(dict(items), indent=2), expected, {"gpus": gpus, "model": "llama2-7b"}
