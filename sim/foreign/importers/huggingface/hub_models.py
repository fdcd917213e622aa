"""Models of the hub by name, as recipes of fine-tuning have them: presets, and the shapes in hub_models.yaml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.huggingface.config import given_model, read_model
from sim.foreign.importers.keys import by_name, row, table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.sources import beside, parse_json, text_of
from sim.specs.presets import load_preset, model_preset, preset_names, repositories

_TABLE = "hub_models"
_QUANTISED = "weights that are stored in fewer bits are priced in the precision of the training"


def named_model(name: str, source: str, file: Foreign, *, by_letters: bool = False) -> Any:
    """The section `model` of what a file names: a folder beside it with a config.json, a preset, a model of the hub.

    source : the key that names it, for messages.
    by_letters : as of `known_model`.

    Raises SpecError: none of them.
    """
    config = beside(f"{name}/config.json", file.folder)
    if config is not None:
        return given_model(str(config), file.ledger)
    found = known_model(name, by_letters=by_letters)
    if found is None:
        raise file.ledger.error(
            f"{source} {short(name)!r} is none of the models that flopcast has; "
            "give --model config.json, that model's own, or --model PRESET"
        )
    shown = found if isinstance(found, str) else found["name"]
    file.ledger.took("model", shown, f"{source} {short(name)}")
    if name.lower().endswith(tuple(table(_TABLE)["quantised"])):
        file.ledger.ignore(source, name, _QUANTISED, matters=True)
    return found


def known_model(name: str, *, by_letters: bool = False) -> str | dict[str, Any] | None:
    """The preset that a model's name stands for, or its shape; None where neither is known.

    Owners and endings such as -Instruct or -bnb-4bit are taken off: fine-tuned models have the shape of their base.

    by_letters : whether a tool's own name counts too, which has the same letters and digits: qwen2_5_7b, llama318b.
    """
    known = table(_TABLE)
    plain = name.strip().partition("@")[0].rstrip("/").rpartition("/")[2].lower()  # without a revision behind @
    for part in known["inside"]:
        plain = plain.replace(part, "-")
    for repository in _shorter(plain, known["endings"]):
        same = by_name(known["same"]).get(repository, repository)
        if same in known["models"]:
            kind, *values, _ = known["models"][same]
            fields = row(known["columns"], values)
            return read_model({"model_type": kind, **fields, "name_or_path": name}, Ledger(name))
        try:
            return model_preset(same)
        except SpecError:
            continue
    if not by_letters:
        return None
    letters = (_letters_of(repository) for repository in _shorter(plain, known["endings"]))
    found = next((_by_letters()[each] for each in letters if each in _by_letters()), None)
    return None if found is None else known_model(found)


def whole_shape(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """A section `model` with the fields of its preset, if it has one."""
    if isinstance(model, str):
        return load_preset("models", model)
    preset = model.get("preset")
    own = {name: value for name, value in model.items() if name != "preset"}
    return {**(load_preset("models", preset) if preset else {}), **own}


def _letters_of(name: str) -> str:
    """A name without its signs: qwen2505b of Qwen2.5-0.5B, of qwen2_5_0_5b and of Qwen25-0P5B."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<=\d)p(?=\d)", "", name.lower()))


@cache
def _by_letters() -> dict[str, str]:
    """Models by the letters of their names, where those stand for one alone."""
    known, found = table(_TABLE), dict[str, set[str]]()
    names = {
        **{name: name for name in (*known["models"], *preset_names("models"))},
        **by_name(known["same"]),
        **{name: fields["preset"] for name, fields in repositories().items()},
    }
    for name, stands_for in names.items():
        found.setdefault(_letters_of(name), set()).add(stands_for)
    return {letters: next(iter(models)) for letters, models in found.items() if len(models) == 1}


def further_model(name: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """The section `model` of a `config.json`, a folder with one, or a model of the hub; and what of it is not counted.

    None where a name stands for none of them.
    """
    ledger = Ledger(name)
    path = Path(name) / "config.json" if os.path.isdir(name) else Path(name)
    if path.suffix == ".json":
        data = parse_json(text_of(path), str(path))
        found: Any = read_model(data, ledger)
        if path.parent.name and not {"_name_or_path", "name_or_path"} & {*data}:
            found = {**found, "name": path.parent.name}  # the folder's says more than the architecture's
    else:
        found = known_model(name)
    if found is None:
        return None
    if name.lower().endswith(tuple(table(_TABLE)["quantised"])):
        ledger.ignore("weights", "in fewer bits", _QUANTISED, matters=True)
    section = load_preset("models", found) if isinstance(found, str) else found
    return dict(section), tuple(f"{entry.name} {entry.value} of {name}: {entry.note}" for entry in ledger.unpriced)


def _shorter(name: str, endings: list[str]) -> list[str]:
    """The name, without meta- before it, and without one ending after the other."""
    names = [name.removeprefix("meta-")]
    while (ending := next((end for end in endings if names[-1].endswith(end)), None)) is not None:
        names.append(names[-1].removesuffix(ending))
    return names
