"""Calls in a Python text: of the file's own functions, which are followed; of a few of Python's own; of everything that
stands in another file, which stand for themselves with their arguments. `names` is the scope that a call stands in."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from typing import Any

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.expressions import (
    FAILURES,
    LONGEST,
    Class,
    Function,
    Imported,
    Made,
    Unknown,
    copied,
    known,
    nested,
    plain,
    value_of,
)

WRAPPERS = {"functools.partial", "nemo_run.Config", "nemo_run.Partial", "fiddle.Config", "fiddle.Partial"}
"""What makes a call to be done later: its first argument is what is called."""
COPIES = {"dataclasses.replace", "copy.copy", "copy.deepcopy", "typing.cast"}
_SIMPLE = {int, float, str, bool, list, tuple, dict}
_PLAIN: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (int, float, str, bool, abs, len, min, max, round, sum)
}
_METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "replace", "startswith", "endswith", "split", "removeprefix", "removesuffix"),
    list: ("append", "extend", "insert", "copy", "index"),
    dict: ("get", "update", "copy", "keys", "values", "items", "pop", "setdefault"),
}


def call(node: ast.Call, names: Any) -> Any:
    """What a call gives."""
    line = node.lineno
    if isinstance(node.func, ast.Attribute):
        base = value_of(node.func.value, names)
        if not isinstance(base, (Imported, Class)):
            return _method(base, node.func.attr, *_arguments(node, names), line, names)
    called = value_of(node.func, names)
    args, fields = _arguments(node, names)
    if isinstance(called, Function):
        return names.reading.follow(called, args, fields, line)
    if isinstance(called, Class):
        return _instance(called, args, fields, line, names)
    if isinstance(called, Imported):
        return _imported(called, args, fields, line, names)
    return called if isinstance(called, NotKnown) else NotKnown("of a call", line)


def _arguments(node: ast.Call, names: Any) -> tuple[list[Any], dict[str, Any]]:
    """(arguments without a name, arguments with one). What a mapping adds that is not known is `**`."""
    args: list[Any] = []
    fields: dict[str, Any] = {}
    for each in node.args:
        starred = isinstance(each, ast.Starred)
        value = value_of(each.value if isinstance(each, ast.Starred) else each, names)
        if starred and not isinstance(value, (list, tuple)):
            value = [NotKnown("of a list of arguments", node.lineno)]
        args += value if starred else [value]
    for keyword in node.keywords:
        value = value_of(keyword.value, names)
        if keyword.arg is not None:
            fields[keyword.arg] = value
        elif isinstance(value, dict):
            fields |= {str(key): each for key, each in value.items()}
        else:
            value = plain(value)
            fields["**"] = value if isinstance(value, NotKnown) else NotKnown("in another file", node.lineno)
    return args, fields


def _imported(called: Imported, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Any:
    if called.name in WRAPPERS and args:
        return _deferred(args[0], args[1:], fields, line, names)
    if called.name in COPIES and args:
        if called.last == "cast":
            return plain(args[min(1, len(args) - 1)])
        made = copied(plain(args[0]))
        if called.last == "replace" and isinstance(made, Made):
            for key, value in fields.items():
                made.put(key, value)
        return made
    if called.name in dir(builtins):
        return _builtin(called.name, args, fields, line)
    of_table = names.reading.known(called.name)
    if of_table is None:
        return Made(called.name, line, args, fields)
    return _of_library(called, of_table, args, fields, names.reading, line)


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


def _deferred(what: Any, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Any:
    if isinstance(what, Class):
        return _instance(what, args, fields, line, names)
    if isinstance(what, (Imported, Function)):
        gives = (names.reading.known(what.name) or {}).get("gives", {})
        return Made(what.name, line, args, {**nested(gives, line), **fields})
    return Made(what.name if isinstance(what, Made) else "", line, args, fields)


def _instance(made_by: Class, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Made:
    """An object of a class of the file: what it is given."""
    names.reading.note(line, f"{made_by.name}()", "what a class of the file sets by itself is not followed")
    return Made(made_by.name, line, args, fields)


def _builtin(name: str, args: list[Any], fields: dict[str, Any], line: int) -> Any:
    if name in ("getattr", "hasattr") and len(args) > 1:
        return _looked_up(name, args[0], plain(args[1]), line)
    args = known(*args)
    if name == "isinstance" and len(args) == 2 and type(args[0]) in {*_SIMPLE, type(None)}:
        kind = getattr(builtins, args[1].name, None) if isinstance(args[1], Imported) else None
        if kind in _SIMPLE:
            return isinstance(args[0], kind)
    kinds = {type(each) for each in args}
    try:
        if name in _PLAIN and not fields and args and kinds <= _SIMPLE:
            return _PLAIN[name](*args)
        if name == "dict" and kinds <= {dict}:
            return {key: value for each in [*args, fields] for key, value in each.items()}
        if name in ("list", "tuple", "set") and kinds <= {list, tuple, dict}:
            return (tuple if name == "tuple" else list)(args[0] if args else ())
    except FAILURES:
        raise Unknown(f"of {name}() of something else", line) from None
    raise Unknown(f"of {name}()", line)


def _looked_up(name: str, owner: Any, part: Any, line: int) -> Any:
    """getattr and hasattr, of what the file sets."""
    if isinstance(owner, Made) and str(part) in owner.fields:
        return True if name == "hasattr" else owner.fields[str(part)]
    raise Unknown(f"another file says whether there is {part!s:.40}", line)


def _method(base: Any, name: str, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Any:
    if isinstance(base, Made):
        if base.last == "ArgumentParser":
            return _parser(base, name, args, fields, line)
        part = base.fields.get(name)
        if isinstance(part, Function):
            return names.reading.follow(part, args, fields, line)
        if base.blank:
            raise Unknown(f"of {name}() of what another file says", line)
        return Made(f"{base.name}.{name}", line, args or base.args, fields)
    if isinstance(base, NotKnown):
        return base
    if name not in _METHODS.get(type(base), ()) or len(base) > LONGEST:
        raise Unknown(f"of {name}()", line)
    if isinstance(base, str) and (fields or not all(isinstance(each, (str, tuple, int)) for each in args)):
        raise Unknown(f"of {name}()", line)
    try:
        result = getattr(base, name)(*args, **fields)
    except FAILURES:
        raise Unknown(f"of {name}() that fails", line) from None
    return list(result) if name in ("keys", "values", "items") else result


def _parser(parser: Made, name: str, args: list[Any], fields: dict[str, Any], line: int) -> Any:
    """argparse: what arguments hold where the command line gives none."""
    if name in ("parse_args", "parse_known_args"):
        parsed = Made("argparse.Namespace", line, [], dict(parser.fields.get("()", {})))
        return parsed if name == "parse_args" else (parsed, [])
    if name != "add_argument":
        return NotKnown(f"of {name}()", line)
    switches = [each for each in args if isinstance(each, str)]
    own = next((each for each in switches if each.startswith("--")), switches[0] if switches else "")
    own = fields.get("dest", own.lstrip("-").replace("-", "_"))
    switched = {"store_true": False, "store_false": True}.get(str(fields.get("action")))
    default = fields.get("default", switched)
    if fields.get("required") is True or (switches and not switches[0].startswith("-")):
        default = NotKnown(f"{own} is an argument of the command line", line)
    parser.fields.setdefault("()", {})[str(own)] = default
    return None
