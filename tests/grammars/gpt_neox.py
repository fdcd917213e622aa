"""GPT-NeoX's YAML and JSON: names with dashes or underscores, with DeepSpeed's settings beside the model's."""

import json

from grammars.recipe_parts import as_yaml, shuffled


def write(rng):
    tp, pp, micro, steps, stage = (rng.choice(each) for each in ([1, 2, 4], [1, 2], [1, 4], [1, 8], [0, 1]))
    replicas, layers, heads, length = (
        rng.choice([2, 8]), rng.choice([16, 32]), rng.choice([16, 32]), rng.choice([1024, 2048]),
    )  # fmt: skip
    half, again, rotary, tied = rng.choice(["fp16", "bf16"]), *(rng.random() < 0.5 for _ in range(3))
    data = {
        "pipe-parallel-size": pp if pp > 1 else rng.choice([0, 1]), "model-parallel-size": tp, "num-layers": layers,
        "hidden-size": heads * 64, "num-attention-heads": heads, "seq-length": length, "max-position-embeddings": length,
        "norm": "layernorm", "no-weight-tying": not tied, "gpt-j-residual": rng.random() < 0.5, "init-method": "small_init",
        "optimizer": {"type": "Adam", "params": {"lr": 0.0006, "betas": [0.9, 0.95], "eps": 1e-8}},
        "zero-optimization": {"stage": stage, "allgather_partitions": True, "overlap_comm": True},
        "train-micro-batch-size-per-gpu": micro, "gradient-accumulation-steps": steps, "data-impl": "mmap",
        "checkpoint-activations": again, "checkpoint-num-layers": 1, half: {"enabled": True}, "train-iters": 100, "log-interval": 100,
    }  # fmt: skip
    if rotary:
        data |= {"pos-emb": "rotary", "rotary-pct": 0.25}
    words = 50257
    if rng.random() < 0.5:
        data |= {"vocab-file": "data/20B_tokenizer.json", "tokenizer-type": "HFTokenizer"}
        words = 50277
    expected = {
        "model.num_layers": layers, "model.hidden_size": heads * 64, "model.intermediate_size": heads * 256, "model.gated_mlp": False,
        "model.position": "rotary" if rotary else "learned", "model.tied_embeddings": tied,
        "model.vocab_size": -(-words // (128 * tp)) * 128 * tp, "plan.tp": tp, "plan.pp": pp, "plan.dp": replicas,
        "plan.zero_stage": stage, "plan.microbatch_size": micro, "plan.recompute": "full" if again else "none",
        "training.global_batch_size": micro * steps * replicas, "training.sequence_length": length, "training.precision": half,
        "training.tokens": 100 * micro * steps * replicas * length, "gpus": tp * pp * replicas,
    }  # fmt: skip
    if rng.random() < 0.5:
        data = {key.replace("-", "_"): value for key, value in data.items()}
    text = json.dumps(shuffled(rng, data), indent=2) if rng.random() < 0.5 else as_yaml(rng, data)
    return rng.choice(["20B.yml", "pythia.yaml"]), text, expected, {"gpus": tp * pp * replicas}
