"""Assignments in a Python text: to a name, an attribute, an item, or several of them."""

from __future__ import annotations

import ast
from typing import Any

from sim.specs.importers.keys import NotKnown
from sim.specs.importers.python_expressions import plain, value_of
from sim.specs.importers.python_values import Class, Imported, Made, copied


def assign(target: ast.expr, value: Any, scope: Any) -> None:
    """Set a name, an attribute, an item, or several of them."""
    if isinstance(target, ast.Name):
        scope.names[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = list(value) if isinstance(value, (list, tuple)) else [copied(value) for _ in target.elts]
        if len(parts) != len(target.elts):
            parts = [NotKnown("of several names at once", target.lineno)] * len(target.elts)
        for each, part in zip(target.elts, parts, strict=True):
            assign(each, part, scope)
    elif isinstance(target, ast.Attribute):
        owner = value_of(target.value, scope)
        if isinstance(owner, Made):
            owner.put(target.attr, value)
        elif not isinstance(owner, (Imported, Class)):
            scope.reading.note(target.lineno, ast.unparse(target)[:60], "set in what is not known here")
    elif isinstance(target, ast.Subscript):
        owner, key = plain(value_of(target.value, scope)), value_of(target.slice, scope)
        if isinstance(owner, (dict, list)) and isinstance(key, (str, int)):
            try:
                owner[key] = value  # type: ignore[index]
            except (IndexError, TypeError):
                scope.reading.note(target.lineno, "an item", "set where there is none")
        elif not isinstance(owner, Imported):
            scope.reading.note(target.lineno, ast.unparse(target)[:60], "set in what is not known here")
