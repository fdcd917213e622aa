"""Levanter's YAML."""

from grammars.recipe_parts import as_yaml


def write(rng):
    """A file's name, its text, the facts expected of it and the options it needs."""
    kind, layers, length, batch = rng.choice(["gpt2", "llama"]), rng.choice([12, 24]), rng.choice([1024, 2048]), 512
    data = {
        "data": {"id": "openwebtext", "tokenizer": "gpt2"},
        "model": {"type": kind, "hidden_dim": 1024, "num_heads": 16, "num_layers": layers, "seq_len": length},
        "trainer": {
            "mp": "p=f32,c=bfloat16", "train_batch_size": batch, "num_train_steps": 100, "wandb": {"project": "levanter"},
        },
        "optimizer": {"learning_rate": 6e-4, "weight_decay": 0.1},
    }  # fmt: skip
    if kind == "llama":
        data["model"] |= {"intermediate_dim": 4096, "num_kv_heads": 16}
    expected = {
        "model.num_layers": layers, "model.hidden_size": 1024, "training.sequence_length": length, "model.vocab_size": 50257,
        "training.global_batch_size": batch, "training.precision": "bf16", "plan.zero_stage": 3, "gpus": 8,
        "training.tokens": 100 * batch * length, "model.gated_mlp": kind == "llama",
    }  # fmt: skip
    return "run.yaml", as_yaml(rng, data), expected, {"gpus": 8}
