"""accelerate's YAML, as `accelerate config` writes it."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"mixed_precision": "no"}, {"training.precision": "fp32"}),
    ({"dynamo_config.dynamo_backend": "INDUCTOR"}, {"stack.compiled": True}),
    ({"gradient_accumulation_steps": 4}, {"plan.microbatch_size": 1}),
]  # fmt: skip


def write(rng):
    gpus, precision = rng.choice([2, 8, 16]), rng.choice(["bf16", "fp16"])
    kind = rng.choice(["FSDP", "DEEPSPEED", "MULTI_GPU", "NO"])
    data = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "mixed_precision": precision, "debug": False,
        "num_machines": 1, "num_processes": gpus, "machine_rank": 0, "use_cpu": False, "downcast_bf16": "no", "tpu_env": [],
    }  # fmt: skip
    expected = {"gpus": 1 if kind == "NO" else gpus, "training.precision": precision, "plan.zero_stage": 0}
    if kind == "FSDP":
        word, stage, reshard = rng.choice([("FULL_SHARD", 3, True), ("SHARD_GRAD_OP", 3, False), (1, 3, True)])
        data["fsdp_config"] = {
            "fsdp_sharding_strategy": word, "fsdp_offload_params": False, "fsdp_use_orig_params": True,
        }  # fmt: skip
        expected |= {"plan.zero_stage": stage, "plan.reshard_after_forward": reshard}
    if kind == "DEEPSPEED":
        stage, device = rng.choice([1, 2, 3]), rng.choice(["cpu", "none"])
        data["deepspeed_config"] = {"zero_stage": stage, "offload_optimizer_device": device}
        expected |= {"plan.zero_stage": stage, "plan.optimizer_offload": 1.0 if device == "cpu" else 0.0}
    with_some(rng, data, expected, MORE, 1)
    return "accelerate.yaml", as_yaml(rng, data), expected, {"model": "llama3-8b"}
