"""Hugging Face's `config.json`: the model, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.importers.architectures import DENSE, Architecture
from sim.specs.importers.architectures_experts import EXPERTS
from sim.specs.importers.irrelevant import HUGGINGFACE
from sim.specs.importers.ledger import Keys, Ledger, short
from sim.specs.model import ModelSpec

_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("vocab_size",),
    "max_sequence_length": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
}
"""Field -> keys that hold it, the usual one first."""
_REQUIRED = ("num_layers", "hidden_size", "num_heads", "vocab_size")
ARCHITECTURES = {**DENSE, **EXPERTS}
"""Value of `model_type` -> what it is."""
_COUNTS_OF_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_OTHER_KINDS = {
    "state-space or hybrid layers": ("mamba", "jamba", "zamba", "rwkv", "falcon_h1", "bamba", "nemotron_h", "xlstm"),
    "a mixture of experts of another kind": (
        "moe",
        "dbrx",
        "deepseek",
        "llama4",
        "arctic",
        "grok",
        "minimax",
        "kimi",
        "longcat",
        "flex_olmo",
    ),
    "an encoder": ("bert", "electra", "t5", "bart", "pegasus", "whisper", "vit", "clip", "siglip", "xlnet"),
}


def is_huggingface(data: Any) -> bool:
    """Whether data in JSON are such a config."""
    return isinstance(data, Mapping) and ("model_type" in data or "architectures" in data)


def read_model(data: Any, ledger: Ledger) -> dict[str, Any]:
    """The section `model` of a scenario from a config's data.

    Raises
    ------
    SpecError
        An architecture that flopcast cannot price, with the reason, or a value that breaks a rule.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"{ledger.where} must hold a mapping of keys, not {type(data).__name__}")
    keys = Keys({str(key): value for key, value in data.items()}, ledger)
    kind = keys.text("model_type")
    architecture = _architecture(kind, keys, ledger)
    fields: dict[str, Any] = {"name": _name(keys, str(kind))}
    fields |= {**architecture.fixed, **architecture.own(keys)}
    told = _without_defaults(fields)
    ledger.took("model", kind, ", ".join(f"{name} {short(value)}" for name, value in told.items() if name != "name"))
    _sizes(fields, keys, architecture, ledger)
    _dropout(fields, keys, ledger)
    tied = keys.flag("tie_word_embeddings")
    if tied is not None:
        fields["tied_embeddings"] = ledger.took("model.tied_embeddings", tied, "tie_word_embeddings")
    for name, value in architecture.absent.items():
        if name not in fields:
            fields[name] = ledger.assume(f"model.{name}", value, f"what {kind} means where the file says nothing")
    if kind == "opt":  # OPTLearnedPositionalEmbedding keeps two rows more than there are positions
        rows = fields["max_sequence_length"] = fields["max_sequence_length"] + 2
        ledger.took("model.max_sequence_length", rows, "OPT's table has two rows more than positions")
    for note in architecture.notes:
        ledger.ignore("model_type", str(kind), note)
    keys.leave(HUGGINGFACE)
    return _without_defaults(fields)


def _architecture(kind: str | None, keys: Keys, ledger: Ledger) -> Architecture:
    where = ledger.where
    if kind is None:
        raise SpecError(f"{where}: no model_type; it is no config.json of a model that flopcast knows")
    if "text_config" in keys:
        raise SpecError(
            f"{where}: model_type {short(kind)!r} wraps a language model beside another; save its text_config as a "
            "file of its own and import that"
        )
    if keys.raw("is_encoder_decoder") is True:
        raise SpecError(f"{where}: model_type {short(kind)!r} has an encoder; flopcast models decoders only")
    name = kind.lower()
    if name in EXPERTS:
        return EXPERTS[name]
    if name in DENSE:
        counts = (key for key in _COUNTS_OF_EXPERTS if isinstance(keys.raw(key), int) and keys.raw(key) > 1)
        experts = next(counts, None)
        if experts is None:
            return DENSE[name]
        raise SpecError(
            f"{where}: {experts} = {short(keys.raw(experts))}, but model_type {short(kind)!r} has no experts; which of "
            "its layers they replace is not known"
        )
    for what, parts in _OTHER_KINDS.items():
        if any(part in name for part in parts):
            raise SpecError(
                f"{where}: model_type {short(kind)!r} is {what}, which flopcast does not model; decoders such as "
                f"{', '.join([*sorted(DENSE)[:3], *sorted(EXPERTS)[:3]])} it does"
            )
    raise SpecError(
        f"{where}: model_type {short(kind)!r} is not known{nearest(kind[:60], ARCHITECTURES)}; describe the model "
        "by its shape in a scenario instead (model: {num_layers: 32, ...})"
    )


def _name(keys: Keys, kind: str) -> str:
    _, path = keys.take("_name_or_path", "name_or_path")
    name = PurePosixPath(path).name if isinstance(path, str) and path else ""
    return short(name) if name.strip() else kind


def _sizes(fields: dict[str, Any], keys: Keys, architecture: Architecture, ledger: Ledger) -> None:
    for name, names in _NAMES.items():
        present = next((key for key in names if key in keys), names[0])
        value = keys.needed(*names) if name in _REQUIRED else keys.whole(*names)
        if value is None or name in fields:
            continue
        fields[name] = ledger.took(f"model.{name}", value, present)
    if fields.get("position") == "learned" and "max_sequence_length" not in fields:
        raise SpecError(
            f"{ledger.where}: max_position_embeddings is missing; the table of positions is part of the model"
        )


def _dropout(fields: dict[str, Any], keys: Keys, ledger: Ledger) -> None:
    for key in ("resid_pdrop", "hidden_dropout", "dropout", "resid_dropout", "residual_dropout"):
        if key in keys:
            value = keys.number(key)
            assert value is not None
            if not value < 1:
                raise keys.wrong(key, value, "must be below 1")
            if "dropout" not in fields:
                fields["dropout"] = ledger.took("model.dropout", value, key)


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that say what ModelSpec would say anyway."""
    bias = fields.get("bias", True)
    follows = dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), bias)
    follows["norm_bias"] = fields.get("norm", "layernorm") == "layernorm"
    return {
        name: value
        for name, value in fields.items()
        if (follows[name] if name in follows else ModelSpec.model_fields[name].get_default()) != value
    }
