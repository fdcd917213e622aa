"""torchtitan's configurations in Python, as people write them."""

PARAMETERS = {
    "llama3 8B": 8.03e9, "llama3 70B": 70.55e9, "qwen3 8B": 8.19e9, "deepseek_v3 16B": 15.71e9, "llama3 1B": 1.236e9,
}  # fmt: skip


def write(rng):
    """A registry of two recipes, of which the second is built on the first: or one, whose precision is less."""
    model, flavor = rng.choice([*PARAMETERS]).split()
    tp, local, length = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4]), rng.choice([2048, 4096, 8192])
    said, replicated, gpus = (
        rng.choice(["full", "selective", "none"]),
        rng.choice([1, 1, 2]),
        tp * rng.choice([4, 8, 16]),
    )
    eight = rng.random() < 0.4
    facts = {
        "parameters": PARAMETERS[f"{model} {flavor}"], "plan.tp": tp, "plan.dp": gpus // tp, "gpus": gpus,
        "plan.recompute": {"selective": "per_op"}.get(said, said), "plan.microbatch_size": local,
        "training.sequence_length": length, "training.global_batch_size": local * gpus // tp,
        "training.precision": "fp8" if eight else "bf16",
    }  # fmt: skip
    converter = ', converters=[Float8LinearConverter.Config(filter_fqns=["output"])]' if eight else ""
    mode = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}[said]
    first = [
        f'model_spec=model_registry("{flavor}"{converter})',
        f"training=TrainingConfig(local_batch_size={local}, seq_len={length}, steps=50 * 2)",
        f"activation_checkpoint={mode}",
        "optimizer=default_adamw(lr=8e-4)",
        "checkpoint=CheckpointManager.Config(interval=500)",
    ]
    later = rng.random() < 0.5
    degrees = f"tensor_parallel_degree={tp}, data_parallel_replicate_degree={replicated}"
    if not later:
        first.append(f"parallelism=ParallelismConfig({degrees})")
    rng.shuffle(first)
    lines = [
        "from torchtitan.trainer import Trainer", "from torchtitan.config import ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        f"from torchtitan.models.{model} import model_registry", "", "",
        "def base(steps: int = 10) -> Trainer.Config:", '    """A recipe."""',
        f"    return Trainer.Config({', '.join(first)})",
    ]  # fmt: skip
    if later:
        lines += ["", "", "def longer() -> Trainer.Config:", "    config = base(steps=20)"]
        lines += [f"    config.parallelism.{each.strip().replace('=', ' = ')}" for each in degrees.split(",")]
        lines += ["    config.training.steps *= 2", "    return config"]
    options = rng.choice([{}, {"recipe": "longer" if later else "base"}])
    return "registry.py", "\n".join(lines) + "\n", facts, {"gpus": gpus, **options}
