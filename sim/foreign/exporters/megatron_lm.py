"""Megatron-LM: plan and options in arrays of a script, as its own examples have them, for `pretrain_gpt.py`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sim.foreign.exporters.account import Account, exporter_table, launcher_lines
from sim.foreign.exporters.rows import Options
from sim.foreign.importers.huggingface.layer_kinds import shortest
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.specs.model import ModelSpec
from sim.specs.plan import MEGATRON_ORDER, layers_of_stages
from sim.specs.scenario import Scenario
from sim.work.routing import share_alone

KIND = "megatron-lm"
_POSITIONS = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_BLOCKS = {"mamba2": "M", "full_attention": "*", "dense": "-", "sparse": "E"}
"""Letters of hybrid models, one a block."""
_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""--data-parallel-sharding-strategy by the ZeRO stage."""


def marks_text(marks: Sequence[bool]) -> str:
    """Marks of layers as Megatron-LM's lists: `([0]*3+[1]*58)`."""
    letters = ["1" if mark else "0" for mark in marks]
    piece = shortest(letters)
    if 1 < len(piece) < len(letters) and len(letters) % len(piece) == 0:
        return f"([{','.join(piece)}]*{len(letters) // len(piece)})"
    runs = [(letter, len(list(same))) for letter, same in groupby(letters)]
    return f"({'+'.join(f'[{letter}]*{times}' for letter, times in runs)})"


def is_hybrid(model: ModelSpec) -> bool:
    """Whether its layers are blocks of a pattern: mixers or MLPs, one each."""
    return any(kind.mixer in ("mamba2", "none") or kind.mlp == "none" for kind in model.layer_kinds)


def _of_model(scenario: Scenario) -> dict[str, Any]:
    """Facts of the model that the table's rows name."""
    model, tp = scenario.model, scenario.plan.tp
    kinds, mixers = model.kind_of_layer, [kind.mixer for kind in model.kind_of_layer]
    names = [kind.mixer if kind.mlp == "none" else kind.mlp if kind.mixer == "none" else "" for kind in kinds]
    whole = next((layer for layer, name in enumerate(names) if name not in _BLOCKS), None)
    blocks = " ".join(sorted(_BLOCKS))
    both = "" if whole is None else f"layer {whole} is {kinds[whole].mixer} with MLP {kinds[whole].mlp}"
    unknown = ("chunked_attention", "kimi_delta_attention")
    return {
        "position": _POSITIONS[model.position],
        "norm": _NORMS[model.norm],
        "longest": max(model.max_sequence_length, scenario.training.sequence_length),
        "words": -(-model.vocab_size // tp) * tp,
        "of_blocks": is_hybrid(model),
        "several_blocks": both and f"its hybrid models are made of single blocks, {blocks}, and {both}",
        "pattern": "".join(_BLOCKS.get(name, "") for name in names),
        "mixers": tuple(mixers),
        "strange": next((mixer for mixer in mixers if mixer in unknown), ""),
        "window": f"{(model.sliding_window or 1) - 1},0",
        "some_windows": len({*mixers}) > 1,
        "windows": marks_text([mixer == "sliding_attention" for mixer in mixers]),
        "states": marks_text([mixer == "gated_delta_net" for mixer in mixers]),
        "some_experts": not all(kind.sparse for kind in kinds),
        "experts": marks_text([kind.sparse for kind in kinds]),
    }


def _of_plan(scenario: Scenario) -> dict[str, Any]:
    """Facts of the plan: where there is one rank of a dimension, its place in the order does not matter."""
    model, plan = scenario.model, scenario.plan
    orders = {order: [name for name in order.split("-") if getattr(plan, name) > 1]
              for order in (plan.placement, MEGATRON_ORDER, "tp-cp-pp-dp")}  # fmt: skip
    same = (order for order in (MEGATRON_ORDER, "tp-cp-pp-dp") if orders[order] == orders[plan.placement])
    layers = layers_of_stages(model.num_layers, plan)
    return {
        "gpus": plan.num_gpus,
        "order": next(same, ""),
        "uneven": (model.num_layers + plan.embedding_as_layer + plan.head_as_layer) % plan.num_stages,
        "layout": layout_of(layers, model.num_mtp_layers) if plan.pp > 1 else "",
        "instances": plan.num_replicas // (plan.sharding_group or plan.num_replicas),
        "strategy": _STRATEGIES[plan.zero_stage],
        "alone": plan.ep == 1 or share_alone(scenario) == 1.0,
    }


def _of_training(scenario: Scenario) -> dict[str, Any]:
    """Facts of the training: steps where the tokens make whole ones, else samples."""
    training, plan = scenario.training, scenario.plan
    tokens, length = training.tokens or 0, training.sequence_length
    samples = max(1, round(tokens / length))
    states = (training.moment_precision, training.second_moment_precision, training.master_precision)
    return {
        "whole_steps": tokens % training.tokens_per_step == 0,
        "iterations": int(tokens // training.tokens_per_step),
        "samples": samples,
        "sampled": samples * length,
        "discarded": bool({"moe_act", "layernorm"} & {*plan.recompute_modules}),
        "summed": "fp16" if training.precision == "fp16" else "fp32",
        "fewer_bits": any(state not in ("fp32", None) for state in states),
        "second_moment": training.second_moment_precision or training.moment_precision,
    }


def megatron_options(account: Account) -> Options:
    """The scenario in Megatron-Core's options, whatever spells them. Raises SpecError: it cannot run the plan."""
    scenario = account.scenario
    facts = {**_of_model(scenario), **_of_plan(scenario), **_of_training(scenario), "bridge": account.kind != KIND}
    options = Options(account, facts)
    options.follow(exporter_table(KIND)["rows"])
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
    lines += ["", *_environment(account, options), *launcher_lines(account.scenario, program, behind)]
    return "\n".join(lines) + "\n", {"program": program, "arguments": arrays}


def _plain(value: Any) -> Any:
    """A number without a needless point."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _environment(account: Account, options: Options) -> list[str]:
    """Hardware queues: one, so that collectives keep their place between kernels; more where they run beside them. And
    whether NCCL has NVLink's switches add: its own default where it may."""
    scenario, name, lines = account.scenario, "CUDA_DEVICE_MAX_CONNECTIONS", list[str]()
    if {"use-megatron-fsdp", "use-torch-fsdp2"} & options.said:
        lines.append(f"unset {name}")
    elif "overlap-moe-expert-parallel-comm" in options.said:
        lines.append(f"export {name}=32")
    elif scenario.plan.tp > 1 or scenario.plan.cp > 1:
        lines.append(f"export {name}=1")
    if not scenario.stack.nvls:
        account.say("NCCL_NVLS_ENABLE", 0, "stack.nvls")
        lines.append("export NCCL_NVLS_ENABLE=0")
    return lines
