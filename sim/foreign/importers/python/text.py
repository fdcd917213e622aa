"""Python files as text: what they set, statement by statement. Nothing is run or imported.

Assignments, calls and the branches whose condition the text decides are followed, and functions of the file with their
arguments. What other branches, loops, comprehensions and classes set is not known; what stands in other files keeps its
name, its arguments and its line."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.expressions import Unknown, plain, truth, value_of
from sim.foreign.importers.python.values import Class, Function, Imported, Made, copied, holds_object

MOST_STEPS = 400_000
DEEPEST_CALL = 25


class Returned(Exception):
    """A function gives something back, the exception's only argument."""


class Raised(Exception):
    """The code would stop with an error in the line that is the exception's only argument."""


class Scope:
    """The names of a function or of the file.

    above : the scope around it.
    """

    def __init__(self, reading: Reading, above: Scope | None = None) -> None:
        self.reading, self.above = reading, above
        self.names: dict[str, Any] = {}

    def lookup(self, name: str) -> Any:
        """What a name holds."""
        if name in self.names:
            return self.names[name]
        return Imported(name) if self.above is None else self.above.lookup(name)

    def inner(self, name: str, value: Any) -> Scope:
        """A scope within this one, in which a name holds a value."""
        scope = Scope(self.reading, self)
        scope.names[name] = value
        return scope

    def step(self, line: int) -> None:
        """Count one step."""
        self.reading.steps += 1
        if self.reading.steps > MOST_STEPS:
            raise SpecError(f"{self.reading.where}, line {line}: more than {MOST_STEPS:,} steps; no recipe needs them")


class Reading:
    """One reading of a Python text.

    library : of functions of other files, by name: what they give, and the names of their arguments.
    constants : of other files, by name.
    notes : (line, name, what) of what was not followed.
    calls : functions of the file by which others of it were called.
    used : (function, line) of recipes of the library that were called.
    refused : of a recipe that was called in a way of which the library knows nothing, why.
    """

    def __init__(self, where: str, library: Mapping[str, Any], constants: Mapping[str, Any] | None = None) -> None:
        self.where, self.library, self.constants = where, library, constants or {}
        self.steps, self.depth = 0, 0
        self.notes: dict[tuple[int, str], str] = {}
        self.calls: set[tuple[str, str]] = set()
        self.stack: list[str] = [""]
        self.locals: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Any] = {}
        self.used: list[tuple[str, int]] = []
        self.refused: NotKnown | None = None

    def known(self, name: str) -> Any:
        """What the library has of a function, by its whole name, by its last two or by its last part."""
        parts = name.split(".")
        keys = (name, ".".join(parts[-2:]), parts[-1])
        return next((self.library[key] for key in keys if key in self.library), None)

    def note(self, line: int, name: str, what: str) -> None:
        """Note what is not known."""
        self.notes.setdefault((line, name), what)

    def follow(self, function: Function, args: list[Any], fields: dict[str, Any], line: int) -> Any:
        """What a function of the file gives for these arguments."""
        self.calls.add((self.stack[-1], function.name))
        if self.depth >= DEEPEST_CALL or function.name in self.stack[-3:]:
            return NotKnown(f"of {function.name}(), which calls itself", line)
        scope = Scope(self, function.names)
        _bind(function, scope, args, fields)
        self.depth += 1
        self.stack.append(function.name)
        result: Any = None
        try:
            run_statements(function.node.body, scope)
        except Returned as returned:
            result = returned.args[0]
        finally:
            self.depth -= 1
            self.stack.pop()
        self.locals[function.name], self.results[function.name] = scope.names, result
        return result


def _bind(function: Function, scope: Scope, args: list[Any], fields: dict[str, Any]) -> None:
    """Arguments to the names of a function; those that are not given are not known."""
    rule = function.node.args
    places = [each.arg for each in (*rule.posonlyargs, *rule.args)]
    defaults: dict[str, ast.expr | None] = dict(zip(reversed(places), reversed(rule.defaults), strict=False))
    defaults |= {each.arg: default for each, default in zip(rule.kwonlyargs, rule.kw_defaults, strict=True)}
    every = [*places, *(each.arg for each in rule.kwonlyargs)]
    given = dict(zip(places, args, strict=False)) | {key: value for key, value in fields.items() if key in every}
    for name in every:
        default = defaults.get(name)
        if name not in given and default is not None:
            given[name] = value_of(default, function.names)
        elif name not in given:
            given[name] = NotKnown(f"argument {name} of {function.name}() is not given", function.node.lineno)
    if rule.vararg is not None:
        given[rule.vararg.arg] = tuple(args[len(places) :])
    if rule.kwarg is not None:
        given[rule.kwarg.arg] = {key: value for key, value in fields.items() if key not in every}
    scope.names.update(given)


def run_statements(statements: Iterable[ast.stmt], scope: Scope) -> None:
    """Read statements in their order."""
    for each in statements:
        scope.step(each.lineno)
        _run(each, scope)


