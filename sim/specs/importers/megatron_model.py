"""The model in Megatron-LM's arguments; defaults are those of megatron/training/arguments.py."""

from __future__ import annotations

from typing import Any

from sim.errors import SpecError
from sim.specs.importers.arguments import Arguments
from sim.specs.importers.ledger import Ledger, short

_VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}
"""Words of tokenizers whose vocabulary is always the same."""
_ASSUMED_VOCABULARY = 50257


def read_shape(arguments: Arguments, tp: int, ledger: Ledger) -> dict[str, Any]:
    model: dict[str, Any] = {"name": "megatron"}

    def take(field: str, name: str, *more: str, required: bool = False) -> None:
        value = arguments.whole(name, *more)
        if value is not None:
            model[field] = ledger.took(f"model.{field}", value, f"--{name}")
        elif required:
            raise SpecError(f"{ledger.where}: --{name} is missing or only known when the script runs; write it out")

    take("num_layers", "num-layers", required=True)
    take("hidden_size", "hidden-size", required=True)
    take("num_heads", "num-attention-heads", required=True)
    take("intermediate_size", "ffn-hidden-size")
    take("head_dim", "kv-channels")
    if arguments.has("group-query-attention"):
        take("num_kv_heads", "num-query-groups")
        if "num_kv_heads" not in model:
            model["num_kv_heads"] = ledger.assume(
                "model.num_kv_heads", 1, "Megatron-LM's default of --num-query-groups"
            )
    take("max_sequence_length", "max-position-embeddings", "seq-length-positions")
    gated = arguments.has("swiglu")
    if gated:
        model["gated_mlp"] = ledger.took("model.gated_mlp", True, "--swiglu")
        if "intermediate_size" not in model:  # megatron/training/arguments.py: two thirds, to a multiple of 64
            width = int((4 * model["hidden_size"] * 2 / 3) / 64) * 64
            model["intermediate_size"] = ledger.assume(
                "model.intermediate_size", width, "Megatron-LM's default with --swiglu"
            )
    kind = arguments.text("position-embedding-type") or (
        "rope" if arguments.has("use-rotary-position-embeddings") else None
    )
    position = {
        "rope": "rotary",
        "learned_absolute": "learned",
        "none": "none",
        "alibi": "none",
        "mrope": "rotary",
        "yarn": "rotary",
    }
    if kind is not None and kind not in position:
        raise SpecError(f"{ledger.where}: --position-embedding-type {short(kind)!r} is not modelled")
    if kind is None:
        ledger.assume("model.position", "learned", "Megatron-LM's default")
    else:
        model["position"] = ledger.took("model.position", position[kind], "--position-embedding-type")
    norm = arguments.text("normalization")
    if norm is not None:
        model["norm"] = ledger.took("model.norm", "rmsnorm" if norm == "RMSNorm" else "layernorm", "--normalization")
    if arguments.has("disable-bias-linear"):
        model["bias"] = ledger.took("model.bias", False, "--disable-bias-linear")
    if arguments.has("add-qkv-bias"):
        model["qkv_bias"] = ledger.took("model.qkv_bias", True, "--add-qkv-bias")
    if arguments.has("qk-layernorm"):
        model["query_key_norm"] = ledger.took("model.query_key_norm", "head", "--qk-layernorm")
    if arguments.has("untie-embeddings-and-output-weights"):
        model["tied_embeddings"] = ledger.took("model.tied_embeddings", False, "--untie-embeddings-and-output-weights")
    dropout = arguments.number("hidden-dropout")
    attention = arguments.number("attention-dropout")
    if dropout is None:
        model["dropout"] = ledger.assume("model.dropout", 0.1, "Megatron-LM's default of --hidden-dropout")
    else:
        model["dropout"] = ledger.took("model.dropout", dropout, "--hidden-dropout")
    if attention is not None and attention != model["dropout"]:
        ledger.ignore("--attention-dropout", attention, "priced with the residual branches' dropout")
    model["vocab_size"] = _vocabulary(arguments, tp, ledger)
    return model


def _vocabulary(arguments: Arguments, tp: int, ledger: Ledger) -> int:
    """Rows of the embedding: the tokenizer's words, padded as Megatron-LM does."""
    padded = arguments.whole("padded-vocab-size")
    if padded is not None:
        return int(ledger.took("model.vocab_size", padded, "--padded-vocab-size"))
    kind = arguments.text("tokenizer-type")
    words = arguments.whole("vocab-size")
    if words is not None and kind == "NullTokenizer":
        words += 1  # its end-of-text token
    multiple = (arguments.whole("make-vocab-size-divisible-by") or 128) * tp
    source = "--vocab-size"
    known = words is not None or kind in _VOCABULARIES or kind is None
    if words is None:
        words = _VOCABULARIES.get(kind or "GPT2BPETokenizer", _ASSUMED_VOCABULARY)
        source = f"--tokenizer-type {kind}" if kind else "GPT-2's tokenizer"
    rows = -(-words // multiple) * multiple
    if known:
        return int(ledger.took("model.vocab_size", rows, f"{source}: {words:,}, to a multiple of {multiple:,}"))
    why = f"the words of {short(kind)} are not in the script; GPT-2's are taken; --set model.vocab_size=N says how many"
    return int(ledger.assume("model.vocab_size", rows, why))
