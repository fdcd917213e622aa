"""Recipes of a Python file: functions that give a configuration, and names that hold one; which of them is meant, and
its settings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sim.errors import SpecError, nearest
from sim.foreign.importers.keys import UNKNOWN_KEY, NotKnown, reason_to_ignore, row, table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.python.text import Raised, Reading, Returned, Scope, run_statements
from sim.foreign.importers.python.values import CALLED, Function, Made, MadeBy, settings_of

_LISTED = 80
"""Recipes that a message names."""
Fits = Callable[[Mapping[str, Any]], bool]


def read_recipe(text: str, asked: str | None, ledger: Ledger, kind: str, fits: Fits) -> tuple[str, dict[str, Any]]:
    """(name, nested settings) of the recipe that was asked for, or of the only one of the file; `()` holds who made an
    object. What was not followed is noted.

    asked : `name`, or `name(argument=value)` with arguments of the function.
    fits : whether nested settings are a configuration of the kind.

    Raises SpecError: the text is no Python, has no recipe, or several.
    """
    where, module = ledger.where, _parsed(text, ledger.where)
    name, args, fields = _call_of(asked)
    if name is None:
        name = _only(_candidates(module, where, kind, fits), where, module)
    reading, scope = _read(module, where, kind)
    value = scope.names.get(name)
    if isinstance(value, Function):
        if name not in reading.results or args or fields:
            _check_arguments(value, fields, where)
            try:
                reading.follow(value, args, fields, value.node.lineno)
            except Raised as raised:
                raise SpecError(f"{where}, line {raised.args[0]}: {name} raises an error for these arguments") from None
        value = _configuration(reading, name, fits)
    settings = settings_of(value)
    if isinstance(settings, NotKnown):
        why = f"what {name} gives is known only to running code: {settings.why}"
        raise SpecError(f"{where}, line {settings.line}: {why}")
    if not isinstance(settings, Mapping) or not fits(settings):
        raise SpecError(f"{where} has no recipe {short(name)!r}{nearest(name, _candidates(module, where, kind, fits))}")
    for (line, what), why in reading.notes.items():
        reason, matters = reason_to_ignore(kind, what)
        listed = any(
            what in names for group in ("unpriced", "ignored") for names in table(kind).get(group, {}).values()
        )
        ledger.ignore(f"line {line}: {what}", "", reason if listed else why, matters)
    for called, line in reading.used:
        version = table(kind)["recipes_of"]
        ledger.assume(".".join(called.split(".")[-2:]), f"line {line}", f"what it sets, as of {version}")
    ledger.took("recipe", name, "--recipe" if asked else "the file's")
    return name, dict(settings)


def leave_makers(settings: Mapping[str, Any], ledger: Ledger, kind: str, path: str = "") -> dict[str, Any]:
    """Settings without who made each object, but where the kind's table asks for it; functions of other files are
    noted, whose own settings nobody knows."""
    left: dict[str, Any] = {}
    for key, value in settings.items():
        if key == CALLED and f"{path}{key}" not in _asked(kind):
            known = _library(kind)
            whole = f"{value.module.rpartition('.')[2]}.{value}" if isinstance(value, MadeBy) else ""
            if isinstance(value, MadeBy) and value[:1].islower() and not {value, whole} & known.keys():
                why = "stands in another file; what it sets by itself is not known"
                reason, _ = reason_to_ignore(kind, path.rstrip(".") or f"{value}()")
                listed = reason != UNKNOWN_KEY
                ledger.ignore(f"line {value.line}: {value}()", "", reason if listed else why, not listed)
            continue
        left[key] = leave_makers(value, ledger, kind, f"{path}{key}.") if isinstance(value, Mapping) else value
    return left


def _asked(kind: str) -> set[str]:
    """Settings by which the kind's table asks who made an object."""
    known = table(kind)
    groups = [source["keys"] for source in known.get("models", ()) if isinstance(source, Mapping)]
    groups += [known[group]["names"] for group in ("precision", "adapters") if group in known]
    return {name for group in groups for name in group if name.endswith(CALLED)}