def _run(node: ast.stmt, scope: Scope) -> None:
    """Read a statement."""
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is not None:
            result = value_of(value, scope)
            for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
                assign(each, result, scope)
        case ast.AugAssign(target, sign, value):
            assign(target, value_of(ast.copy_location(ast.BinOp(target, sign, value), node), scope), scope)
        case ast.Delete() | ast.Global() | ast.Nonlocal():
            word = ast.unparse(node)[:60]
            raise SpecError(f"{scope.reading.where}, line {node.lineno}: {word} is not followed; write the values out")
        case ast.Expr():
            _expression(node, scope)
        case ast.If():
            _condition(node, scope)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            scope.names[name] = Function(node, scope)
        case ast.ClassDef(name=name):
            scope.names[name] = Class(name)
        case ast.Import() | ast.ImportFrom():
            _imports(node, scope)
        case ast.Return(value):
            raise Returned(None if value is None else value_of(value, scope))
        case ast.Raise():
            raise Raised(node.lineno)
        case ast.Try() | ast.With():
            more = [*node.orelse, *node.finalbody] if isinstance(node, ast.Try) else []
            run_statements([*node.body, *more], scope)
        case ast.Pass() | ast.Assert() | ast.Break() | ast.Continue() | ast.AnnAssign():
            pass
        case _:
            _forget([node], scope, NotKnown("set in a loop or a match", node.lineno))


def assign(target: ast.expr, value: Any, scope: Scope) -> None:
    """Set a name, an attribute, an item, or several of them."""
    if isinstance(target, ast.Name):
        scope.names[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = list(value) if isinstance(value, (list, tuple)) else [copied(value) for _ in target.elts]
        if len(parts) != len(target.elts):
            parts = [NotKnown("of several names at once", target.lineno)] * len(target.elts)
        for each, part in zip(target.elts, parts, strict=True):
            assign(each, part, scope)
    elif isinstance(target, (ast.Attribute, ast.Subscript)):
        owner = value_of(target.value, scope)
        if isinstance(target, ast.Attribute):
            key, done = target.attr, isinstance(owner, Made)
            if isinstance(owner, Made):
                owner.put(key, value)
        else:
            owner, key = plain(owner), value_of(target.slice, scope)
            done = isinstance(owner, (dict, list)) and isinstance(key, (str, int))
            try:
                if done:
                    owner[key] = value
            except (IndexError, TypeError):
                scope.reading.note(target.lineno, "an item", "set where there is none")
        if not done and not isinstance(owner, (Imported, Class)):
            scope.reading.note(target.lineno, ast.unparse(target)[:60], "set in what is not known here")


def _expression(node: ast.Expr, scope: Scope) -> None:
    """A call for its effect: what it does to an object is not known unless it is a function of the file."""
    value = value_of(node.value, scope)
    call_of = node.value
    if not isinstance(call_of, ast.Call):
        return
    # What is called is looked at once more, which is safe unless that calls something itself.
    again = not any(isinstance(each, ast.Call) for each in ast.walk(call_of.func))
    owner = value_of(call_of.func.value, scope) if again and isinstance(call_of.func, ast.Attribute) else None
    if isinstance(value, Made) and not (again and isinstance(value_of(call_of.func, scope), Function)):
        if holds_object([*value.args, *value.fields.values()]) or isinstance(owner, Made):
            name = value.name.rpartition(".")[2]
            scope.reading.note(node.lineno, f"{name}()", "stands in another file; not followed")
    elif isinstance(value, NotKnown) and isinstance(owner, (Made, NotKnown)):
        name = ast.unparse(call_of.func)[:60].rpartition(".")[2]
        scope.reading.note(node.lineno, f"{name}()", f"not followed: {value.why}")


def _condition(node: ast.If, scope: Scope) -> None:
    try:
        taken = node.body if truth(value_of(node.test, scope), node.lineno) else node.orelse
    except Unknown as unknown:
        for branch in (node.body, node.orelse):
            if not (branch and isinstance(branch[-1], ast.Raise)):
                _forget(branch, scope, NotKnown(f"it hangs on a condition: {unknown.value.why}", node.lineno))
        return
    run_statements(taken, scope)


def _forget(statements: Iterable[ast.stmt], scope: Scope, why: NotKnown) -> None:
    """Make everything unknown that statements would set, which may or may not be read."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            run_statements([statement], scope)
            continue
        for node in ast.walk(statement):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    assign(target, why, scope)
            elif isinstance(node, ast.Return):
                raise Returned(why)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)[:60].rpartition(".")[2]
                scope.reading.note(node.lineno, f"{called}()", f"may or may not be called: {why.why}")


def _imports(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    module = f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
    for each in node.names:
        if isinstance(node, ast.Import) and each.asname is None:
            first = each.name.partition(".")[0]
            scope.names[first] = Imported(first)
        else:
            known = scope.reading.constants.get(each.name) if module else None
            scope.names[each.asname or each.name] = Imported(f"{module}{each.name}") if known is None else known
