"""The model in Megatron-LM's arguments: shape, latent attention and experts.

Defaults are those of megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re

from sim.errors import SpecError
from sim.specs.importers.keys import Arguments, table
from sim.specs.importers.ledger import Section, short

KIND = "megatron"
_PIECE = re.compile(r"\[([01](?:,[01]){0,999})\](?:\*(\d{1,4}))?")
"""Of a list of layers with (1) and without (0) experts: `[0]*3`, `[0,1]`."""
_MOST_LAYERS = 100_000


def read_model(arguments: Arguments, plan: Section) -> Section:
    """The section `model`; how experts are dealt over GPUs is laid into `plan`.

    Raises
    ------
    SpecError
        Experts in layers that flopcast cannot deal to stages, or a value that breaks a rule.
    """
    model = Section("model", arguments.ledger, name="megatron")
    _shape(arguments, model)
    for switch, fields in table(KIND)["switches"].items():
        if arguments.has(switch):
            for field, value in fields.items():
                model.took(field, value, f"--{switch}")
    hidden, attention = arguments.number("hidden-dropout"), arguments.number("attention-dropout")
    default = "Megatron-LM's default of --hidden-dropout"
    dropout = model.settle("dropout", hidden, "--hidden-dropout", 0.1, default)
    if attention is not None and attention != dropout:
        model.ledger.ignore("--attention-dropout", attention, "priced with the residual branches' dropout")
    _vocabulary(arguments, model, plan["tp"])
    _latent(arguments, model)
    _experts(arguments, model, plan)
    return model


def _take(arguments: Arguments, model: Section, which: str) -> None:
    """Whole numbers of the model, as the table lists them."""
    known = table(KIND)
    for field, names in known[which].items():
        value = arguments.needed(*names) if field in known["required"] else arguments.whole(*names)
        if value is not None:
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
    frequency = arguments.text("moe-layer-freq")
    if frequency is not None:
        dense = _layers_without_experts(frequency, model["num_layers"], ledger.where)
        model.took("num_dense_layers", dense, "--moe-layer-freq")
    named = "--expert-model-parallel-size"
    plan.settle("ep", ep, named, 1, f"Megatron-LM's default of {named}")
    if cut is not None and cut > 1:
        raise SpecError(
            f"{ledger.where}: --expert-tensor-parallel-size {cut} cuts each expert over GPUs, which flopcast does not "
            "model; set it to 1 and raise --expert-model-parallel-size instead"
        )
    if plan["tp"] > 1 and cut is None:
        why = "experts are taken whole, as with --expert-tensor-parallel-size 1; Megatron-LM would cut them by tp"
        plan.assume("ep", plan["ep"], why)


def _layers_without_experts(frequency: str, layers: int, where: str) -> int:
    """How many first layers have no experts: of `1`, or of a list such as `([0]*3+[1]*58)`, which is not executed."""

    def wrong(rule: str) -> SpecError:
        return SpecError(f"{where}: --moe-layer-freq {short(frequency)!r} {rule}")

    text = re.sub(r"[\s'\"]", "", frequency)
    if text == "1":
        return 0
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    found = [_PIECE.fullmatch(piece) for piece in text.split("+")]
    if not all(found):
        raise wrong("must be 1 or a list such as ([0]*3+[1]*58): layers with experts must follow all layers without")
    runs = [(piece[1].split(","), int(piece[2] or 1)) for piece in found if piece is not None]
    if sum(len(marks) * times for marks, times in runs) > _MOST_LAYERS:
        raise wrong(f"lists more than {_MOST_LAYERS:,} layers")
    marks = [mark for marks, times in runs for mark in marks * times]
    if len(marks) != layers:
        raise wrong(f"lists {len(marks)} layers, but --num-layers is {layers}")
    dense = marks.count("0")
    if "1" in marks[:dense]:
        raise wrong(
            "mixes layers with and without experts: flopcast deals such layers only where those without come first"
        )
    return dense
