"""Layers in Megatron-LM's arguments: sizes as the table lists them, lists that mark layers, experts, and hybrid models.

A hybrid model's layers are one block each, Mamba, attention, an MLP or experts, by letters or shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sim.errors import SpecError
from sim.foreign.importers.huggingface.layer_kinds import BLOCKS, blocks_of, dealt_experts
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.pipeline_layouts import layout_of
from sim.foreign.importers.recipes.rows import Recipe

_PIECE = re.compile(r"\[([01](?:,[01]){0,999})\](?:\*(\d{1,4}))?")
"""A piece of a list that marks layers with experts (1) and without (0): `[0]*3`, `[0,1]`."""
_MOST_LAYERS = 100_000


def take_fields(recipe: Recipe) -> None:
    """Take the sizes of the model, as the table lists them. Raises SpecError: one is missing, is no such number, or
    contradicts what is known."""
    known, arguments, model = table("megatron"), recipe.keys, recipe.model
    for field, names in known["fields"].items():
        needed = field in known["required"] and field not in model
        value = arguments.needed(*names) if needed else arguments.whole(*names)
        if value is not None and value != model.get(field, value):
            raise model.ledger.error(f"--{names[0]} {value}, but the pattern has {model[field]} layers")
        if value is not None and field not in model:
            model.took(field, value, f"--{names[0]}")


def layer_marks(arguments: Arguments, name: str, layers: int, every: Callable[[int, int], bool]) -> list[bool] | None:
    """Marks of layers: of a number, what `every` makes of it; or a list such as `([0]*3+[1]*58)`, not executed. Raises
    SpecError: neither, or of another number of layers."""
    text = arguments.joined(name)
    if text is None:
        return None
    said = text

    def wrong(rule: str) -> SpecError:
        return arguments.ledger.error(f"--{name} {short(said)!r} {rule}")

    text = re.sub(r"[\s'\"]", "", text)
    if re.fullmatch(r"[1-9]\d{0,5}", text):
        return [every(layer, int(text)) for layer in range(layers)]
    whole = re.fullmatch(r"\(([^()]*)\)(?:\*(\d{1,4}))?", text)
    text, again = (whole[1], int(whole[2] or 1)) if whole else (text, 1)
    found = [_PIECE.fullmatch(piece) for piece in text.split("+")]
    if not all(found):
        raise wrong("must be a whole number from 1, or a list such as ([0]*3+[1]*58)")
    runs = [(piece[1].split(","), int(piece[2] or 1)) for piece in found if piece is not None]
    if again * sum(len(marks) * times for marks, times in runs) > _MOST_LAYERS:
        raise wrong(f"lists more than {_MOST_LAYERS:,} layers")
    marks = [mark == "1" for marks, times in runs for mark in marks * times] * again
    if len(marks) != layers:
        raise wrong(f"lists {len(marks)} layers, but there are {layers}")
    return marks


def take_blocks(recipe: Recipe, hybrid: bool) -> None:
    """A hybrid model's pattern: one block a letter, `|` between pipeline stages, behind `/` multi-token prediction; or
    the pattern that the shares of attention and of MLPs come to.

    hybrid : whether the program builds such models where neither is given.

    Raises SpecError: a pattern that cannot be read, or that the pipeline's ranks cannot share.
    """
    arguments, model, plan = recipe.keys, recipe.model, recipe.plan
    name, pattern = arguments.take("hybrid-layer-pattern", "hybrid-override-pattern")
    attention, mlps = arguments.number("hybrid-attention-ratio"), arguments.number("hybrid-mlp-ratio")
    if pattern is None and (hybrid or attention is not None or mlps is not None):
        layers = arguments.whole("num-layers")
        if layers is not None and layers <= _MOST_LAYERS:
            name = "hybrid-attention-ratio" if attention or mlps else "num-layers"
            pattern = _dealt(layers, attention or 0.0, mlps or 0.0)
    if pattern is None:
        return
    letters, slash, modules = pattern.strip("\"'").partition("/")
    stages = letters.split("|")
    letters = "".join(stages)
    strange = next((letter for letter in letters if letter not in BLOCKS), None)
    if strange is not None or not letters or len(letters) > _MOST_LAYERS:
        raise model.ledger.error(
            f"--{name} {short(pattern)!r} must say the layers by {' '.join(BLOCKS)}"
            + (f", not {strange!r}" if strange else "")
        )
    for field, value in blocks_of(letters).items():
        model.took(field, value, f"--{name}")
    if slash:
        model.ledger.ignore(
            f"--{name}", modules, "modules of several blocks that predict further tokens; not counted", matters=True
        )
    if len(stages) > 1:
        if len(stages) % plan["pp"]:
            raise model.ledger.error(
                f"--{name} has {len(stages)} stages, no multiple of the {plan['pp']} pipeline ranks"
            )
        plan.took("pipeline_layout", layout_of([len(stage) for stage in stages]), f"--{name}")
        if len(stages) > plan["pp"]:
            plan.took("num_chunks", len(stages) // plan["pp"], f"--{name}")


def _dealt(layers: int, attention: float, mlps: float) -> str:
    """The letters of so many layers with these shares, spread as Megatron-LM spreads them: attention between equal
    runs of Mamba, MLPs in place of Mamba, towards the end (`_allocate_auto` of mamba_hybrid_layer_allocation.py).
    """
    letters = ["M"] * layers
    for share, letter in ((attention, "*"), (mlps, "-")):
        count = round(layers * share)
        left = letters.count("M") - count
        runs = count + 1 if letter == "*" else count
        if not runs:
            continue
        step = x = left / runs
        for place in range(layers):
            if letters[place] != "M":
                continue
            if x < 0.5:
                letters[place] = letter
                x += step
            else:
                x -= 1
    return "".join(letters)


def take_experts(recipe: Recipe) -> None:
    """Take experts into the model, and how GPUs share them into the plan. Raises SpecError: a value that breaks a rule,
    experts whose width is not known, or DeepSpeed's own."""
    arguments, known = recipe.keys, table("megatron")
    own = any(name in arguments for name in known["deepspeed_experts"])
    own |= "deepspeed" in arguments and "moe-router-topk" not in arguments and "num-experts" in arguments
    if not own or arguments.raw("moe-model-type") == ["megatron_moe"]:
        recipe.read("experts")
    elif {*arguments.words("num-experts", "ds-num-experts")} - {"1"}:
        raise recipe.refused(
            "--num-experts is of DeepSpeed's own mixtures of experts, whose layers are not read; describe the model "
            "in a scenario (model: {num_experts: 16, mlp_layer_types: [dense, sparse], ...})"
        )


