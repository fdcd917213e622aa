"""Expressions of a Python text, worked out as far as the text says: literals, arithmetic, attributes, choices, calls.

Nothing is executed: numbers, texts, lists and mappings are computed here. The file's own functions are followed, and
everything that stands in another file stands for itself, with its arguments. `scope` is where an expression stands.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.values import Class, Function, Imported, Made, copied, nested
from sim.specs.framework_plans import OPERATIONS

LARGEST = 10**30
LONGEST = 10_000
"""Largest number, and longest text or list, that arithmetic may give."""
FAILURES = (TypeError, ValueError, ArithmeticError, LookupError)
WRAPPERS = {"functools.partial", "nemo_run.Config", "nemo_run.Partial", "fiddle.Config", "fiddle.Partial"}
"""What makes a call to be done later: its first argument is what is called."""
COPIES = {"dataclasses.replace", "copy.copy", "copy.deepcopy"}

_SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    **OPERATIONS, ast.Pow: operator.pow, ast.BitOr: operator.or_,
    ast.Is: lambda left, right: _same(left, right), ast.IsNot: lambda left, right: not _same(left, right),
}  # fmt: skip
_NAMES = {"JoinedStr": "an f-string", "Lambda": "a lambda"}
"""What messages call kinds of expressions."""
_SIMPLE = {int, float, str, bool, list, tuple, dict}
_PLAIN: dict[str, Callable[..., Any]] = {each.__name__: each for each in (int, float, str, bool, len, min, max)}
_METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "replace", "startswith", "endswith"),
    list: ("append", "extend", "copy"),
    dict: ("get", "update", "copy", "keys", "values", "items", "pop"),
}


class Unknown(Exception):
    """An expression needs what only running code knows; `value_of` gives that for it."""

    def __init__(self, why: str | NotKnown, line: int = 0) -> None:
        super().__init__()
        self.value = why if isinstance(why, NotKnown) else NotKnown(why, line)


def value_of(node: ast.expr, scope: Any) -> Any:
    """What an expression gives in a scope; `NotKnown` where only running code knows."""
    scope.step(node.lineno)
    try:
        return _value(node, scope, node.lineno)
    except Unknown as unknown:
        return unknown.value


def _value(node: ast.expr, scope: Any, line: int) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return scope.lookup(name)
        case ast.Attribute(owner, name):
            return _attribute(value_of(owner, scope), name, line)
        case ast.BinOp(left, sign, right):
            one, another = known(value_of(left, scope), value_of(right, scope))
            return _reckoned(sign, one, another, line)
        case ast.UnaryOp(ast.Not(), inner):
            return not truth(value_of(inner, scope), line)
        case ast.UnaryOp(ast.USub(), inner):
            return _reckoned(ast.Sub(), 0, known(value_of(inner, scope))[0], line)
        case ast.BoolOp(sign, parts):
            for part in parts:
                value = value_of(part, scope)
                if truth(value, line) == isinstance(sign, ast.Or):
                    break
            return value
        case ast.Compare(left, signs, others):
            return _compared(value_of(left, scope), signs, others, scope, line)
        case ast.IfExp(test, then, other):
            return value_of(then if truth(value_of(test, scope), line) else other, scope)
        case ast.List(parts) | ast.Tuple(parts):
            if any(isinstance(part, ast.Starred) for part in parts):
                raise Unknown("of a list within a list", line)
            return (tuple if isinstance(node, ast.Tuple) else list)(value_of(part, scope) for part in parts)
        case ast.ListComp(part, [ast.comprehension(ast.Name(name), over, [])]):
            items = known(value_of(over, scope))[0]
            if isinstance(items, (list, tuple)):
                return [value_of(part, scope.inner(name, each)) for each in items]
        case ast.Dict():
            return _mapping(node, scope)
        case ast.Subscript(owner, at):
            return _part(plain(value_of(owner, scope)), at, scope, line)
        case ast.Call():
            return _call(node, scope, line)
    raise Unknown(f"of {_called(node)}", line)


def plain(value: Any) -> Any:
    """A value for arithmetic and comparison: an object of which nothing is known is not known."""
    return NotKnown("another file says it", value.line) if isinstance(value, Made) and value.blank else value


def known(*values: Any) -> list[Any]:
    """Values for arithmetic and comparison. Raises Unknown: one of them is not known."""
    found = [plain(value) for value in values]
    missing = next((value for value in found if isinstance(value, NotKnown)), None)
    if missing is not None:
        raise Unknown(missing)
    return found


def truth(value: Any, line: int) -> bool:
    """Whether a value counts as true. Raises Unknown: only running code knows."""
    (value,) = known(value)
    if isinstance(value, Imported):
        raise Unknown(f"{value.last} stands in another file", line)
    if isinstance(value, Made) and not value.sure:
        raise Unknown(f"{value.last}() stands in another file", value.line)
    return True if isinstance(value, (Made, Function, Class)) else bool(value)


def _called(node: ast.AST) -> str:
    name = type(node).__name__
    return "a comprehension" if name.endswith(("Comp", "GeneratorExp")) else _NAMES.get(name, name)


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and isinstance(left, (Imported, bool)) and left == right)


def _attribute(base: Any, name: str, line: int) -> Any:
    if isinstance(base, (Imported, Class)):
        return Imported(f"{base.name}.{name}")
    if isinstance(base, Made):
        return base.part(name, line)
    return base if isinstance(base, NotKnown) else NotKnown(f"of the attribute {name}", line)


def _tried(why: str, line: int, work: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """What a function of Python's makes of plain values. Raises Unknown: it fails."""
    try:
        return work(*args, **fields)
    except FAILURES:
        raise Unknown(why, line) from None


