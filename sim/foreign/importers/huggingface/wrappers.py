"""Language models inside others, in Hugging Face's `config.json`: `text_config` and kin beside towers for pictures or
sound, of which the language model alone is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.huggingface.architectures import refuse
from sim.foreign.importers.huggingface.config_keys import KIND, ConfigKeys
from sim.foreign.importers.keys import UNKNOWN_KEY, by_name, reason_to_ignore, table
from sim.foreign.importers.ledger import Ledger, short

TIE = "tie_word_embeddings"


def language_model(data: Mapping[str, Any], ledger: Ledger) -> tuple[str | None, ConfigKeys]:
    """(model_type, keys) of the language model: the file's, or those of the section that holds it.

    Raises
    ------
    SpecError
        A model around it that is none, or a section that does not say enough.
    """
    keys = ConfigKeys(data, ledger)
    kind, known = keys.text("model_type") or _class_of(keys), table(f"{KIND}_wrappers")
    wrapped = by_name(known["wrappers"])
    while section := next((name for name in known["sections"] if _holds(keys, name)), None):
        if keys.raw("is_encoder_decoder") is True:
            raise SpecError(f"{ledger.where}: model_type {short(kind)!r} has an encoder; flopcast models decoders only")
        usual = None
        if kind is not None:
            refuse(kind, ledger.where, parts=False)
            usual = wrapped.get(kind.lower())
        inner = ConfigKeys(keys.raw(section), ledger, f"{keys.label}{section}.", inside=True)
        inner_kind = inner.text("model_type") or usual
        if inner_kind is None and not any(_holds(inner, name) for name in known["sections"]):
            raise SpecError(
                f"{ledger.where}: {inner.label}model_type is missing, and nothing is known of {short(kind)!r} that "
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


def _class_of(keys: ConfigKeys) -> str | None:
    """The model_type of a file of before there was one, by the class that it names."""
    classes, known = keys.raw("architectures"), table(KIND)["classes"]
    named = map(str, classes) if isinstance(classes, list) else ()
    return next((known[name] for name in named if name in known), None)


def _holds(keys: ConfigKeys, name: str) -> bool:
    return isinstance(keys.raw(name), Mapping) and bool(keys.raw(name))


def _check_sizes(keys: ConfigKeys, kind: str | None) -> None:
    """A part of a larger config may leave out what is as the class has it; one without any size is no model's."""
    sizes = (name for names in table(KIND)["fields"].values() for name in names)
    if not any(keys.states(name) for name in sizes):
        raise SpecError(
            f"{keys.ledger.where}: {keys.label.rstrip('.')} says none of the sizes of {short(kind)!r}; "
            "write out its hidden_size, num_hidden_layers, ..."
        )


def _leave_all_but(section: str, keys: ConfigKeys, inner: ConfigKeys, kind: str | None) -> None:
    """Note what stands around a language model; whether its embeddings are tied is said there, if anywhere."""
    around = table(f"{KIND}_wrappers")["around"]
    keys.ledger.ignore(f"{keys.label}model_type", short(kind), f"{around['read']} {section}")
    keys.take(section)
    if keys.states(TIE):
        if inner.states(TIE) and inner.raw(TIE) != keys.raw(TIE):
            keys.ledger.ignore(f"{inner.label}{TIE}", inner.raw(TIE), f"{short(kind)} around it says otherwise")
        inner.put(TIE, keys.take(TIE)[1])
    path = keys.take("_name_or_path")[1]
    if path and not inner.raw("_name_or_path"):
        inner.put("_name_or_path", path)
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
