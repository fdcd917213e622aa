"""The model in Megatron-LM's arguments: vocabulary, shape, latent attention, kinds of layers and experts.

Defaults are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sim.errors import SpecError
from sim.foreign.importers.huggingface.layer_kinds import BLOCKS, blocks_of, dealt_experts, shortest
from sim.foreign.importers.keys import UNKNOWN, Arguments, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.recipes.rows import Recipe
from sim.specs.plan import layout_of

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
    """A hybrid model's pattern: one block a letter, `|` between pipeline stages, behind `/` multi-token prediction.

    hybrid : whether the program builds such models where none is given.

    Raises SpecError: a pattern that cannot be read, that shares stand for, or that the pipeline's ranks cannot share.
    """
    arguments, model, plan = recipe.keys, recipe.model, recipe.plan
    name, pattern = arguments.take("hybrid-layer-pattern", "hybrid-override-pattern")
    share = next((each for each in ("hybrid-attention-ratio", "hybrid-mlp-ratio") if arguments.number(each)), None)
    if pattern is None and share is not None:
        why = "deals blocks over layers by a rule of its own; say which each is: --hybrid-override-pattern M-M*-"
        raise recipe.refused(f"--{share} {why}")
    layers = arguments.whole("num-layers") if pattern is None and hybrid else None
    if layers is not None and layers <= _MOST_LAYERS:
        name, pattern = "num-layers", "M" * layers
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
    recipe.read("mixture")
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