def _reckoned(sign: ast.operator, left: Any, right: Any, line: int) -> Any:
    """Arithmetic within bounds: of numbers, and sums and repetitions of texts and lists."""
    work, sizes = _SIGNS.get(type(sign)), [len(side) for side in (left, right) if isinstance(side, (str, list, tuple))]
    times = next((side for side in (left, right) if isinstance(side, int)), 1)
    formats = isinstance(sign, ast.Mod) and bool(sizes)
    if work is None or formats or (sizes and sum(sizes) * max(1, times) > LONGEST):
        raise Unknown("of BinOp", line)
    fails = "of arithmetic that fails"
    if isinstance(sign, ast.Pow) and _tried(fails, line, lambda: abs(right) > 64 or abs(left) > 10**6):
        raise Unknown("of a large power", line)
    result = _tried(fails, line, work, left, right)
    if isinstance(result, (int, float)) and not -LARGEST <= result <= LARGEST:
        raise Unknown("of a number too large", line)
    return result


def _compared(left: Any, signs: Sequence[ast.cmpop], others: Sequence[ast.expr], scope: Any, line: int) -> bool:
    for sign, each in zip(signs, others, strict=True):
        left, right = known(left, value_of(each, scope))
        if isinstance(sign, (ast.Is, ast.IsNot)):
            elsewhere = any(isinstance(side, Made) and not side.sure for side in (left, right))
        else:
            elsewhere = isinstance(left, (Made, Imported)) or isinstance(right, (Made, Imported))
            elsewhere = elsewhere and not (isinstance(left, Imported) and isinstance(right, Imported))
        if elsewhere:
            raise Unknown("of comparing what another file says", line)
        if not _tried("of comparing what does not compare", line, _SIGNS[type(sign)], left, right):
            return False
        left = right
    return True


def _mapping(node: ast.Dict, scope: Any) -> Any:
    made: dict[Any, Any] = {}
    for key, each in zip(node.keys, node.values, strict=True):
        value = value_of(each, scope)
        if key is None:
            (value,) = known(value)
            if not isinstance(value, dict):
                raise Unknown("of a mapping within", node.lineno)
            made |= value
            continue
        name = value_of(key, scope)
        if not _is_key(name):
            raise Unknown("of a key that is not known", node.lineno)
        made[name] = value
    return made


def _is_key(value: Any) -> bool:
    return (
        all(map(_is_key, value))
        if isinstance(value, tuple)
        else isinstance(value, (str, int, float, Imported, NoneType))
    )


def _part(base: Any, place: ast.expr, scope: Any, line: int) -> Any:
    if isinstance(base, Imported):  # a generic such as Optional[int]
        return base
    base, at = known(base, None if isinstance(place, ast.Slice) else value_of(place, scope))
    if not isinstance(base, (dict, list, tuple, str)) or at is None or not _is_key(at):
        raise Unknown("of a part", line)
    return _tried(f"of {at!r:.30}, which is not among what is there", line, operator.getitem, base, at)


def _call(node: ast.Call, scope: Any, line: int) -> Any:
    """What a call gives."""
    if isinstance(node.func, ast.Attribute):
        base = value_of(node.func.value, scope)
        if not isinstance(base, (Imported, Class)):
            return _method(base, node.func.attr, *_arguments(node, scope), line, scope)
    called = value_of(node.func, scope)
    args, fields = _arguments(node, scope)
    if isinstance(called, Function):
        return scope.reading.follow(called, args, fields, line)
    if isinstance(called, Imported):
        return _imported(called, args, fields, line, scope.reading)
    if isinstance(called, Class):
        return _deferred(called, args, fields, line, scope.reading)
    return called if isinstance(called, NotKnown) else NotKnown("of a call", line)


def _arguments(node: ast.Call, scope: Any) -> tuple[list[Any], dict[str, Any]]:
    """(arguments without a name, arguments with one). What a mapping adds that is not known is `**`."""
    args: list[Any] = []
    fields: dict[str, Any] = {}
    for each in node.args:
        starred = isinstance(each, ast.Starred)
        value = value_of(each.value if isinstance(each, ast.Starred) else each, scope)
        if starred and not isinstance(value, (list, tuple)):
            value = [NotKnown("of a list of arguments", node.lineno)]
        args += value if starred else [value]
    for keyword in node.keywords:
        value = value_of(keyword.value, scope)
        if keyword.arg is not None:
            fields[keyword.arg] = value
        elif isinstance(value, dict):
            fields |= {str(key): each for key, each in value.items()}
        else:
            value = plain(value)
            fields["**"] = value if isinstance(value, NotKnown) else NotKnown("in another file", node.lineno)
    return args, fields


