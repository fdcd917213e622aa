"""PaddleNLP's arguments: as JSON, or behind the program in a shell script."""

import json

from grammars.recipe_parts import MODELS


def write(rng):
    model, tp, pp, sharded = rng.choice(list(MODELS)[:5]), rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([1, 2])
    micro, steps, length = rng.choice([1, 2]), rng.choice([4, 8]), rng.choice([2048, 4096])
    granularity = rng.choice([None, "full", "core_attn"])
    stage, recompute = rng.choice([1, 2] if pp == 1 else [1]), rng.choice([True, False])
    data = {
        "model_name_or_path": model, "tokenizer_name_or_path": model, "input_dir": "./data", "output_dir": "out",
        "per_device_train_batch_size": micro, "gradient_accumulation_steps": steps, "max_seq_length": length,
        "tensor_parallel_degree": tp, "pipeline_parallel_degree": pp, "sharding_parallel_degree": sharded,
        "sharding": f"stage{stage}", "sequence_parallel": tp > 1, "bf16": True, "fp16_opt_level": "O2", "recompute": recompute,
        "use_flash_attention": True, "use_fused_rms_norm": rng.choice([True, False]), "learning_rate": 3e-5, "max_steps": 10,
        **({} if granularity is None else {"recompute_granularity": granularity}),
    }  # fmt: skip
    gpus = tp * pp * sharded * 2
    dp = gpus // (tp * pp)
    expected = {
        "parameters": MODELS[model], "gpus": gpus, "plan.tp": tp, "plan.pp": pp, "plan.dp": dp, "plan.zero_stage": stage if sharded > 1 else 0,
        "plan.microbatch_size": micro, "training.global_batch_size": micro * steps * dp, "training.precision": "bf16",
        "training.sequence_length": length, "plan.sequence_parallel": tp > 1, "stack.attention": "flash",
        "plan.recompute": "none" if not recompute else "selective" if granularity == "core_attn" else "full",
        "training.tokens": 10.0 * micro * steps * dp * length, "stack.fused_norm": data["use_fused_rms_norm"],
    }  # fmt: skip
    if rng.random() < 0.4:
        return "args.json", json.dumps(data), expected, {"gpus": gpus}
    devices = ",".join(map(str, range(gpus)))
    on = {True: rng.choice(["1", "true"]), False: rng.choice(["0", "false"])}
    flags = [f"--{name} {on.get(value, value) if isinstance(value, bool) else value}" for name, value in data.items()]
    begin = f'python -u -m paddle.distributed.launch --gpus "{devices}" --log_dir log run_pretrain.py'
    return "run.sh", " \\\n    ".join(["unset CUDA_VISIBLE_DEVICES\n" + begin, *flags]) + "\n", expected, {}
