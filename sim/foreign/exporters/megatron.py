"""Megatron-Core's options. Megatron-LM takes them in arrays of a script for `pretrain_gpt.py`, as its own examples have
them; Megatron-Bridge as overrides of a recipe's ConfigContainer, in the dotted form of its training programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from sim.foreign.exporters.account import Account, Option, exporter_table, launcher_lines
from sim.foreign.importers.huggingface.layer_kinds import BLOCKS, shortest
from sim.specs.model import ModelSpec
from sim.specs.plan import MEGATRON_ORDER, layers_of_stages, layout_of
from sim.specs.scenario import Scenario
from sim.work.routing import share_alone

_BRIDGE = "megatron-bridge"
_BLOCKS = {kind: letter for letter, kind in BLOCKS.items() if letter != "G"}
"""Letters of the blocks that are written, one a layer."""


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


def _of_model(model: ModelSpec, mark: Callable[[Sequence[bool]], Any]) -> dict[str, Any]:
    """Facts of the model that the table's rows name; `mark` spells marks of layers."""
    kinds, mixers = model.kind_of_layer, [kind.mixer for kind in model.kind_of_layer]
    names = [kind.mixer if kind.mlp == "none" else kind.mlp if kind.mixer == "none" else "" for kind in kinds]
    whole = next((layer for layer, name in enumerate(names) if name not in _BLOCKS), None)
    blocks = " ".join(sorted(_BLOCKS))
    both = "" if whole is None else f"layer {whole} is {kinds[whole].mixer} with MLP {kinds[whole].mlp}"
    unknown = ("chunked_attention", "kimi_delta_attention")
    return {
        "of_blocks": is_hybrid(model),
        "several_blocks": both and f"its hybrid models are made of single blocks, {blocks}, and {both}",
        "pattern": "".join(_BLOCKS.get(name, "") for name in names),
        "mixers": tuple(mixers),
        "strange": next((mixer for mixer in mixers if mixer in unknown), ""),
        "some_windows": len({*mixers}) > 1,
        "windows": mark([mixer == "sliding_attention" for mixer in mixers]),
        "states": mark([mixer == "gated_delta_net" for mixer in mixers]),
        "some_experts": not all(kind.sparse for kind in kinds),
        "experts": mark([kind.sparse for kind in kinds]),
    }


def _of_plan(scenario: Scenario) -> dict[str, Any]:
    """Facts of the plan: where there is one rank of a dimension, its place in the order does not matter."""
    model, plan = scenario.model, scenario.plan
    orders = {order: [name for name in order.split("-") if getattr(plan, name) > 1]
              for order in (plan.placement, MEGATRON_ORDER, "tp-cp-pp-dp")}  # fmt: skip
    same = (order for order in (MEGATRON_ORDER, "tp-cp-pp-dp") if orders[order] == orders[plan.placement])
    layers = layers_of_stages(model.num_layers, plan)
    return {
        "order": next(same, ""),
        "layout": layout_of(layers, model.num_mtp_layers) if plan.pp > 1 else "",
        "alone": plan.ep == 1 or share_alone(scenario) == 1.0,
    }


def write_options(account: Account) -> None:
    """Say the scenario in Megatron-Core's options, whatever spells them. Raises SpecError: it cannot run the plan."""
    scenario, bridge = account.scenario, account.kind == _BRIDGE
    mark = (lambda marks: tuple(map(int, marks))) if bridge else marks_text  # Megatron-Bridge lists every layer's
    account.write({**_of_model(scenario.model, mark), **_of_plan(scenario), "bridge": bridge})


def export_megatron_lm(account: Account) -> tuple[str, dict[str, Any]]:
    """The script, and its words by the arrays they stand in."""
    account.cover("stack.nvls")
    write_options(account)
    arrays: dict[str, list[str]] = {}
    lines: list[str] = []
    for heading, said in account.groups.items():
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
    lines += ["", *_environment(account), *launcher_lines(account.scenario, program, behind)]
    return "\n".join(lines) + "\n", {"program": program, "arguments": arrays}


def _plain(value: Any) -> Any:
    """A number without a needless point."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def _environment(account: Account) -> list[str]:
    """Hardware queues: one, so that collectives keep their place between kernels; more where they run beside them. And
    whether NCCL has NVLink's switches add: its own default where it may."""
    scenario, name, lines = account.scenario, "CUDA_DEVICE_MAX_CONNECTIONS", list[str]()
    if {"use-megatron-fsdp", "use-torch-fsdp2"} & account.said:
        lines.append(f"unset {name}")
    elif "overlap-moe-expert-parallel-comm" in account.said:
        lines.append(f"export {name}=32")
    elif scenario.plan.tp > 1 or scenario.plan.cp > 1:
        lines.append(f"export {name}=1")
    if not scenario.stack.nvls:
        account.say("NCCL_NVLS_ENABLE", 0, "stack.nvls")
        lines.append("export NCCL_NVLS_ENABLE=0")
    return lines


def export_megatron_bridge(account: Account) -> tuple[str, dict[str, Any]]:
    """The overrides under headings behind a program of the user's, and the overrides alone."""
    table = exporter_table(_BRIDGE)
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
    table, name = exporter_table(_BRIDGE), option.name
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
    table, name = exporter_table(_BRIDGE), option.name
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
    name = str(exporter_table(_BRIDGE)["recipes"][training.precision])
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
