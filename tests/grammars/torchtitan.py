"""torchtitan's TOML, old and new, and its configurations in Python, as people write them."""

PARAMETERS = {
    "llama3 8B": 8.03e9, "llama3 70B": 70.55e9, "qwen3 8B": 8.19e9, "deepseek_v3 16B": 15.71e9, "llama3 1B": 1.236e9,
}  # fmt: skip


def write(rng):
    model, flavor = rng.choice([*PARAMETERS]).split()
    tp, local, length = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4]), rng.choice([2048, 4096, 8192])
    mode, replicated = rng.choice(["full", "selective", "none"]), rng.choice([1, 1, 2])
    gpus = tp * rng.choice([4, 8, 16])
    facts = {
        "parameters": PARAMETERS[f"{model} {flavor}"], "plan.tp": tp, "plan.dp": gpus // tp, "gpus": gpus,
        "plan.recompute": {"selective": "per_op"}.get(mode, mode), "plan.microbatch_size": local,
        "training.sequence_length": length, "training.global_batch_size": local * gpus // tp,
        "training.precision": "bf16",
    }  # fmt: skip
    kind = rng.choice(["toml", "old", "python", "python"])
    parts = {
        "local": local, "length": length, "tp": tp, "replicated": replicated, "mode": mode, "flavor": flavor,
        "model": model,
    }  # fmt: skip
    if kind == "python":
        name, text, facts["training.precision"], options = _python(rng, parts)
        return name, text, facts, {"gpus": gpus, **options}
    text = _toml(rng, parts, kind == "old")
    if kind == "toml" and rng.random() < 0.7:  # a pipeline: local batches go through it one by one
        pp, schedule, ours = rng.choice(
            [(2, "1F1B", "1f1b"), (2, "GPipe", "gpipe"), (2, "Interleaved1F1B", "interleaved")]
        )
        degree = f"pipeline_parallel_degree = {pp}\npipeline_parallel_schedule = '{schedule}'"
        text = text.replace("[parallelism]", f"[parallelism]\n{degree}\ncontext_parallel_degree = 2")
        replicas = gpus // (tp * pp * 2)
        facts |= {"plan.pp": pp, "plan.cp": 2, "plan.schedule": ours, "plan.microbatch_size": 1, "plan.dp": replicas}
        facts |= {"plan.num_chunks": 2 if ours == "interleaved" else 1, "training.global_batch_size": local * replicas}
    return "train.toml", text, facts, {"gpus": gpus}


def _toml(rng, parts, old):
    degrees = [f"tensor_parallel_degree = {parts['tp']}", f"data_parallel_replicate_degree = {parts['replicated']}",
               "data_parallel_shard_degree = -1"]  # fmt: skip
    training = [
        f"{'batch_size' if old else 'local_batch_size'} = {parts['local']}",
        f"seq_len = {parts['length']}",
        "steps = 100",
    ]
    sections = {
        "job": ['dump_folder = "./outputs"', 'description = "a run"'],
        "model": [f'name = "{parts["model"]}"', f'flavor = "{parts["flavor"]}"'],
        "optimizer": ['name = "AdamW"', "lr = 3e-4"],
        "training": training + (degrees if old else []),
        "activation_checkpoint": [f'mode = "{parts["mode"]}"'] + ["selective_ac_option = 'op'"] * rng.choice([0, 1]),
    }
    if not old:
        sections["parallelism"] = degrees
    order = list(sections)
    rng.shuffle(order)
    for name in order:
        rng.shuffle(sections[name])
    return "\n\n".join("\n".join([f"[{name}]", *sections[name]]) for name in order) + "\n"


def _python(rng, parts):
    """A registry of two recipes, of which the second is built on the first: or one, whose precision is less."""
    eight = rng.random() < 0.4
    converter = ', converters=[Float8LinearConverter.Config(filter_fqns=["output"])]' if eight else ""
    mode = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}[parts["mode"]]
    first = [
        f'model_spec={rng.choice(["model_registry", "model_registry"])}("{parts["flavor"]}"{converter})',
        f"training=TrainingConfig(local_batch_size={parts['local']}, seq_len={parts['length']}, steps=50 * 2)",
        f"activation_checkpoint={mode}",
        "optimizer=default_adamw(lr=8e-4)",
        "checkpoint=CheckpointManager.Config(interval=500)",
    ]
    later = rng.random() < 0.5
    degrees = f"tensor_parallel_degree={parts['tp']}, data_parallel_replicate_degree={parts['replicated']}"
    if not later:
        first.append(f"parallelism=ParallelismConfig({degrees})")
    rng.shuffle(first)
    lines = [
        "from torchtitan.trainer import Trainer", "from torchtitan.config import ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        f"from torchtitan.models.{parts['model']} import model_registry", "", "",
        "def base(steps: int = 10) -> Trainer.Config:", '    """A recipe."""',
        f"    return Trainer.Config({', '.join(first)})",
    ]  # fmt: skip
    if later:
        lines += ["", "", "def longer() -> Trainer.Config:", "    config = base(steps=20)"]
        lines += [f"    config.parallelism.{each.strip().replace('=', ' = ')}" for each in degrees.split(",")]
        lines += ["    config.training.steps *= 2", "    return config"]
    options = rng.choice([{}, {"recipe": "longer" if later else "base"}])
    return "registry.py", "\n".join(lines) + "\n", "fp8" if eight else "bf16", options
