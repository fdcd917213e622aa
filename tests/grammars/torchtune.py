"""torchtune's recipes, whole models and adapters."""

from grammars.recipe_parts import as_yaml, with_some

BUILDERS = {
    "llama3_2.{}llama3_2_1b": 1235814400, "qwen2_5.{}qwen2_5_7b_instruct": 7615616512,
    "gemma2.{}gemma2_9b": 9241705984, "llama2.{}llama2_7b": 6738415616,
}  # fmt: skip

MORE = [  # (keys, facts): each by itself, whatever else the file says
    ({"dtype": "fp32"}, {"training.precision": "fp32"}),
    ({"optimizer._component_": "bitsandbytes.optim.PagedAdamW8bit"}, {"training.moment_precision": "int8"}),
    ({"tokenizer.max_seq_len": 4096}, {"training.sequence_length": 4096}),
    ({"loss._component_": "torch.nn.CrossEntropyLoss"}, {"stack.chunked_loss": False}),
    ({"fsdp_cpu_offload": True}, {"plan.optimizer_offload": 1.0}),
]  # fmt: skip


def write(rng):
    gpus, micro, steps = rng.choice([1, 8]), rng.choice([1, 2, 4]), rng.choice([1, 8])
    builder, compiled, again = rng.choice(list(BUILDERS)), rng.random() < 0.5, rng.random() < 0.5
    before = rng.choice(["", "lora_", "qlora_"])
    model = {"_component_": f"torchtune.models.{builder.format(before)}"}
    if before:
        model |= {"lora_attn_modules": ["q_proj", "v_proj", "output_proj"], "apply_lora_to_mlp": True, "lora_rank": 16}
        model |= {"apply_lora_to_output": False, "lora_alpha": 32, "lora_dropout": 0.0}
    data = {
        "output_dir": "/tmp/torchtune", "model": model, "batch_size": micro, "gradient_accumulation_steps": steps,
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
        "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": rng.choice([True, False])},
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"}, "device": "cuda", "dtype": "bf16",
        "compile": compiled, "enable_activation_checkpointing": again, "epochs": 1, "max_steps_per_epoch": None,
        "metric_logger": {"log_dir": "${output_dir}/logs"}, "checkpointer": {"model_type": "LLAMA3"},
    }  # fmt: skip
    expected = {
        "parameters": BUILDERS[builder], "gpus": gpus, "plan.microbatch_size": micro, "stack.compiled": compiled,
        "training.global_batch_size": micro * steps * gpus, "training.sequence_length": 2048,
        "plan.recompute": "full" if again else "none", "training.adapter_rank": 16 if before else 0,
    }  # fmt: skip
    with_some(rng, data, expected, MORE, 2)
    return "7B_full.yaml", as_yaml(rng, data), expected, {"gpus": gpus}