def first_layers(recipe: Recipe) -> None:
    """Pai-Megatron-Patch's DeepSeek has an MLP in so many first layers (deepseek_v2/transformer_layer.py)."""
    first = recipe.keys.raw("moe-layer-freq") or ["1"]
    if recipe.known["counted"] == "--num-shared-experts" and first[0].isdigit():
        recipe.keys.take("moe-layer-freq")
        why = "--moe-layer-freq: Pai-Megatron-Patch's DeepSeek has an MLP in so many first layers"
        recipe.model.took("num_dense_layers", int(first[0]), why)


def layers_with_experts(recipe: Recipe) -> None:
    """Which layers have experts: by a frequency or a list, behind MindSpeed's first dense layers."""
    arguments, model = recipe.keys, recipe.model
    raw = arguments.raw("moe-layer-freq")
    if raw == ["-1"]:  # MindSpeed's default: all
        arguments.has("moe-layer-freq")
    first = 0
    if arguments.raw("first-k-dense-replace") in (["-1"], ["0"]):
        arguments.has("first-k-dense-replace")
    elif "first-k-dense-replace" in arguments:
        first = arguments.whole("first-k-dense-replace") or 0
    layers, named = model["num_layers"], "--moe-layer-freq"
    sparse = layer_marks(arguments, "moe-layer-freq", layers, every=lambda layer, step: layer % step == 0)
    if first:
        sparse = [mark and layer >= first for layer, mark in enumerate(sparse or [True] * layers)]
        named = "--first-k-dense-replace"
    if sparse is not None and "mlp_layer_types" not in model:
        for field, value in dealt_experts(sparse).items():
            model.took(field, value, named)
