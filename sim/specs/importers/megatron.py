"""Megatron-LM's launch scripts: model, plan and training from the arguments of `pretrain_gpt.py`.

Argument names and defaults are those of NVIDIA/Megatron-LM (megatron/training/arguments.py), with the older names of
2021 and of Megatron-DeepSpeed.
"""

from __future__ import annotations

from typing import Any

from sim.specs.importers.defaults import Foreign, cluster_of, cluster_section, replicas
from sim.specs.importers.keys import Arguments, table
from sim.specs.importers.megatron_launch import gpus_of, training_command
from sim.specs.importers.megatron_model import KIND, read_model
from sim.specs.importers.megatron_plan import read_plan, take_chunks, take_fewer_layers, take_sharding_group
from sim.specs.importers.megatron_stack import read_stack
from sim.specs.importers.megatron_training import read_training, take_budget
from sim.specs.importers.shell import read_script


def is_megatron(text: str) -> bool:
    """Whether a text looks like such a script."""
    return "--num-layers" in text or "--num_layers" in text or "pretrain_gpt" in text


def read_megatron(file: Foreign) -> dict[str, Any]:
    """A scenario's sections from a script.

    Raises
    ------
    SpecError
        No training command, or a value that breaks a rule.
    """
    given, ledger = file.given, file.ledger
    script = read_script(file.text, ledger)
    launcher, words = training_command(script, ledger)
    arguments = Arguments(words, ledger, KIND)
    old = any(name in arguments for name in table(KIND)["old"])
    plan = read_plan(arguments)
    model = read_model(arguments, plan)
    training = read_training(arguments, model)
    take_chunks(plan, arguments, model)
    take_fewer_layers(plan, model["num_layers"])
    name, cluster = cluster_of(given, ledger)
    gpus = gpus_of(script, launcher, plan, given, ledger)
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    plan.took("dp", replicas(gpus, unit, ledger, "tp · pp · cp"), "GPUs over tp · pp · cp")
    take_sharding_group(plan, arguments)
    if training["global_batch_size"] is None:
        # megatron/training/arguments.py, validate_args.
        why = "Megatron-LM's default, one micro-batch a replica"
        training.assume("global_batch_size", plan["dp"] * plan["microbatch_size"], why)
    take_budget(training, arguments)
    stack = read_stack(arguments, old)
    arguments.leave()
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": file.model or model, "cluster": where, "plan": plan, "training": training, "stack": stack}
