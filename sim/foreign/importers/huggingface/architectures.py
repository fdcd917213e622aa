"""Architectures of Hugging Face's `config.json`: what a model_type fixes, and what its own keys mean.

They are data, in presets/importers/huggingface.yaml and its neighbours; here stands how the data are followed. A model
of several towers wraps a language model, images or sound, of which the language model alone is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.huggingface.layer_kinds import KIND, ConfigKeys, fields_of, mixers
from sim.foreign.importers.keys import UNKNOWN_KEY, by_name, reason_to_ignore, row, table
from sim.foreign.importers.ledger import Ledger, short

Fields = dict[str, Any]


def architecture_of(kind: str | None, keys: ConfigKeys) -> dict[str, Any]:
    """What the table says of a model_type; from here on, keys that the file leaves out are as its class has them.
    Raises SpecError: nothing, with the reason: it is not a decoder, has experts that nothing says the layers of or
    layers that are not modelled, or is not known."""
    where, known = keys.ledger.where, table(KIND)
    if kind is None:
        raise SpecError(f"{where}: no model_type; it is no config.json of a model that flopcast knows")
    said = f"{where}: model_type {short(kind)!r}"
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if keys.raw(key) is True:
            raise SpecError(f"{said} has an encoder beside it ({key}); flopcast models decoders only")
    name, dense = kind.lower(), known["dense"]
    if name in dense:
        counts = (key for key in known["numbers_of_experts"] if isinstance(keys.raw(key), int) and keys.raw(key) > 1)
        experts = next(counts, None)
        if experts is not None:
            raise SpecError(
                f"{where}: {experts} = {short(keys.raw(experts))}, but model_type {short(kind)!r} has no experts; "
                "which of its layers they replace is not known"
            )
    if name in known_architectures():
        found = entry_of(name)
        keys.fall_back_on(found["left_out"])
        return found
    refuse(kind, where)
    raise SpecError(
        f"{said} is not known{nearest(kind[:60], known_architectures())}; describe the model by its shape in a "
        "scenario instead (model: {num_layers: 32, ...})"
    )


def known_architectures() -> dict[str, dict[str, Any]]:
    """What the table says of each model_type."""
    known = table(KIND)
    return {**known["dense"], **known["mixtures"], **known["hybrids"]}


def entry_of(name: str) -> dict[str, Any]:
    """What the table says of a known model_type, with that of the one it is like; `left_out` says all that a left-out
    key means."""
    entry = known_architectures()[name]
    like = entry.get("like")
    found = {**known_architectures()[like], **entry} if like else entry
    return {**found, "left_out": {**class_values(like or name), **entry.get("left_out", {})}}


def class_values(name: str) -> dict[str, Any]:
    """What a model_type's class in transformers has for the keys that are read."""
    known = table(f"{KIND}_defaults")
    return row(known["columns"], known["classes"].get(name, ()))


def refuse(kind: str, where: str, *, parts: bool = True) -> None:
    """Refuse a model_type that is known for something that flopcast does not model, with what that is.

    parts : whether parts of its name count too.
    """
    name, refused = kind.lower(), table(f"{KIND}_refused")
    by_name = (what for what, names in refused["names"].items() if name in names)
    by_part = (what for what, names in refused["parts"].items() if parts and any(part in name for part in names))
    what = next(by_name, None) or next(by_part, None)
    if what is not None and name not in known_architectures():
        raise SpecError(
            f"{where}: model_type {short(kind)!r} is {what}, which flopcast does not model; decoders such as llama, "
            "qwen3, mixtral and deepseek_v3 it does"
        )


def shape_of(architecture: dict[str, Any], keys: ConfigKeys) -> Fields:
    """Fields that the architecture fixes, and those that follow from keys it alone has."""
    found: Fields = {**table(KIND)["families"].get(architecture.get("family"), {}), **architecture.get("fixed", {})}
    if "blocks" not in architecture.get("readers", ()):  # whose reader says the kinds of layers
        found |= mixers(architecture.get("layers", {}), keys)
    for part, rules in architecture.items():
        if part == "switches":
            for key, rule in rules.items():
                switched = keys.flag(key)  # left out, or null, is false where the class says nothing
                if "refused" in rule and switched is rule["refused"]:
                    raise keys.wrong(key, switched, rule["because"])
                found |= rule.get(bool(switched), {})
        elif part == "readers":
            for name in rules:
                found |= {field: value for field, value in fields_of(name, keys).items() if value is not None}
        elif part == "equal":
            for key, (other, because) in rules.items():
                number = keys.whole(key)
                if number is not None and number != keys.raw(other):
                    raise keys.wrong(key, number, because.format(keys.raw(other)))
        elif part == "forbidden":
            for key, because in rules.items():
                value = keys.take(key)[1]
                if value:
                    raise keys.wrong(key, value, because)
    return found


