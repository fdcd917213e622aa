"""Megatron-LM's arguments by the rows of their table, with two verbs more than recipes have: `list` and `switches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.foreign.importers.keys import table
from sim.foreign.importers.recipes.rows import RecipeRows

KIND = "megatron"


class ArgumentRows(RecipeRows):
    """Arguments while they are read into sections."""

    def _peek(self, names: Mapping[str, str], of: Any) -> None:
        values = {name: self.keys.raw(argument) or [None] for name, argument in names.items()}
        self.known |= {name: first for name, (first, *_) in values.items()}

    def _list(self, names: Mapping[str, Sequence[str]], of: Any) -> None:
        """Learn all values of an argument."""
        self.known |= {name: self.keys.words(*arguments) for name, arguments in names.items()}

    def _switches(self, groups: Mapping[str, str], of: Any) -> None:
        """Take the fields of sections that switches set, as groups of the table list them."""
        for section, group in groups.items():
            for switch, fields in table(KIND)[group].items():
                if self.keys.has(switch):
                    for field, value in fields.items():
                        self.recipe.sections[section].took(field, value, f"--{switch}")
