"""Levanter's YAML."""

from grammars.recipe_parts import as_yaml, with_some

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"trainer.per_device_parallelism": 16}, {"plan.microbatch_size": 16}),
    ({"trainer.mp": "p=f32,c=f32"}, {"training.precision": "fp32"}),
    ({"model.gradient_checkpointing": False}, {"plan.recompute": "none"}),
    ({"lora.r": 8}, {"training.adapter_rank": 8}),
    ({"model.use_flash_attention": True}, {"stack.attention": "flash"}),
    ({"trainer.num_train_steps": 10, "trainer.train_batch_size": 256}, {"training.global_batch_size": 256}),
]  # fmt: skip


def write(rng):
    kind, layers, length, batch = rng.choice(["gpt2", "llama"]), rng.choice([12, 24]), rng.choice([1024, 2048]), 512
    data = {
        "data": {"id": "openwebtext", "tokenizer": "gpt2"},
        "model": {"type": kind, "hidden_dim": 1024, "num_heads": 16, "num_layers": layers, "seq_len": length},
        "trainer": {"mp": "p=f32,c=bfloat16", "train_batch_size": batch, "num_train_steps": 100, "wandb": {"project": "levanter"}},
        "optimizer": {"learning_rate": 6e-4, "weight_decay": 0.1},
    }  # fmt: skip
    if kind == "llama":
        data["model"] |= {"intermediate_dim": 4096, "num_kv_heads": 16}
    expected = {
        "model.num_layers": layers, "model.hidden_size": 1024, "training.sequence_length": length, "model.vocab_size": 50257,
        "training.global_batch_size": batch, "training.precision": "bf16", "plan.zero_stage": 3, "gpus": 8,
        "model.gated_mlp": kind == "llama",
    }  # fmt: skip
    expected |= {"plan.dp": 8, "plan.recompute": "full"}
    if rng.random() < 0.5:
        data["trainer"]["model_axis_size"] = 2
        expected |= {"plan.tp": 2, "plan.dp": 4}
    with_some(rng, data, expected, MORE, 4)
    trainer = data["trainer"]
    expected["training.tokens"] = trainer["num_train_steps"] * trainer["train_batch_size"] * length
    if "per_device_parallelism" not in trainer:
        expected["plan.microbatch_size"] = trainer["train_batch_size"] // expected["plan.dp"]
    return "run.yaml", as_yaml(rng, data), expected, {"gpus": 8}
