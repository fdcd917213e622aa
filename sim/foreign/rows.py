"""Rows of a table, done one after the other: what importers and exporters have in common.

A row may have `when`, a condition as the frameworks' rules of plans have it: on names that the rows' reader knows, and
on fields such as plan.tp. Its other keys are verbs, done in turn, which the reader has as methods: `_put` of `put`.
`of` says where from, or of what. Three verbs are all readers': `first`, rows of which the first that applies is done,
`rows`, more of them, and `let`, which works out names that are `known` from there on. Values may call `FUNCTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.specs.framework_plans import value_of

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (int, str, list, min, max, round)},
    "ceil": lambda one, other: -(-one // other),
    "count": lambda said: int(said) if str(said).isdecimal() else 0,
    "usual": lambda said, usual: usual if said is None else said,
    "joined": lambda said: said if isinstance(said, str) else " ".join(map(str, said)),
    "distinct": lambda said: list(dict.fromkeys(each.lower() for each in said)),
    "among": lambda said, known: [each for each in said if each in known],
    "beyond": lambda said, known: [each for each in said if each not in known],
    "upper": lambda said: str(said).upper(),
}
"""What expressions of rows may call; `usual` gives the second where the first is nothing, `count` zero for what is no
whole number."""
FIELD = re.compile(r"(model|plan|training|stack|run)\.\w+")


class Rows:
    """Do what rows say; subclasses have the verbs, the names that conditions may use, and the sections of fields."""

    known: dict[str, Any]

    def names(self) -> Mapping[str, Any]:
        """What names stand for in conditions, values and words."""
        raise NotImplementedError

    def fields(self) -> Any:
        """What has `plan.tp` and the like."""
        raise NotImplementedError

    def follow(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do what rows say, in turn."""
        for row in rows:
            self._applies(row)

    def value(self, text: Any) -> Any:
        """What a value stands for: a field, a name, `= ` and an expression of them, or itself."""
        if not isinstance(text, str):
            return text
        names = self.names()
        if text.startswith("= ") or FIELD.fullmatch(text) or text in names:
            return value_of(text.removeprefix("= "), {**FUNCTIONS, **names}, self.fields())
        return text

    def _let(self, values: Mapping[str, Any], of: Any) -> None:
        for name, value in values.items():
            self.known[name] = self.value(value)

    def _applies(self, row: Mapping[str, Any]) -> bool:
        """Do what a row says, and whether its condition holds."""
        if "when" in row and not self.value(f"= {row['when']}"):
            return False
        for verb, what in row.items():
            if verb == "rows":
                self.follow(what)
            elif verb == "first":
                any(self._applies(each) for each in what)
            elif verb not in ("when", "of"):
                getattr(self, f"_{verb}")(what, row.get("of"))
        return True
