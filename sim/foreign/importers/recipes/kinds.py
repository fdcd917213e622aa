"""Recipes of every kind, read by the rows of their tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import isfunction
from typing import Any

from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import table
from sim.foreign.importers.recipes import finetuning, recipe, sharding, steps
from sim.foreign.importers.recipes.interpolations import resolved
from sim.foreign.importers.recipes.recipe import scenario_of
from sim.foreign.importers.recipes.rows import RecipeRows
from sim.foreign.importers.recipes.settings import flat_keys, new_recipe, take_settings

STEPS: dict[str, Callable[..., None]] = {
    name: function
    for module in (steps, finetuning, sharding, recipe)
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__
}
"""What rows call by `step`."""


def read_recipe_of(kind: str, file: Foreign) -> dict[str, Any]:
    """A scenario's sections. Raises SpecError: what the kind's table refuses, or values that go not together."""
    known = table(kind)
    if "off" in known:  # names with dashes, and degrees of zero, which are none
        plain = {str(key).replace("-", "_"): value for key, value in file.data.items()}
        said = {key: value for key, value in plain.items() if key not in known["off"] or value not in (0, -1)}
        file = replace(file, data=said)
    keys = flat_keys(resolved(file.data), file, kind)
    rows = RecipeRows(keys, new_recipe(kind, file), file, STEPS)
    rows.follow(known.get("checks", ()))
    take_settings(rows.recipe, keys, known["settings"])
    rows.follow(known.get("rows", ()))
    rows.sections = scenario_of(rows)
    keys.leave()
    rows.follow(known.get("after", ()))
    return rows.sections
