"""Megatron-Bridge's own recipes with overrides: words of a command line behind --recipe, and lines of a script in Python."""

RECIPES = {  # recipe -> (parameters, layers, tp, pp, chunks, cp, ep, sequence parallel, micro-batch, batch, sequence length), of the 0.3 release
    "llama3_8b_pretrain_config": (8.03e9, 32, 1, 1, 1, 2, 1, False, 1, 512, 8192),
    "llama3_70b_pretrain_config": (70.55e9, 80, 4, 4, 5, 2, 1, True, 1, 512, 8192),
    "llama32_1b_pretrain_config": (1.236e9, 16, 1, 1, 1, 1, 1, False, 1, 512, 8192),
    "llama2_7b_pretrain_config": (6.74e9, 32, 2, 1, 1, 1, 1, False, 1, 512, 4096),
    "qwen3_8b_pretrain_config": (8.19e9, 36, 4, 1, 1, 1, 1, False, 2, 32, 4096),
    "qwen25_32b_pretrain_config": (32.76e9, 64, 8, 2, 1, 1, 1, False, 2, 32, 4096),
    "gemma2_9b_pretrain_config": (9.24e9, 42, 8, 1, 1, 1, 1, False, 2, 32, 4096),
    "qwen3_30b_a3b_pretrain_config": (30.53e9, 48, 4, 2, 1, 1, 4, True, 2, 32, 4096),
}
FIELDS = (
    "model.num_layers", "plan.tp", "plan.pp", "plan.num_chunks", "plan.cp", "plan.ep", "plan.sequence_parallel", "plan.microbatch_size",
    "training.global_batch_size", "training.sequence_length",
)  # fmt: skip
MORE = [  # (overrides, facts): each by itself
    ({"train.micro_batch_size": 4}, {"plan.microbatch_size": 4}),
    ({"train.train_iters": 200}, {}),
    ({"model.context_parallel_size": 4}, {"plan.cp": 4}),
    ({"dataset.seq_length": 16384, "model.seq_length": 16384}, {"training.sequence_length": 16384}),
    ({"model.tensor_model_parallel_size": 2, "model.sequence_parallel": True}, {"plan.tp": 2, "plan.sequence_parallel": True}),
    ({"model.virtual_pipeline_model_parallel_size": None}, {"plan.num_chunks": 1}),
    ({"model.pipeline_model_parallel_size": 4, "model.virtual_pipeline_model_parallel_size": 2, "model.num_layers": 24}, {"plan.pp": 4, "plan.num_chunks": 2, "model.num_layers": 24}),
    ({"mixed_precision": "bf16_with_mxfp8_mixed"}, {"training.precision": "mxfp8"}),
    ({"mixed_precision": "fp16_mixed"}, {"training.precision": "fp16"}),
    ({"ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": False}, {"stack.overlap_grad_reduce": True}),
    ({"optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "torch.bfloat16"}, {"training.moment_precision": "bf16"}),
    ({"model.cuda_graph_impl": "none"}, {"stack.cuda_graphs": "none"}),
]  # fmt: skip
RECOMPUTED = [  # the same, of which a file has one
    ({}, {}),
    ({"model.recompute_granularity": "full", "model.recompute_method": "block", "model.recompute_num_layers": 2}, {"plan.recompute": "full", "plan.recompute_method": "block", "plan.recompute_num_layers": 2}),
    ({"model.recompute_granularity": "selective", "model.recompute_modules": ["core_attn", "layernorm"]}, {"plan.recompute": "selective", "plan.recompute_modules": ["core_attn", "layernorm"]}),
]  # fmt: skip


def write(rng):
    name = rng.choice([*RECIPES])
    parameters, *values = RECIPES[name]
    facts = {
        "parameters": parameters, "plan.zero_stage": 1, "training.precision": "bf16",
        **dict(zip(FIELDS, values, strict=True)),
    }  # fmt: skip
    batch = rng.choice([512, 1024])
    said, facts = {"train.global_batch_size": batch}, facts | {"training.global_batch_size": batch, "gpus": 128}
    for overrides, known in (rng.choice(RECOMPUTED), *rng.sample(MORE, rng.choice([0, 1, 3]))):
        said, facts = said | overrides, facts | known
    if facts["model.num_layers"] == 24:
        del facts["parameters"]
    if name == "qwen3_30b_a3b_pretrain_config" and "plan.recompute" not in facts:
        facts |= {"plan.recompute": "full", "stack.expert_dispatcher": "deepep"}
    if "train.train_iters" in said:
        facts["training.tokens"] = 200.0 * facts["training.global_batch_size"] * facts["training.sequence_length"]
    form = rng.choice([_command, _script])
    return *form(rng, name, said), facts, {} if form is _command else {"gpus": 128}


def _command(rng, name, said):
    words = [f"{rng.choice(['', '', '++'])}{key}={_word(rng, value)}" for key, value in said.items()]
    rng.shuffle(words)
    lines = ["#!/bin/bash", "NODES=16", f'RECIPE="{name}"', f"EXTRA=({words[-1]})"]
    start = "torchrun --nproc_per_node=8 --nnodes=$NODES scripts/training/run_recipe.py --recipe $RECIPE"
    lines.append(
        " \\\n    ".join([start, *words[:-1], '"${EXTRA[@]}"', "logger.log_interval=1 checkpoint.save=/results"])
    )
    return "run.sh", "\n".join(lines) + "\n"


def _word(rng, value):
    if isinstance(value, list):
        return rng.choice(["'[{}]'", '"[{}]"']).format(",".join(value))
    word = "null" if value is None else rng.choice([str(value), str(value).lower()])
    return rng.choice([word, f'"{word}"'])


ARGUMENTS = (
    "micro_batch_size", "global_batch_size", "train_iters", "context_parallel_size", "seq_length", "tensor_model_parallel_size",
    "sequence_parallel", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_size",
)  # fmt: skip
"""Of recipes before the 0.3 release, which passed them on."""


def _script(rng, name, said):
    given = {}
    if rng.random() < 0.4:
        given = {key: value for key, value in said.items() if key.rpartition(".")[2] in ARGUMENTS}
    arguments = ", ".join({f"{key.rpartition('.')[2]}={value}" for key, value in given.items()})
    said = {key: value for key, value in said.items() if key not in given}
    lines = [
        f"    cfg.{key} = {value if str(value).startswith('torch.') else repr(value)}" for key, value in said.items()
    ]
    rng.shuffle(lines)
    body = "\n".join(lines)
    return (
        "train.py",
        f"""import torch
from megatron.bridge.recipes.llama import {name}
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def main():
    cfg = {name}({arguments})
{body}
    cfg.logger.log_interval = 1
    pretrain(cfg, forward_step)


if __name__ == "__main__":
    main()
""",
    )
