"""Hugging Face's `config.json`: the model, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.architectures import KIND, architecture_of, shape_of
from sim.specs.importers.defaults import (
    Foreign,
    assume_batch,
    assume_sequence,
    cluster_of,
    cluster_section,
    deal_experts,
    fewest_gpus,
)
from sim.specs.importers.keys import Keys, table
from sim.specs.importers.ledger import Ledger, Section, short
from sim.specs.importers.sources import parse_json, text_of
from sim.specs.model import ModelSpec
from sim.specs.presets import load_preset


def is_huggingface(data: Any) -> bool:
    """Whether data in JSON are such a config."""
    return isinstance(data, Mapping) and ("model_type" in data or "architectures" in data)


def read_huggingface(file: Foreign) -> dict[str, Any]:
    """A scenario's sections: the model is the file's, the rest is filled in.

    Raises
    ------
    SpecError
        An architecture that flopcast cannot price, or a value that breaks a rule.
    """
    given, ledger = file.given, file.ledger
    model = read_model(file.data, ledger)
    name, cluster = cluster_of(given, ledger)
    gpus = ledger.took("GPUs", given.gpus, "--gpus") if given.gpus else fewest_gpus(model, cluster, ledger)
    plan, training = Section("plan", ledger, dp=gpus), Section("training", ledger, global_batch_size=None)
    deal_experts(plan, model, cluster, gpus)
    plan.assume("zero_stage", 3, "sharded over all GPUs; flopcast search finds better")
    plan.assume("recompute", "full", "the same")
    assume_sequence(training, model)
    assume_batch(training, gpus)
    training.assume("precision", "bf16", "usual")
    stack = ledger.assume("stack", "torchtitan", "PyTorch's own sharding; --set stack=NAME")
    where = cluster_section(name, cluster, gpus, given, ledger)
    return {"model": model, "cluster": where, "plan": plan, "training": training, "stack": stack}


def given_model(name: str, ledger: Ledger) -> Any:
    """The section `model` that a caller names: a preset, or what a config.json describes.

    Raises
    ------
    SpecError
        There is none of that name, or it cannot be read.
    """
    if not name.endswith(".json"):
        load_preset("models", name)  # raises where there is none
        return ledger.took("model", name, "--model")
    inner = Ledger(name)
    section = read_model(parse_json(text_of(Path(name)), name), inner)
    ledger.read += inner.read
    ledger.defaulted += inner.defaulted
    ledger.ignored += inner.ignored
    return section


def read_model(data: Any, ledger: Ledger) -> dict[str, Any]:
    """The section `model` of a scenario from a config's data.

    Raises
    ------
    SpecError
        An architecture that flopcast cannot price, with the reason, or a value that breaks a rule.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"{ledger.where} must hold a mapping of keys, not {type(data).__name__}")
    keys = Keys(data, ledger, KIND)
    kind = keys.text("model_type")
    architecture = architecture_of(kind, keys)
    model = Section("model", ledger, name=_name(keys, str(kind)), **shape_of(architecture, keys))
    told = _without_defaults(model)
    ledger.took("model", kind, ", ".join(f"{name} {short(value)}" for name, value in told.items() if name != "name"))
    _sizes(model, keys)
    _dropout(model, keys)
    _further_tokens(model, keys)
    tied = keys.flag("tie_word_embeddings")
    if tied is not None:
        model.took("tied_embeddings", tied, "tie_word_embeddings")
    for name, value in architecture["absent"].items():
        if name not in model:
            model.assume(name, value, f"what {kind} means where the file says nothing")
    if kind == "opt":  # OPTLearnedPositionalEmbedding keeps two rows more than there are positions
        model.took(
            "max_sequence_length", model["max_sequence_length"] + 2, "OPT's table has two rows more than positions"
        )
    for note in architecture.get("notes", ()):
        ledger.ignore("model_type", str(kind), note)
    keys.leave()
    return _without_defaults(model)


def _name(keys: Keys, kind: str) -> str:
    _, path = keys.take("_name_or_path", "name_or_path")
    name = PurePosixPath(path).name if isinstance(path, str) and path else ""
    return short(name) if name.strip() else kind


def _sizes(model: Section, keys: Keys) -> None:
    known = table(KIND)
    for name, names in known["fields"].items():
        present = next((key for key in names if key in keys), names[0])
        needed = name in known["required"] and name not in model
        value = keys.needed(*names) if needed else keys.whole(*names)
        if value is not None and name not in model:
            model.took(name, value, present)
    if model.get("position") == "learned" and "max_sequence_length" not in model:
        raise SpecError(
            f"{keys.ledger.where}: max_position_embeddings is missing; the table of positions is part of the model"
        )


def _further_tokens(model: Section, keys: Keys) -> None:
    """Modules of multi-token prediction, where they are a layer like the model's last."""
    key = next((key for key in table(KIND)["further_tokens"] if key in keys), None)
    number = keys.whole(*table(KIND)["further_tokens"], least=0)
    if key is None or not number:
        return
    if "none" in (*model.get("layer_types", ()), *model.get("mlp_layer_types", ())):
        keys.ledger.ignore(
            key, number, "its modules are not one layer like the model's last; not counted", matters=True
        )
    else:
        model.took("num_mtp_layers", number, f"{key}; where they are not trained, --set model.num_mtp_layers=0")


def _dropout(model: Section, keys: Keys) -> None:
    for key in table(KIND)["dropout"]:
        if key in keys:
            value = keys.number(key)
            assert value is not None
            if not value < 1:
                raise keys.wrong(key, value, "must be below 1")
            if "dropout" not in model:
                model.took("dropout", value, key)


def _without_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that say what ModelSpec would say anyway."""
    bias = fields.get("bias", True)
    follows = dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), bias)
    follows["norm_bias"] = fields.get("norm", "layernorm") == "layernorm"
    return {
        name: value
        for name, value in fields.items()
        if (follows[name] if name in follows else ModelSpec.model_fields[name].get_default()) != value
    }
