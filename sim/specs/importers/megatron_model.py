"""The model in Megatron-LM's arguments: shape, latent attention, kinds of layers and experts.

Defaults are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sim.errors import SpecError
from sim.specs.importers.keys import Arguments, table
from sim.specs.importers.layer_kinds import dealt_experts, shortest
from sim.specs.importers.ledger import Section, short
from sim.specs.importers.pipeline_layouts import layout_of

KIND = "megatron"
_PIECE = re.compile(r"\[([01](?:,[01]){0,999})\](?:\*(\d{1,4}))?")
"""Of a list of layers with (1) and without (0) experts: `[0]*3`, `[0,1]`."""
_MOST_LAYERS = 100_000
MIXERS = {"M": "mamba2", "*": "full_attention", "G": "gated_delta_net"}
MLPS = {"-": "dense", "E": "sparse"}
"""Letters of hybrid models, whose layers are one block each (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""


def read_model(arguments: Arguments, plan: Section) -> Section:
    """The section `model`; how experts are dealt over GPUs is laid into `plan`.

    Raises
    ------
    SpecError
        A value that breaks a rule.
    """
    model = Section("model", arguments.ledger, name="megatron")
    _blocks(arguments, model, plan)
    _shape(arguments, model)
    _mixers(arguments, model)
    for switch, fields in table(KIND)["switches"].items():
        if arguments.has(switch):
            for field, value in fields.items():
                model.took(field, value, f"--{switch}")
    hidden, attention = arguments.number("hidden-dropout"), arguments.number("attention-dropout")
    default = "Megatron-LM's default of --hidden-dropout"
    dropout = model.settle("dropout", hidden, "--hidden-dropout", 0.1, default)
    if attention is not None and attention != dropout:
        model.ledger.ignore(
            "--attention-dropout", attention, "priced with the residual branches' dropout", matters=True
        )
    _vocabulary(arguments, model, plan["tp"])
    _latent(arguments, model)
    _experts(arguments, model, plan)
    modules = arguments.whole("mtp-num-layers", least=0)
    if modules and "none" in (*model.get("layer_types", ()), *model.get("mlp_layer_types", ())):
        why = "its modules are not one layer like the model's last; not counted"
        model.ledger.ignore("--mtp-num-layers", modules, why, matters=True)
    elif modules:
        model.took("num_mtp_layers", modules, "--mtp-num-layers")
    return model


def _take(arguments: Arguments, model: Section, which: str) -> None:
    """Whole numbers of the model, as the table lists them."""
    known = table(KIND)
    for field, names in known[which].items():
        needed = field in known["required"] and field not in model
        value = arguments.needed(*names) if needed else arguments.whole(*names)
        if value is not None and value != model.get(field, value):
            raise SpecError(f"{model.ledger.where}: --{names[0]} {value}, but the pattern has {model[field]} layers")
        if value is not None and field not in model:
            model.took(field, value, f"--{names[0]}")


def _shape(arguments: Arguments, model: Section) -> None:
    _take(arguments, model, "fields")
    if arguments.has("group-query-attention"):
        groups = arguments.whole("num-query-groups")
        default = "Megatron-LM's default of --num-query-groups"
        model.settle("num_kv_heads", groups, "--num-query-groups", 1, default)
    longest = arguments.whole("max-position-embeddings", "seq-length-positions")
    if longest is not None:
        model.took("max_sequence_length", longest, "--max-position-embeddings")
    if arguments.has("swiglu"):
        model.took("gated_mlp", True, "--swiglu")
        if "intermediate_size" not in model:  # megatron/training/arguments.py: two thirds, to a multiple of 64
            width = int((4 * model["hidden_size"] * 2 / 3) / 64) * 64
            model.assume("intermediate_size", width, "Megatron-LM's default with --swiglu")
    rotary = "rope" if arguments.has("use-rotary-position-embeddings") else None
    kind, positions = arguments.text("position-embedding-type") or rotary, table(KIND)["positions"]
    if kind is None:
        model.ledger.assume("model.position", "learned", "Megatron-LM's default")
    elif kind not in positions:
        raise SpecError(f"{model.ledger.where}: --position-embedding-type {short(kind)!r} is not modelled")
    else:
        model.took("position", positions[kind], "--position-embedding-type")
    norm = arguments.text("normalization")
    if norm is not None:
        model.took("norm", "rmsnorm" if norm == "RMSNorm" else "layernorm", "--normalization")


def _blocks(arguments: Arguments, model: Section, plan: Section) -> None:
    """A hybrid model's pattern: one block a letter, `|` between pipeline stages, behind `/` multi-token prediction."""
    name, pattern = arguments.take("hybrid-layer-pattern", "hybrid-override-pattern")
    if pattern is None:
        return
    where = model.ledger.where
    letters, slash, modules = pattern.strip("\"'").partition("/")
    stages = letters.split("|")
    letters = "".join(stages)
    strange = next((letter for letter in letters if letter not in {**MIXERS, **MLPS}), None)
    if strange is not None or not letters or len(letters) > _MOST_LAYERS:
        raise SpecError(
            f"{where}: --{name} {short(pattern)!r} must say the layers by {' '.join([*MIXERS, *MLPS])}"
            + (f", not {strange!r}" if strange else "")
        )
    model.took("num_layers", len(letters), f"--{name}")
    model.took("layer_types", shortest([MIXERS.get(letter, "none") for letter in letters]), f"--{name}")
    model.took("mlp_layer_types", shortest([MLPS.get(letter, "none") for letter in letters]), f"--{name}")
    if slash:
        model.ledger.ignore(
            f"--{name}", modules, "modules of several blocks that predict further tokens; not counted", matters=True
        )
    if len(stages) > 1:
        if len(stages) % plan["pp"]:
            raise SpecError(
                f"{where}: --{name} has {len(stages)} stages, no multiple of the {plan['pp']} pipeline ranks"
            )
        plan.took("pipeline_layout", layout_of([len(stage) for stage in stages]), f"--{name}")
        if len(stages) > plan["pp"]:
            plan.took("num_chunks", len(stages) // plan["pp"], f"--{name}")


def _mixers(arguments: Arguments, model: Section) -> None:
    """Windows, and layers that carry a state along the sequence."""
    layers, hybrid = model["num_layers"], "layer_types" in model
    left = _window(arguments, model.ledger.where)
    windowed = _marks(arguments, "window-attn-skip-freq", layers, every=lambda layer, step: (layer + 1) % step != 0)
    if left is not None and hybrid:
        model.ledger.ignore(
            "--window-size", left, "of a hybrid model; its attention is priced over the whole sequence", matters=True
        )
    elif left is not None:
        kinds = ["sliding_attention" if mark else "full_attention" for mark in windowed or [True] * layers]
        model.took("layer_types", shortest(kinds), "--window-size and --window-attn-skip-freq")
        model.took("sliding_window", left + 1, "--window-size: so many tokens before a token, and itself")
    variant = arguments.text("experimental-attention-variant", "linear-attention-type")
    states = _marks(arguments, "linear-attention-freq", layers, every=lambda layer, step: (layer + 1) % step != 0)
    if variant == "gated_delta_net" and not hybrid:
        marks = states or [True] * layers
        kinds = [variant if mark else "full_attention" for mark in marks]
        model.took("layer_types", shortest(kinds), "--linear-attention-freq")
    elif variant is not None:
        raise SpecError(f"{model.ledger.where}: --experimental-attention-variant {short(variant)!r} is not modelled")
    carried = [sort for sort in ("mamba2", "gated_delta_net") if sort in model.get("layer_types", ())]
    if len(carried) > 1:
        raise SpecError(f"{model.ledger.where}: states of two kinds, M and G, in one model are not modelled")
    for sort in carried:
        for field, (argument, default) in table(KIND)["states"][sort].items():
            value = arguments.whole(argument)
            model.settle(field, value, f"--{argument}", default, f"Megatron-LM's default of --{argument}")
    if "mamba2" in carried:
        heads = arguments.whole("mamba-num-heads")
        default = 2 * model["hidden_size"] // model["linear_head_dim"]
        why = "twice the hidden size over --mamba-head-dim"
        model.settle("linear_num_heads", heads, "--mamba-num-heads", default, why)


def _window(arguments: Arguments, where: str) -> int | None:
    """Tokens before a token that its layer sees, of `(128, 0)` or `128,0`; None for all."""
    text = arguments.joined("window-size")
    if text is None:
        return None
    found = re.fullmatch(r"\(?(-?\d{1,12}),(-?\d{1,12})\)?", re.sub(r"[\s'\"]", "", text))
    if found is None:
        raise SpecError(f"{where}: --window-size {short(text)!r} must be two numbers, such as 128,0")
    return None if int(found[1]) < 0 else int(found[1])


def _marks(arguments: Arguments, name: str, layers: int, every: Callable[[int, int], bool]) -> list[bool] | None:
    """Marks of layers: of a number, what `every` makes of it; or a list such as `([0]*3+[1]*58)`, not executed."""
    text = arguments.joined(name)
    if text is None:
        return None
    said, where = text, arguments.ledger.where

    def wrong(rule: str) -> SpecError:
        return SpecError(f"{where}: --{name} {short(said)!r} {rule}")

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


def _vocabulary(arguments: Arguments, model: Section, tp: int) -> None:
    """Rows of the embedding: the tokenizer's words, padded as Megatron-LM does."""
    for name in ("padded-vocab-size", "pad-vocab-size-to"):
        padded = arguments.whole(name)
        if padded is not None:
            model.took("vocab_size", padded, f"--{name}")
            return
    kind, words = arguments.text("tokenizer-type"), arguments.whole("vocab-size")
    if words is not None and kind == "NullTokenizer":
        words += 1  # its end-of-text token
    multiple = (arguments.whole("make-vocab-size-divisible-by") or 128) * tp
    vocabularies: dict[str, int] = table(KIND)["vocabularies"]
    known = words is not None or kind in vocabularies or kind is None
    source = "--vocab-size"
    if words is None:
        words = vocabularies.get(kind or "", vocabularies["GPT2BPETokenizer"])
        source = f"--tokenizer-type {kind}" if kind else "GPT-2's tokenizer"
    rows = -(-words // multiple) * multiple
    if known:
        model.took("vocab_size", rows, f"{source}: {words:,}, to a multiple of {multiple:,}")
    else:
        why = f"the words of {short(kind)} are not in the script; GPT-2's are taken"
        model.assume("vocab_size", rows, f"{why}; --set model.vocab_size=N says how many")


def _latent(arguments: Arguments, model: Section) -> None:
    """Latent attention."""
    if not arguments.has("multi-latent-attention"):
        return

    def take(name: str, default: int) -> int:
        value = arguments.whole(name, least=0)
        if value is not None:
            return int(model.ledger.took(f"--{name}", value, "latent attention"))
        return int(model.ledger.assume(f"--{name}", default, "Megatron-LM's default"))

    turning = take("qk-pos-emb-head-dim", 64)
    model["head_dim"] = take("qk-head-dim", 128) + turning
    model["rotary_head_dim"] = turning
    model["value_head_dim"] = take("v-head-dim", 128)
    model["key_value_rank"] = take("kv-lora-rank", 32)
    model["query_rank"] = take("q-lora-rank", 0)
    model.pop("num_kv_heads", None)  # every head has keys and values of its own
    if model.pop("query_key_norm", None) is None:
        model.assume("key_value_rank", model["key_value_rank"], "latent vectors are normed in flopcast always")


def _experts(arguments: Arguments, model: Section, plan: Section) -> None:
    """Experts, and how they are dealt over GPUs."""
    experts = arguments.whole("num-experts")
    ep, cut = arguments.whole("expert-model-parallel-size"), arguments.whole("expert-tensor-parallel-size")
    if experts in (None, 1):
        return
    ledger = model.ledger
    model.took("num_experts", experts, "--num-experts")
    _take(arguments, model, "expert_fields")
    if "experts_per_token" not in model:
        model.assume("experts_per_token", 2, "Megatron-LM's default of --moe-router-topk")
    if "expert_intermediate_size" not in model:
        ledger.assume("model.expert_intermediate_size", "like intermediate_size", "no --moe-ffn-hidden-size")
    if arguments.has("moe-shared-expert-gate"):
        model.took("shared_expert_gate", True, "--moe-shared-expert-gate")
    sparse = _marks(arguments, "moe-layer-freq", model["num_layers"], every=lambda layer, step: layer % step == 0)
    if sparse is not None and "mlp_layer_types" not in model:
        for field, value in dealt_experts(sparse).items():
            model.took(field, value, "--moe-layer-freq")
    named = "--expert-model-parallel-size"
    plan.settle("ep", ep, named, 1, f"Megatron-LM's default of {named}")
    named, default = "--expert-tensor-parallel-size", plan["tp"]
    why = f"Megatron-LM's default of {named}: as --tensor-model-parallel-size"
    if "deepspeed" in arguments and not arguments.has("enable-expert-tensor-parallelism"):
        default, why = 1, "no --enable-expert-tensor-parallelism"
    if (cut or default) > 1:
        plan.settle("etp", cut, named, default, why)
    elif cut is not None:
        ledger.took("plan.etp", cut, named)
