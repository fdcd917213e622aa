"""The model in Megatron-LM's arguments: vocabulary, shape, latent attention, kinds of layers and experts.

Defaults are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re

from sim.foreign.importers.huggingface.layer_kinds import shortest
from sim.foreign.importers.keys import UNKNOWN, Arguments, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.megatron.layers import layer_marks, take_blocks, take_experts, take_fields
from sim.foreign.importers.recipes.rows import Recipe

_GUESS = "the embedding's size is a guess, because the tokenizer's vocabulary is not known"


def read_vocabulary(arguments: Arguments, model: Section, tp: int) -> None:
    """The field `vocab_size`: what the arguments say, or what is known of the tokenizer that they name, or a guess that
    says so."""
    for name in ("padded-vocab-size", "pad-vocab-size-to"):
        padded = arguments.whole(name)
        if padded is not None:
            model.took("vocab_size", padded, f"--{name}")
            arguments.has("vocab-size", "make-vocab-size-divisible-by", "extra-vocab-size")
            return
    words, note, sure = _words(arguments)
    extra = arguments.whole("extra-vocab-size", least=0)
    multiple = (arguments.whole("make-vocab-size-divisible-by") or 128) * tp
    if extra is not None:  # Pai-Megatron-Patch pads by so many rows, and by nothing else
        rows, how = words + extra, f"{note}: {words:,}, and --extra-vocab-size {extra:,}"
    else:
        rows = -(-words // multiple) * multiple
        how = f"{note}: {words:,}, to a multiple of {multiple:,}"
    model.settle("vocab_size", rows if sure else None, how, rows, f"{_GUESS} ({how}); --set model.vocab_size=N")


def _words(arguments: Arguments) -> tuple[int, str, bool]:
    """(words, what says so, whether it does)."""
    known = table("megatron")
    kind, patched = arguments.text("tokenizer-type"), arguments.text("patch-tokenizer-type")
    said = arguments.whole("vocab-size")
    if said is not None:
        # The null tokenizer has one word more, the end of a text.
        return said + (kind == "NullTokenizer"), "--vocab-size", True
    named = [
        arguments.first(name) for name in known["tokenizer_names"]
    ]  # a path may be partly unknown; it stays to be listed
    for name in filter(None, named):
        number = _of_name(name)
        if number is not None:
            return number, f"the tokenizer {short(name, 50)}", True
    patch = known["patched_vocabularies"].get(patched)
    if isinstance(patch, dict):  # one name for several: which it is, the rows beside it tell
        patch = patch.get(int((arguments.raw("extra-vocab-size") or ["0"])[0]))
    if patch is not None:
        return int(patch), f"--patch-tokenizer-type {patched}", True
    if kind in known["vocabularies"]:
        return known["vocabularies"][kind], f"--tokenizer-type {kind}", True
    if kind is None and patched is None and not any(named):
        words = known["vocabularies"]["GPT2BPETokenizer"]
        return words, "no --tokenizer-type: GPT-2's, Megatron-LM's default", True
    what = patched or kind or "the tokenizer"
    words = known["guesses"]["pieces" if "entencePiece" in what else "others"]
    return words, f"{short(what)} is taken to have", False


def _of_name(name: str) -> int | None:
    """Words of a tokenizer by its name, or by the folder it lies in."""
    tokenizers: dict[int, list[str]] = table("tokenizers")["words"]
    parts = [part.lower() for part in name.rstrip("/").split("/") if part and UNKNOWN not in part]
    for place in range(len(parts) - 1, max(-1, len(parts) - 4), -1):
        plain = parts[place].removesuffix(".model").removesuffix(".json").removesuffix("-hf")
        plain = "/".join(parts[place - 1 : place + 1]) if plain == "tokenizer" else plain
        fits = [
            (len(known), int(number))
            for number, names in tokenizers.items()
            for known in names
            if plain == known or (known.endswith("*") and plain.startswith(known[:-1]))
        ]
        if fits:
            return max(fits)[1]
    return None


def read_model(recipe: Recipe, hybrid: bool = False) -> None:
    """Read the section `model`, and how experts are dealt over GPUs.

    hybrid : whether the program builds hybrid models, whose layers are Mamba's where nothing else is said.

    Raises SpecError: a value that breaks a rule.
    """
    model, arguments = recipe.model, recipe.keys
    model["name"] = "megatron"
    take_blocks(recipe, hybrid)
    take_fields(recipe)
    empty = arguments.raw("noop-layers")
    if empty:  # MindSpeed's: so many of these layers do nothing; where they are, the plan takes
        idle = len(set(empty[0].split(",")))
        model.took("num_layers", model["num_layers"] - idle, "--num-layers less --noop-layers")
    for group in ("heads", "gated", "kernels"):
        recipe.read(group)
    _mixers(recipe)
    recipe.read("dropout")
    read_vocabulary(arguments, model, recipe.plan["tp"])
    recipe.read("latent")
    take_experts(recipe)
    recipe.known["of_blocks"] = "none" in (*model.get("layer_types", ()), *model.get("mlp_layer_types", ()))
    recipe.read("modules")


def _mixers(recipe: Recipe) -> None:
    """Windows, and layers that carry a state along the sequence."""
    model, arguments = recipe.model, recipe.keys
    layers, hybrid = model["num_layers"], "layer_types" in model
    left = _window(arguments)
    windowed = layer_marks(
        arguments, "window-attn-skip-freq", layers, every=lambda layer, step: (layer + 1) % step != 0
    )
    if left is not None and hybrid:
        model.ledger.ignore(
            "--window-size", left, "of a hybrid model; its attention is priced over the whole sequence", matters=True
        )
    elif left is not None:
        kinds = ["sliding_attention" if mark else "full_attention" for mark in windowed or [True] * layers]
        model.took("layer_types", shortest(kinds), "--window-size and --window-attn-skip-freq")
        model.took("sliding_window", left + 1, "--window-size: so many tokens before a token, and itself")
    variant = arguments.text("experimental-attention-variant", "linear-attention-type")
    states = layer_marks(arguments, "linear-attention-freq", layers, every=lambda layer, step: (layer + 1) % step != 0)
    if variant == "gated_delta_net" and not hybrid:
        marks = states or [True] * layers
        kinds = [variant if mark else "full_attention" for mark in marks]
        model.took("layer_types", shortest(kinds), "--linear-attention-freq")
    elif variant is not None:
        raise model.ledger.error(f"--experimental-attention-variant {short(variant)!r} is not modelled")
    carried = [sort for sort in ("mamba2", "gated_delta_net") if sort in model.get("layer_types", ())]
    if len(carried) > 1:
        raise model.ledger.error("states of two kinds, M and G, in one model are not modelled")
    recipe.known["carried"] = next(iter(carried), None)
    recipe.read("carried")


def _window(arguments: Arguments) -> int | None:
    """Tokens before a token that its layer sees, of `(128, 0)` or `128,0`; None for all."""
    text = arguments.joined("window-size")
    if text is None:
        return None
    found = re.fullmatch(r"\(?(-?\d{1,12}),(-?\d{1,12})\)?", re.sub(r"[\s'\"]", "", text))
    if found is None:
        raise arguments.ledger.error(f"--window-size {short(text)!r} must be two numbers, such as 128,0")
    return None if int(found[1]) < 0 else int(found[1])