def _imported(called: Imported, args: list[Any], fields: dict[str, Any], line: int, reading: Any) -> Any:
    if called.name in WRAPPERS and args:
        return _deferred(args[0], args[1:], fields, line, reading)
    if called.name in COPIES and args:
        made = copied(plain(args[0]))
        if called.last == "replace" and isinstance(made, Made):
            for key, value in fields.items():
                made.put(key, value)
        return made
    if called.name in dir(builtins):
        return _builtin(called.name, args, fields, line)
    of_table = reading.known(called.name)
    if of_table is None:
        return Made(called.name, line, args, fields)
    return _of_library(called, of_table, args, fields, reading, line)


def _of_library(
    called: Imported, table: Mapping[str, Any], args: list[Any], fields: dict[str, Any], reading: Any, line: int
) -> Any:
    """What a function of another file gives, of which the framework's table tells."""
    for name, value in table.get("only", {}).items():
        if name in fields and fields[name] != value:
            reading.refused = NotKnown(f"flopcast knows {called.last}() with {name}={value!r} alone", line)
            return reading.refused
    if table.get("sets") and args and isinstance(args[0], Made) and not any(each is None for each in args):
        for key, value in table["sets"].items():
            args[0].put(key, value)
        return None
    gives, laid = dict(table.get("gives", {})), set[str]()
    if table.get("recipe"):
        reading.used.append((called.name, line))
        laid = {path for path in gives if path.rpartition(".")[2] in fields}
        gives |= {path: fields[path.rpartition(".")[2]] for path in laid}
    made = Made(called.name, line, [], nested(gives, line))
    places = table.get("arguments", ())
    made.args = args[len(places) :]
    for key, value in [*zip(places, args, strict=False), *fields.items()]:
        if not any(path.endswith(f".{key}") for path in laid):
            made.fields[key] = value
    return made


def _deferred(what: Any, args: list[Any], fields: dict[str, Any], line: int, reading: Any) -> Any:
    """An object of a class of the file, as what it is given; or what a call that is done later will give."""
    if isinstance(what, Class):
        reading.note(line, f"{what.name}()", "what a class of the file sets by itself is not followed")
    of_table = reading.known(what.name) if isinstance(what, (Imported, Function)) else None
    gives = (of_table or {}).get("gives", {})
    name = what.name if isinstance(what, (Class, Imported, Function, Made)) else ""
    return Made(name, line, args, {**nested(gives, line), **fields})


def _builtin(name: str, args: list[Any], fields: dict[str, Any], line: int) -> Any:
    if name in ("getattr", "hasattr") and len(args) > 1:
        owner, part = args[0], str(plain(args[1]))
        if isinstance(owner, Made) and part in owner.fields:
            return True if name == "hasattr" else owner.fields[part]
        raise Unknown(f"another file says whether there is {part:.40}", line)
    args = known(*args)
    kinds, why = {type(each) for each in args}, f"of {name}() of something else"
    if (
        name == "isinstance"
        and len(args) == 2
        and isinstance(args[1], Imported)
        and type(args[0]) in (*_SIMPLE, NoneType)
    ):
        meant = {each.__name__: each for each in _SIMPLE}
        return isinstance(args[0], _tried(why, line, meant.__getitem__, args[1].name))
    if name in _PLAIN and not fields and args and kinds <= _SIMPLE:
        return _tried(why, line, _PLAIN[name], *args)
    if name == "dict" and kinds <= {dict}:
        return {key: value for each in [*args, fields] for key, value in each.items()}
    if name in ("list", "tuple") and kinds <= {list, tuple, dict}:
        return (tuple if name == "tuple" else list)(args[0] if args else ())
    raise Unknown(f"of {name}()", line)


def _method(base: Any, name: str, args: list[Any], fields: dict[str, Any], line: int, scope: Any) -> Any:
    if isinstance(base, Made):
        part = base.fields.get(name)
        if isinstance(part, Function):
            return scope.reading.follow(part, args, fields, line)
        if base.blank:
            raise Unknown(f"of {name}() of what another file says", line)
        return Made(f"{base.name}.{name}", line, args or base.args, fields)
    if isinstance(base, NotKnown):
        return base
    of_text = isinstance(base, str) and (fields or not all(isinstance(each, (str, tuple, int)) for each in args))
    if name not in _METHODS.get(type(base), ()) or len(base) > LONGEST or of_text:
        raise Unknown(f"of {name}()", line)
    result = _tried(f"of {name}() that fails", line, getattr(base, name), *args, **fields)
    return list(result) if name in ("keys", "values", "items") else result