TIE = "tie_word_embeddings"


def language_model(data: Mapping[str, Any], ledger: Ledger) -> tuple[str | None, ConfigKeys]:
    """(model_type, keys) of the language model: the file's, or those of the section that holds it. Raises SpecError: a
    model around it that is none, or a section that does not say enough."""
    keys = ConfigKeys(data, ledger)
    kind, known = keys.text("model_type"), table(f"{KIND}_wrappers")
    classes = None if kind else keys.raw("architectures")  # of before there was a model_type
    for name in map(str, classes if isinstance(classes, list) else ()):
        kind = kind or table(KIND)["classes"].get(name)
    wrapped = by_name(known["wrappers"])
    while section := next((name for name in known["sections"] if _holds(keys, name)), None):
        if keys.raw("is_encoder_decoder") is True:
            raise ledger.error(f"model_type {short(kind)!r} has an encoder; flopcast models decoders only")
        usual = None
        if kind is not None:
            refuse(kind, ledger.where, parts=False)
            usual = wrapped.get(kind.lower())
        inner = ConfigKeys(keys.raw(section), ledger, f"{keys.label}{section}.", inside=True)
        inner_kind = inner.text("model_type") or usual
        if inner_kind is None and not any(_holds(inner, name) for name in known["sections"]):
            raise ledger.error(
                f"{inner.label}model_type is missing, and nothing is known of {short(kind)!r} that "
                "would say which model it is; write it there (model_type: llama, ...)"
            )
        _leave_all_but(section, keys, inner, kind)
        kind, keys = inner_kind, inner
    if keys.inside:
        _check_sizes(keys, kind)
    elif kind is not None:
        kind = wrapped.get(kind.lower(), kind)
    _leave_towers(keys)
    return kind, keys


def _holds(keys: ConfigKeys, name: str) -> bool:
    return isinstance(keys.raw(name), Mapping) and bool(keys.raw(name))


def _check_sizes(keys: ConfigKeys, kind: str | None) -> None:
    """A part of a larger config may leave out what is as the class has it; one without any size is no model's."""
    sizes = (name for names in table(KIND)["fields"].values() for name in names)
    if not any(keys.says(name) for name in sizes):
        raise keys.ledger.error(
            f"{keys.label.rstrip('.')} says none of the sizes of {short(kind)!r}; "
            "write out its hidden_size, num_hidden_layers, ..."
        )


def _leave_all_but(section: str, keys: ConfigKeys, inner: ConfigKeys, kind: str | None) -> None:
    """Note what stands around a language model; whether its embeddings are tied is said there, if anywhere."""
    around = table(f"{KIND}_wrappers")["around"]
    keys.ledger.ignore(f"{keys.label}model_type", short(kind), f"{around['read']} {section}")
    keys.take(section)
    if keys.says(TIE):
        if inner.says(TIE) and inner.raw(TIE) != keys.raw(TIE):
            keys.ledger.ignore(f"{inner.label}{TIE}", inner.raw(TIE), f"{short(kind)} around it says otherwise")
        inner.replace(TIE, keys.take(TIE)[1])
    path = keys.take("_name_or_path")[1]
    if path and not inner.raw("_name_or_path"):
        inner.replace("_name_or_path", path)
    _leave_towers(keys)
    for name, value in keys.rest().items():
        why, matters = reason_to_ignore(KIND, name)
        unknown = why.startswith(UNKNOWN_KEY)
        keys.ledger.ignore(
            f"{keys.label}{name}", value, around["else"] if unknown else why, matters=matters and not unknown
        )


def _leave_towers(keys: ConfigKeys) -> None:
    """Note sections of towers: one line each, not one for every key in them."""
    known = table(f"{KIND}_wrappers")
    for name, value in keys.rest().items():
        if isinstance(value, Mapping) and any(part in name for part in known["towers"]):
            keys.take(name)
            keys.ledger.ignore(f"{keys.label}{name}", f"{len(value)} keys", known["around"]["tower"], matters=True)
