"""Megatron-Bridge: overrides of a recipe's ConfigContainer, in the dotted form that its training programs take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from sim.foreign.exporters.account import Account, Option, exporter_table, launcher_lines
from sim.foreign.exporters.megatron_lm import write_options

KIND = "megatron-bridge"


def export_megatron_bridge(account: Account) -> tuple[str, dict[str, Any]]:
    """The overrides under headings behind a program of the user's, and the overrides alone."""
    table = exporter_table(KIND)
    write_options(account)
    groups: dict[str, list[str]] = {heading: [] for heading in account.groups}
    for heading, said in account.groups.items():
        for option in said:
            for override in _overrides(option, account):
                if override not in groups[heading]:
                    groups[heading].append(override)
                    account.say(*override.split("=", 1), *option.fields)
    groups["Training"].append(f"mixed_precision={_mixed_precision(account)}")
    account.say("mixed_precision", _mixed_precision(account), "training.precision")
    for name, overrides in table["absent"].items():
        # Stages by a layout are counted by it; recipes that cut no tensors may have no section for that overlap.
        if name not in account.said and not (name == "tp-comm-overlap" and account.scenario.plan.tp == 1):
            groups[table["headings"].get(name, "Plan")] += overrides
    lines = ["OVERRIDES=("]
    for heading, overrides in groups.items():
        lines += [f"    # {heading}"] if overrides else []
        lines += [f"    {shlex.quote(each)}" for each in overrides]
    command = launcher_lines(account.scenario, '"$TRAINING_PROGRAM"', ['"${OVERRIDES[@]}"', '"$@"'])
    account.ask("TRAINING_PROGRAM", "the program that takes your recipe and overrides, as its examples do")
    if account.scenario.model.gated_mlp:
        account.ask("model.activation_func", "a function, which an override cannot name; the recipe's model has it")
    text = "\n".join([*lines, ")", "", *command]) + "\n"
    return text, {"overrides": [each for overrides in groups.values() for each in overrides]}


def _overrides(option: Option, account: Account) -> Iterator[str]:
    """What an option is among the overrides."""
    table, name = exporter_table(KIND), option.name
    if name in table["precision_options"]:
        return
    if name in table["unsayable"]:
        for field in option.fields:
            account.leave(field, table["unsayable"][name])
        return
    if name == "max-position-embeddings":
        account.decide("model.max_sequence_length", "as long as model.seq_length")
    value = _value(option)
    if name in table["options"]:
        yield from (each.format(value) for each in table["options"][name])
    else:
        yield f"model.{name.replace('-', '_')}={value}"


def _value(option: Option) -> str:
    """A value in the overrides' grammar."""
    table, name = exporter_table(KIND), option.name
    if not option.values:
        return "true"
    if name in table["lists"]:
        return f"[{','.join(str(value).strip('()') for value in option.values)}]"
    if name.endswith("-dtype"):
        return str(table["dtypes"][option.values[0]])
    text = str(option.values[0])
    return text if re.fullmatch(r"[\w.+-]+", text) else f'"{text}"'


def _mixed_precision(account: Account) -> str:
    """The name of its mixed precision; what differs from it is left out aloud."""
    scenario = account.scenario
    training, kept = scenario.training, scenario.stack.gradient_precision
    name = str(exporter_table(KIND)["recipes"][training.precision])
    layers = training.high_precision_layers
    if training.precision == "fp8" and {"moe_act", "layernorm"} & {*scenario.plan.recompute_modules}:
        name = "bf16_with_fp8_subchannel_scaling_mixed"  # delayed scales go not with outputs that are thrown away
    elif layers == 2 and training.precision == "fp8":  # whose first and last layer stay in bf16
        name, layers = "bf16_with_fp8_current_scaling_mixed", 0
    if layers:
        account.leave("training.high_precision_layers", f"{name} has none; a MixedPrecisionConfig of your own has")
    if kept != "fp32":
        why = f"{name} sums gradients in fp32 (slower); mixed_precision.grad_reduce_in_fp32=false sums them in {kept}"
        account.leave("stack.gradient_precision", why)
    gathers = training.format is not None and not name.startswith(("bf16_with_nvfp4", "bf16_with_fp8_sub"))
    if gathers != scenario.stack.fp8_gathers and training.format is not None:
        account.decide("stack.fp8_gathers", f"{name} gathers weights in {8 if gathers else 16} bits (fp8_param_gather)")
    return name
