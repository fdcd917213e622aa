"""Megatron-LM's arguments by the rows of their table, with two verbs more than recipes have: `words` and `switches`."""

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

    def _words(self, names: Mapping[str, Sequence[str]], of: Any) -> None:
        """Learn what an argument says, and by a group of the table what its word stands for: NAME and NAME_ours."""
        for name, (group, argument) in names.items():
            known, said = table(KIND)[group], self.keys.text(argument)
            said = None if said is None else said.rpartition(".")[2]  # of AttnBackend.flash
            if said is not None and said not in known:
                raise self.keys.wrong(argument, said, f"must be one of {', '.join(known)}")
            self.known |= {name: said, f"{name}_ours": known.get(said)}

    def _switches(self, groups: Mapping[str, str], of: Any) -> None:
        """Take the fields of sections that switches set, as groups of the table list them."""
        for section, group in groups.items():
            for switch, fields in table(KIND)[group].items():
                if self.keys.has(switch):
                    for field, value in fields.items():
                        self.recipe.sections[section].took(field, value, f"--{switch}")
