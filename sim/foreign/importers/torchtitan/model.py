"""torchtitan's models: a name and a flavor stand for a preset, or for a shape of the table."""

from __future__ import annotations

from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Ledger, Section, short

KIND = "torchtitan"


def read_flavor(keys: Keys) -> Any:
    """The section `model`: what model.name and model.flavor stand for.

    Raises
    ------
    SpecError
        They are not there, or not known.
    """
    name, flavor, ledger = keys.text("name"), keys.text("flavor"), keys.ledger
    if name is None or flavor is None:
        raise SpecError(f"{ledger.where}: model.name and model.flavor say which model it is; give --model instead")
    model = flavor_of(name, flavor, ledger)
    towers = table(KIND)["towers"]
    if not {_plain(name), f"{_plain(name)} {flavor}"}.isdisjoint(towers):
        ledger.ignore("the vision encoder", "", "the language model alone is priced", matters=True)
    return model


def flavor_of(name: str, flavor: str, ledger: Ledger) -> Any:
    """A preset, or a shape."""
    where, known = ledger.where, table(KIND)["flavors"]
    if _plain(name) in table(KIND)["no_decoders"]:
        raise SpecError(f"{where}: model {short(name)!r} is no decoder of text; flopcast models none other")
    flavors = {each.lower(): what for each, what in known.get(_plain(name), {}).items() if each != "all"}
    found = flavors.get(flavor.lower())
    if found is None:
        hint = nearest(flavor, flavors) if flavors else nearest(name, known)
        raise SpecError(
            f"{where}: the file does not describe model {short(f'{name} {flavor}')!r}, and no preset has that "
            f"name; give --model PRESET or --model config.json{hint}"
        )
    source = f"model.name {short(name)} and model.flavor {short(flavor)}"
    if isinstance(found, dict):
        whole = {**known[_plain(name)]["all"], **found}
        model = Section("model", ledger, name=f"{name}-{flavor}".lower().replace("_", "-"))
        for field, value in whole.items():
            model[field] = value
        ledger.took("model", model["name"], f"{source}, of torchtitan's registry")
        return model
    ledger.took("model", found, source)
    return found


def _plain(name: str) -> str:
    """A model's name as the table has it: the same for `llama3`, `graph_trainer.llama3` and `llama3_ft`."""
    return name.rpartition(".")[2].lower().replace("-", "_").removesuffix("_ft")
