"""Megatron-LM: a script with its options in arrays, as its own examples have them, for `pretrain_gpt.py`."""

from __future__ import annotations

import shlex
from typing import Any

from sim.foreign.exporters.account import Account
from sim.foreign.exporters.megatron_model import is_hybrid, say_model
from sim.foreign.exporters.megatron_plan import say_plan
from sim.foreign.exporters.megatron_stack import say_stack
from sim.foreign.exporters.megatron_training import say_training
from sim.foreign.exporters.writing import Options, launcher_lines


def megatron_options(account: Account) -> Options:
    """The scenario in Megatron-Core's options, whatever spells them.

    Raises
    ------
    SpecError
        It cannot run the plan.
    """
    options = Options(account)
    for say in (say_model, say_plan, say_training, say_stack):
        say(options)
    account.settle()
    return options


def export_megatron_lm(account: Account) -> tuple[str, dict[str, Any]]:
    """The script, and its words by the arrays they stand in."""
    account.cover("stack.nvls")
    options = megatron_options(account)
    arrays: dict[str, list[str]] = {}
    lines: list[str] = []
    for heading, said in options.groups.items():
        if not said:
            continue
        name = f"{heading.upper().replace(' ', '_')}_ARGS"
        words = [[f"--{option.name}", *(str(_plain(value)) for value in option.values)] for option in said]
        for option, spelled in zip(said, words, strict=True):
            account.say(spelled[0], " ".join(spelled[1:]), *option.fields)
        lines += [f"{name}=(", *(f"    {shlex.join(spelled)}" for spelled in words), ")"]
        arrays[name] = [word for spelled in words for word in spelled]
    program = "pretrain_mamba.py" if is_hybrid(account.scenario.model) else "pretrain_gpt.py"
    behind = [*(f'"${{{name}[@]}}"' for name in arrays), '"$@"']
    lines += [
        "",
        *_connections(account, options),
        *_switches(account),
        *launcher_lines(account.scenario, program, behind),
    ]
    return "\n".join(lines) + "\n", {"program": program, "arguments": arrays}


def _plain(value: Any) -> Any:
    """A number without a needless point."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _connections(account: Account, options: Options) -> list[str]:
    """Hardware queues: one, so that collectives keep their place between kernels; more where they run beside them."""
    plan = account.scenario.plan
    if options.has("use-megatron-fsdp") or options.has("use-torch-fsdp2"):
        return ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
    if options.has("overlap-moe-expert-parallel-comm"):
        return ["export CUDA_DEVICE_MAX_CONNECTIONS=32"]
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if plan.tp > 1 or plan.cp > 1 else []


def _switches(account: Account) -> list[str]:
    """Whether NCCL has NVLink's switches add: its own default where it may."""
    if account.scenario.stack.nvls:
        return []
    account.say("NCCL_NVLS_ENABLE", 0, "stack.nvls")
    return ["export NCCL_NVLS_ENABLE=0"]
