"""Hugging Face's `config.json`: the model, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign, Machine, assume_batch, assume_sequence, told_gpus
from sim.foreign.importers.huggingface.architectures import architecture_of, language_model, shape_of
from sim.foreign.importers.huggingface.layer_kinds import KIND, MOST_LAYERS, ConfigKeys
from sim.foreign.importers.keys import UNKNOWN_KEY, table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.sources import parse_json, text_of
from sim.specs.model import ModelSpec
from sim.specs.presets import load_preset


def is_huggingface(data: Any) -> bool:
    """Whether data in JSON are such a config."""
    return isinstance(data, Mapping) and any(
        key in data for key in ("model_type", "architectures", *table(f"{KIND}_wrappers")["no_models"])
    )


def read_huggingface(file: Foreign) -> dict[str, Any]:
    """A scenario's sections: the model is the file's, the rest is filled in. Raises SpecError: an architecture that
    flopcast cannot price, or a value that breaks a rule."""
    ledger = file.ledger
    model, machine = read_model(file.data, ledger), Machine.of(file)
    gpus = told_gpus(file) or machine.fewest_gpus(model)
    plan, training = Section("plan", ledger, dp=gpus), Section("training", ledger, global_batch_size=None)
    machine.deal_experts(plan, model, gpus)
    plan.assume("zero_stage", 3, "fits nearly everywhere; flopcast search finds faster")
    plan.assume("recompute", "full", "fits nearly everywhere; flopcast search finds faster")
    assume_sequence(training, model)
    assume_batch(training, gpus)
    training.assume("precision", "bf16", "usual")
    stack = ledger.assume("stack", "torchtitan", "PyTorch's own sharding; --set stack=NAME")
    return {"model": model, "cluster": machine.section(gpus), "plan": plan, "training": training, "stack": stack}


def given_model(name: str, ledger: Ledger) -> Any:
    """The section `model` that a caller names: a preset, or what a config.json describes. Raises SpecError: there is
    none of that name, or it cannot be read."""
    if not name.endswith(".json"):
        load_preset("models", name)  # raises where there is none
        return ledger.took("model", name, "--model")
    inner = Ledger(name)
    section = read_model(parse_json(text_of(Path(name)), name), inner)
    ledger.add(inner)
    return section


def read_model(data: Any, ledger: Ledger) -> dict[str, Any]:
    """The section `model` of a scenario from a config's data. Raises SpecError: an architecture that flopcast cannot
    price, with the reason, or a value that breaks a rule."""
    if not isinstance(data, Mapping):
        raise SpecError(f"{ledger.where} must hold a mapping of keys, not {type(data).__name__}")
    for key, what in table(f"{KIND}_wrappers")["no_models"].items():
        if key in data and "model_type" not in data:
            names = {name: short(data.get(name)) for name in ("peft_type", "base_model_name_or_path", "_class_name")}
            raise SpecError(f"{ledger.where} {what.format(**names)}")
    kind, keys = language_model(data, ledger)
    architecture = architecture_of(kind, keys)
    model = Section("model", ledger, name=_name(keys, str(kind)), **shape_of(architecture, keys))
    told = _without_defaults(model)
    ledger.took("model", kind, ", ".join(f"{name} {short(value)}" for name, value in told.items() if name != "name"))
    _sizes(model, keys)
    for key in table(KIND)["dropout"]:
        _set(model, "dropout", (key,), keys.number, keys)
        if not model.get("dropout", 0) < 1:
            raise keys.wrong(key, model["dropout"], "must be below 1")
    _further_tokens(model, keys)
    stretch = next((keys.raw(key) for key in ("rope_scaling", "rope_parameters") if keys.raw(key)), None)
    named = (stretch.get("rope_type"), stretch.get("type")) if isinstance(stretch, Mapping) else ()
    if {"yarn", "deepseek_yarn"} & {*map(str, named)}:  # kernels of latent attention scale what they turn
        model.took("rotary_scaled", True, "rope_scaling: yarn")
    _set(model, "tied_embeddings", ("tie_word_embeddings",), keys.flag, keys)
    rows = architecture.get("further_rows", 0)
    if rows:
        longest = model["max_sequence_length"] + rows
        model.took("max_sequence_length", longest, f"the table of {kind} has {rows} rows more than positions")
    for note in architecture.get("notes", ()):
        ledger.ignore("model_type", str(kind), note)
    _check_rest(keys, kind)
    keys.leave()
    return _without_defaults(model)


def _check_rest(keys: ConfigKeys, kind: str | None) -> None:
    """Nothing is left that says of a part which this model type, as it is known, has not."""
    for key, value in keys.rest().items():
        parts = table(KIND)["foreign"]
        if value and keys.reason(key)[0].startswith(UNKNOWN_KEY) and any(part in key for part in parts):
            raise keys.wrong(
                key, value, f"says of a part that {short(kind)!r} is not known to have; flopcast would miscount"
            )


def _name(keys: ConfigKeys, kind: str) -> str:
    _, path = keys.take("_name_or_path", "name_or_path")
    name = PurePosixPath(path).name if isinstance(path, str) and path else ""
    return short(name) if name.strip() else kind


def _sizes(model: Section, keys: ConfigKeys) -> None:
    known = table(KIND)
    for name, names in known["fields"].items():
        lost = name in known["required"] or (name in known["widths"] and keys.of_class(*names))
        needed = lost and name not in model
        _set(model, name, names, keys.needed if needed else keys.whole, keys)
    if model.get("num_layers", 0) > MOST_LAYERS:
        raise keys.wrong("num_hidden_layers", model["num_layers"], f"must be at most {MOST_LAYERS:,}")
    if model.get("position") == "learned" and "max_sequence_length" not in model:
        raise keys.ledger.error("max_position_embeddings is missing; the table of positions is part of the model")


def _set(model: Section, field: str, names: Sequence[str], take: Callable[..., Any], keys: ConfigKeys) -> None:
    """Set a field from the first of several keys, unless it is set; what is the class's is in the account already."""
    said = next((key for key in names if keys.says(key) and key in keys), None)
    value = take(*names)
    if value is None or field in model:
        return
    if said is None:
        model[field] = value
    else:
        model.took(field, value, said)


def _further_tokens(model: Section, keys: ConfigKeys) -> None:
    """Modules of multi-token prediction, where they are a layer like the model's last."""
    key = next((key for key in table(KIND)["further_tokens"] if key in keys), None)
    number = keys.whole(*table(KIND)["further_tokens"], least=0)
    if key is None or not number:
        return
    if "none" in (*model.get("layer_types", ()), *model.get("mlp_layer_types", ())):
        keys.ledger.ignore(
            key, number, "its modules are not one layer like the model's last, so they are not counted", matters=True
        )
    else:
        model.took("num_mtp_layers", number, f"{key}; where they are not trained, --set model.num_mtp_layers=0")


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
