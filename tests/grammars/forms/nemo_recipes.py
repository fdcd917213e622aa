"""NeMo 2's own recipes by name, changed by a script: what the release of the table sets, and what the script says."""

RECIPES = {  # (family, recipe) -> (parameters, tp, pp, chunks, cp, ep, sequence parallel, micro-batch, batch, sequence length)
    ("llama3_70b", "pretrain"): (70.55e9, 4, 4, 5, 2, 1, True, 1, 512, 8192),
    ("llama3_8b_64k", "pretrain"): (8.03e9, 4, 2, 1, 4, 1, True, 1, 512, 65536),
    ("llama32_1b", "pretrain"): (1.236e9, 1, 1, 1, 1, 1, False, 1, 512, 8192),
    ("llama2_7b", "pretrain"): (6.74e9, 2, 1, 1, 1, 1, False, 1, 512, 4096),
    ("mistral_7b", "pretrain"): (7.24e9, 1, 1, 1, 2, 1, False, 1, 512, 4096),
    ("mixtral_8x7b", "pretrain"): (46.7e9, 1, 4, 8, 1, 8, False, 1, 512, 4096),
    ("gemma_7b", "pretrain"): (8.54e9, 2, 1, 1, 2, 1, False, 1, 512, 8192),
    ("gpt3_175b", "pretrain"): (174.6e9, 4, 8, 6, 1, 1, True, 2, 2048, 2048),
    ("qwen25_32b", "pretrain"): (32.76e9, 8, 2, 1, 1, 1, False, 2, 32, 4096),
    ("qwen3_30b_a3b", "pretrain"): (30.53e9, 4, 2, 1, 1, 4, True, 2, 32, 4096),
    ("nemotron4_15b", "pretrain"): (15.6e9, 4, 1, 1, 1, 1, True, 2, 32, 4096),
    ("starcoder2_15b", "pretrain"): (15.96e9, 4, 2, 1, 1, 1, False, 2, 32, 4096),
    ("llama3_70b", "finetune"): (70.55e9, 8, 1, 1, 1, 1, False, 1, 128, 2048),
    ("mistral_7b", "finetune"): (7.24e9, 1, 1, 1, 1, 1, False, 1, 128, 2048),
    ("qwen25_7b", "finetune"): (7.62e9, 1, 1, 1, 1, 1, False, 1, 128, 2048),
    ("deepseek_v2_lite", "pretrain"): (15.71e9, 1, 1, 1, 1, 8, False, 1, 512, 4096),
}
FIELDS = (
    "plan.tp", "plan.pp", "plan.num_chunks", "plan.cp", "plan.ep", "plan.sequence_parallel", "plan.microbatch_size",
    "training.global_batch_size", "training.sequence_length",
)  # fmt: skip
RANKS = {"llama3_70b": 16, "mistral_7b": 32, "qwen25_7b": 32}
MORE = [  # (lines, facts): each by itself
    (["data.global_batch_size = 1024"], {"training.global_batch_size": 1024}),
    (["data.seq_length = 2048", "model.config.seq_length = 2048"], {"training.sequence_length": 2048}),
    (["trainer.strategy.context_parallel_size = 4"], {"plan.cp": 4}),
    (["trainer.strategy.virtual_pipeline_model_parallel_size = None"], {"plan.num_chunks": 1}),
    (["trainer.strategy.tensor_model_parallel_size = 2", "trainer.strategy.sequence_parallel = True"], {"plan.tp": 2, "plan.sequence_parallel": True}),
    (["trainer.plugins = bf16_with_fp8_mixed()"], {"training.precision": "fp8"}),
    (["model.config.recompute_granularity = 'full'", "model.config.recompute_method = 'block'", "model.config.recompute_num_layers = 1"], {"plan.recompute": "full", "plan.recompute_method": "block"}),
    (["optim.config.lr = 1e-4", "trainer.val_check_interval = 100", "log.ckpt = None"], {}),
    (["optim.config.use_precision_aware_optimizer = True", "optim.config.exp_avg_dtype = torch.bfloat16"], {"training.moment_precision": "bf16"}),
]  # fmt: skip


def write(rng):
    family, sort = rng.choice([*RECIPES])
    parameters, *values = RECIPES[family, sort]
    facts = {
        "parameters": parameters, "gpus": 256, "training.precision": "bf16", **dict(zip(FIELDS, values, strict=True)),
    }  # fmt: skip
    if facts["training.global_batch_size"] < 512:  # no multiple of what 256 GPUs take at once
        facts["training.global_batch_size"] = 512
    lines = [f"recipe.data.global_batch_size = {facts['training.global_batch_size']}", "recipe.trainer.max_steps = 50"]
    for said, known in rng.sample(MORE, 3):
        lines, facts = lines + [f"recipe.{each}" for each in said], facts | known
    if sort == "finetune":
        facts["training.adapter_rank"] = RANKS[family]
    facts["training.tokens"] = 50.0 * facts["training.global_batch_size"] * facts["training.sequence_length"]
    bare = f"from nemo.collections.llm.recipes.{family} import {sort}_recipe"
    begin, call = rng.choice([
        ("from nemo.collections import llm", f"llm.{family}.{sort}_recipe"), ("import nemo.collections.llm as llm", f"llm.recipes.{family}.{sort}_recipe"),
        (f"from nemo.collections.llm.recipes import {family}", f"{family}.{sort}_recipe"), (bare, f"{sort}_recipe"),
    ])  # fmt: skip
    nodes = rng.choice(["num_nodes=32, num_gpus_per_node=8", "num_nodes=NODES", "name='mine', num_nodes=NODES"])
    body = "\n    ".join([f"recipe = {call}({nodes})", *lines])
    text = f"""import nemo_run as run
import torch
{begin}
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed

NODES = 4 * 8


def configure():
    {body}
    return recipe


if __name__ == "__main__":
    run.run(configure(), executor=run.LocalExecutor())
"""
    return "train.py", text, facts, {}
