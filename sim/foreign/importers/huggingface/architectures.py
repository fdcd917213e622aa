"""Architectures of Hugging Face's `config.json`: what a model_type fixes, and what its own keys mean. They are data, in
presets/importers/huggingface.yaml and its neighbours; here stands how the data are followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.huggingface.config_keys import KIND, ConfigKeys
from sim.foreign.importers.huggingface.layer_kinds import mixers
from sim.foreign.importers.huggingface.own_keys import READERS
from sim.foreign.importers.keys import row, table
from sim.foreign.importers.ledger import short

Fields = dict[str, Any]


def architecture_of(kind: str | None, keys: ConfigKeys) -> dict[str, Any]:
    """What the table says of a model_type; from here on, keys that the file leaves out are as its class has them.

    Raises
    ------
    SpecError
        Nothing, with the reason: it is not a decoder, has experts that nothing says the layers of or layers that are
        not modelled, or is not known.
    """
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
    """Nothing, where nothing is known against a model_type.

    Parameters
    ----------
    parts : bool
        Whether parts of its name count too.

    Raises
    ------
    SpecError
        It is known for something that flopcast does not model, with what that is.
    """
    name, refused = kind.lower(), table(f"{KIND}_refused")
    if name in known_architectures():
        return
    for what, names in refused["names"].items():
        if name in names:
            raise _refusal(what, kind, where)
    for what, names in refused["parts"].items() if parts else ():
        if any(part in name for part in names):
            raise _refusal(what, kind, where)


def _refusal(what: str, kind: str, where: str) -> SpecError:
    return SpecError(
        f"{where}: model_type {short(kind)!r} is {what}, which flopcast does not model; decoders such as llama, qwen3, "
        "mixtral and deepseek_v3 it does"
    )


def shape_of(architecture: dict[str, Any], keys: ConfigKeys) -> Fields:
    """Fields that the architecture fixes, and those that follow from keys it alone has."""
    found: Fields = {**table(KIND)["families"].get(architecture.get("family"), {}), **architecture.get("fixed", {})}
    if "blocks" not in architecture.get("readers", ()):  # whose reader says the kinds of layers
        found |= mixers(architecture.get("layers", {}), keys)
    for part, rules in architecture.items():
        if part == "switches":
            for key, rule in rules.items():
                found |= _switched(key, rule, keys)
        elif part == "readers":
            for name in rules:
                found |= {field: value for field, value in READERS[name](keys).items() if value is not None}
        elif part == "forbidden":
            for key, because in rules.items():
                value = keys.take(key)[1]
                if value:
                    raise keys.wrong(key, value, because)
    return found


def _switched(key: str, rule: Mapping[Any, Any], keys: ConfigKeys) -> Fields:
    """Fields that a key sets by being true or false; left out, or null, is false where the class says nothing."""
    value = keys.flag(key)
    if "refused" in rule:
        if value is rule["refused"]:
            raise keys.wrong(key, value, rule["because"])
        return {}
    fields: Fields = rule.get(bool(value), {})
    return fields