def _parsed(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise SpecError(f"{where}: line {error.lineno}: {error.msg}; it is not Python") from None
    except (MemoryError, ValueError):
        raise SpecError(f"{where} is nested too deeply; no recipe is") from None


@cache
def _library(kind: str) -> dict[str, Any]:
    """Functions of the framework's own files that recipes call, and the framework's recipes, by what they give."""
    known = table(kind)
    library: dict[str, Any] = dict(known.get("functions", {}))
    for group in (table(known["recipes"]) if "recipes" in known else {}).values():
        for name in group.keys() - {"all", "columns"}:
            settings = {**group["all"], **row(group["columns"], group[name])}
            only = settings.pop("only", {})
            gives = {key: value for key, value in settings.items() if value is not None}
            library[name] = {"gives": gives, "only": only, "recipe": True}
    return library


def _read(module: ast.Module, where: str, kind: str) -> tuple[Reading, Scope]:
    reading = Reading(where, _library(kind), table(kind).get("constants", {}))
    scope = Scope(reading)
    scope.names["__name__"] = "__main__"
    try:
        run_statements(module.body, scope)
    except (Returned, Raised):
        reading.note(0, "the file", "stops with an error where it is read as a script")
    return reading, scope


def _candidates(module: ast.Module, where: str, kind: str, fits: Fits) -> list[str]:
    """Names of the file's recipes, without those on which others of them are built where one is built on all."""
    reading, scope = _read(module, where, kind)
    found = [name for name, value in scope.names.items() if isinstance(value, Made) and _fits(value, fits)]
    callers = set(found) and {""}
    for name, value in scope.names.items():
        if not isinstance(value, Function) or name.startswith("_"):
            continue
        if name not in reading.results:
            try:
                reading.follow(value, [], {}, value.node.lineno)
            except Raised:
                continue
        if _fits(_configuration(reading, name, fits), fits):
            found.append(name)
            callers.add(name)
    if not found and reading.refused is not None:
        why = f"{reading.refused.why}; call it so, and set what differs on the lines below"
        raise SpecError(f"{where}, line {reading.refused.line}: {why}")
    outer = [name for name in found if not any((caller, name) in reading.calls for caller in callers)]
    return outer if len(outer) == 1 else found


def _fits(value: Any, fits: Fits) -> bool:
    settings = settings_of(value)
    return isinstance(settings, Mapping) and fits(settings)


def _configuration(reading: Reading, name: str, fits: Fits) -> Any:
    """What a function gives, or the configuration that it fills and hands on."""
    result = reading.results.get(name)
    if isinstance(result, NotKnown) or _fits(result, fits):
        return result
    within = [
        value for value in reading.locals.get(name, {}).values() if isinstance(value, Made) and _fits(value, fits)
    ]
    return within[-1] if within else result


def _only(names: list[str], where: str, module: ast.Module) -> str:
    if not names:
        called = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
        named = ((short(ast.unparse(node.func)), node.lineno) for node in called)
        ends = ("_recipe", "_config", "model_registry")
        calls = ", ".join([f"{name}() on line {line}" for name, line in named if name.endswith(ends)][:3])
        more = f"; other files, which are not followed, give {calls}; import the file that has it" if calls else ""
        raise SpecError(f"{where} has no recipe: no function gives a configuration, and no name holds one{more}")
    if len(names) > 1:
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise SpecError(
            f"{where} has {len(names)} recipes; --recipe NAME says which: {', '.join(names[:_LISTED])}{more}"
        )
    return names[0]


def _call_of(asked: str | None) -> tuple[str | None, list[Any], dict[str, Any]]:
    """(name, arguments, arguments with a name) of `name` or `name(4, nodes=2)`."""
    if asked is None:
        return None, [], {}
    rule = f"--recipe {short(asked)!r} must look like NAME, or NAME(argument=value)"
    try:
        node = ast.parse(asked.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise SpecError(rule)
        fields = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
        return node.func.id, [ast.literal_eval(each) for each in node.args], fields
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise SpecError(rule) from None


def _check_arguments(function: Function, fields: dict[str, Any], where: str) -> None:
    rule = function.node.args
    known = [each.arg for each in (*rule.posonlyargs, *rule.args, *rule.kwonlyargs)]
    for name in fields:
        if name not in known and rule.kwarg is None:
            raise SpecError(f"{where}: {function.name} takes no {short(name)!r}{nearest(name, known)}")
