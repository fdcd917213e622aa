"""NeMo 2's recipes in Python: scripts that call the framework's own and change them, and recipes of one's own."""


def write(rng):
    nodes, tp, batch, length = (
        rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([128, 256]), rng.choice([4096, 8192]),
    )  # fmt: skip
    micro, steps = rng.choice([1, 2]), rng.choice([100, 1000])
    facts = {
        "gpus": 8 * nodes, "plan.tp": tp, "plan.cp": 1, "plan.microbatch_size": micro,
        "training.global_batch_size": batch, "training.sequence_length": length,
        "training.tokens": float(steps * batch * length), "parameters": 8.03e9, "training.precision": "bf16",
    }  # fmt: skip
    parts = {"nodes": nodes, "tp": tp, "batch": batch, "length": length, "micro": micro, "steps": steps}
    form = rng.choice([_script, _script, _own])
    return "train.py", form(rng, parts, facts), facts, {}


def _script(rng, parts, facts):
    """configure_recipe() and run_pretraining(), as the framework's quickstart has them."""
    changes = [
        f"recipe.trainer.max_steps = {parts['steps']}",
        f"recipe.trainer.strategy.tensor_model_parallel_size = {parts['tp']}",
        "recipe.trainer.strategy.context_parallel_size = 1",
        f"recipe.data = run.Config(PreTrainingDataModule, seq_length={parts['length']}, global_batch_size={parts['batch']}, "
        f"micro_batch_size={parts['micro']})",
        "recipe.trainer.val_check_interval = 100",
        "recipe.optim.config.lr = 3e-4",
    ]
    if rng.random() < 0.4:
        changes += [
            'recipe.model.config.recompute_granularity = "full"',
            'recipe.model.config.recompute_method = "uniform"',
        ]
        facts["plan.recompute"] = "full"
    rng.shuffle(changes)
    body = "\n    ".join(changes)
    adapters, call = "", "pretrain_recipe"
    if rng.random() < 0.4:
        call, rank = "finetune_recipe", rng.choice([8, 16])
        adapters = f"recipe.peft.dim = {rank}"
        facts["training.adapter_rank"] = rank
    said = rng.choice([True, True, False])
    nodes, default = (parts["nodes"], 1) if said else ("", parts["nodes"])
    return f"""import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule


def configure_recipe(nodes: int = {default}, gpus_per_node: int = 8):
    recipe = llm.llama3_8b.{call}(
        dir="/checkpoints", name="run", num_nodes=nodes, num_gpus_per_node=gpus_per_node,
    )
    {body}
    {adapters}
    return recipe


def run_training():
    recipe = configure_recipe({nodes})
    run.run(recipe, executor=local_executor(), name="run")


if __name__ == "__main__":
    run_training()
"""


def _own(rng, parts, facts):
    """A recipe of one's own: model(), trainer() and pretrain_recipe()."""
    wrapped = rng.choice(["bf16_mixed()", "[bf16_mixed()]"])
    facts["plan.zero_stage"] = 1
    return f"""from typing import Optional

import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.gpt.data.mock import MockDataModule
from nemo.collections.llm.gpt.model.llama import Llama3Config8B, LlamaModel
from nemo.collections.llm.recipes.optim.adam import distributed_fused_adam_with_cosine_annealing
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_mixed


@run.cli.factory(name="mine")
def model():
    return run.Config(LlamaModel, config=run.Config(Llama3Config8B))


def trainer(tensor_parallelism: int = 1, num_nodes: int = 1, max_steps: int = {parts["steps"]}, fp8: Optional[bool] = None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        pipeline_model_parallel_size=1,
        context_parallel_size=1,
        sequence_parallel=tensor_parallelism > 1,
    )
    plugins = {wrapped}
    if fp8:
        plugins.fp8 = "hybrid"
    return run.Config(
        nl.Trainer, devices=8, num_nodes=num_nodes, max_steps=max_steps, plugins=plugins, strategy=strategy
    )


@run.cli.factory(name="mine")
def pretrain_recipe(name: str = "default", num_nodes: int = {parts["nodes"]}) -> run.Partial:
    recipe = run.Partial(
        pretrain,
        model=model(),
        trainer=trainer(tensor_parallelism={parts["tp"]}, num_nodes=num_nodes),
        data=run.Config(
            MockDataModule, seq_length={parts["length"]}, global_batch_size={parts["batch"]}, micro_batch_size={parts["micro"]}
        ),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    return recipe
"""
