"""Assignments in a Python text: to a name, an attribute, an item, or several of them; arguments to their names."""

from __future__ import annotations

import ast
from typing import Any

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.expressions import plain, value_of
from sim.foreign.importers.python.values import Class, Function, Imported, Made, copied


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


def assignment(node: ast.Assign, scope: Any) -> None:
    """`a = b = 8`."""
    value = value_of(node.value, scope)
    for target in node.targets:
        assign(target, value, scope)


def annotated(node: ast.AnnAssign, scope: Any) -> None:
    """`a: int = 8`."""
    if node.value is not None:
        assign(node.target, value_of(node.value, scope), scope)


def added(node: ast.AugAssign, scope: Any) -> None:
    """`a += 8`."""
    read = ast.copy_location(_as_read(node.target), node)
    assign(node.target, value_of(ast.copy_location(ast.BinOp(read, node.op, node.value), node), scope), scope)


def _as_read(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load()) if isinstance(target, ast.Subscript) else target


def deleted(node: ast.Delete, scope: Any) -> None:
    """`del a.b`: whether a default comes in its place is not known."""
    for each in node.targets:
        if isinstance(each, (ast.Attribute, ast.Subscript)):
            assign(each, NotKnown("deleted", node.lineno), scope)


def shared(node: ast.Global | ast.Nonlocal, scope: Any) -> None:
    """`global a`: what the function sets holds outside it too, from when on is not known."""
    for name in node.names:
        above = scope.above
        while above is not None:
            if name in above.names or above.above is None:
                above.names[name] = NotKnown(f"{name} is set by a function", node.lineno)
            above = above.above


def bind(function: Function, scope: Any, args: list[Any], fields: dict[str, Any]) -> list[str]:
    """Arguments to the names of a function; the names of those that are not given."""
    rule = function.node.args
    places = [each.arg for each in (*rule.posonlyargs, *rule.args)]
    defaults = dict(zip(reversed(places), reversed(rule.defaults), strict=False))
    defaults |= {
        each.arg: default
        for each, default in zip(rule.kwonlyargs, rule.kw_defaults, strict=True)
        if default is not None
    }
    every = [*places, *(each.arg for each in rule.kwonlyargs)]
    given = dict(zip(places, args, strict=False)) | {key: value for key, value in fields.items() if key in every}
    for name, default in defaults.items():
        if name not in given:
            given[name] = value_of(default, function.names)
    if rule.vararg is not None:
        given[rule.vararg.arg] = tuple(args[len(places) :])
    if rule.kwarg is not None:
        given[rule.kwarg.arg] = {key: value for key, value in fields.items() if key not in every}
    scope.names.update(given)
    return [name for name in every if name not in given]
