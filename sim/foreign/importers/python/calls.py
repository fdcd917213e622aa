"""Calls in a Python text: of the file's own functions, which are followed; of a few of Python's own; of everything that
stands in another file, which stand for themselves with their arguments."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from typing import Any

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.expressions import LONGEST, plain, value_of
from sim.foreign.importers.python.values import Class, Function, Imported, Made, copied, nested

WRAPPERS = {"functools.partial", "nemo_run.Config", "nemo_run.Partial", "fiddle.Config", "fiddle.Partial"}
"""What makes a call to be done later: its first argument is what is called."""
COPIES = {"dataclasses.replace", "copy.copy", "copy.deepcopy", "typing.cast"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "tuple": tuple,
}  # fmt: skip
_PLAIN: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "abs": abs, "len": len, "min": min, "max": max,
    "round": round, "sum": sum,
}  # fmt: skip
_TEXTS = ("lower", "upper", "strip", "replace", "startswith", "endswith", "split", "removeprefix", "removesuffix")
_LISTS = ("append", "extend", "insert", "copy", "index")
_DICTS = ("get", "update", "copy", "keys", "values", "items", "pop", "setdefault")


def call(node: ast.Call, names: Any) -> Any:
    """What a call gives. `names` is the scope it stands in."""
    reading = names.reading
    if isinstance(node.func, ast.Attribute):
        base = value_of(node.func.value, names)
        if not isinstance(base, (Imported, Class)):
            args, fields = arguments_of(node, names)
            return _method(base, node.func.attr, args, fields, node, names)
    called = value_of(node.func, names)
    args, fields = arguments_of(node, names)
    if isinstance(called, Function):
        return reading.follow(called, args, fields, node.lineno)
    if isinstance(called, Class):
        return _instance(called, args, fields, node.lineno, names)
    if isinstance(called, Imported):
        return _imported(called, args, fields, node, names)
    return called if isinstance(called, NotKnown) else NotKnown("of a call", node.lineno)


def arguments_of(node: ast.Call, names: Any) -> tuple[list[Any], dict[str, Any]]:
    """(arguments without a name, arguments with one). What a mapping adds that is not known is `**`."""
    args: list[Any] = []
    fields: dict[str, Any] = {}
    for each in node.args:
        if isinstance(each, ast.Starred):
            more = value_of(each.value, names)
            args += more if isinstance(more, (list, tuple)) else [NotKnown("of a list of arguments", node.lineno)]
        else:
            args.append(value_of(each, names))
    for keyword in node.keywords:
        value = value_of(keyword.value, names)
        if keyword.arg is not None:
            fields[keyword.arg] = value
        elif isinstance(value, dict):
            fields |= {str(key): each for key, each in value.items()}
        else:
            fields["**"] = (
                plain(value) if isinstance(plain(value), NotKnown) else NotKnown("in another file", node.lineno)
            )
    return args, fields


def _imported(called: Imported, args: list[Any], fields: dict[str, Any], node: ast.Call, names: Any) -> Any:
    if called.name in WRAPPERS and args:
        return _deferred(args[0], args[1:], fields, node.lineno, names)
    if called.name in COPIES and args:
        source = plain(args[1] if called.last == "cast" and len(args) > 1 else args[0])
        made = source if called.last == "cast" else copied(source)
        if called.last == "replace" and isinstance(made, Made):
            for key, value in fields.items():
                made.put(key, value)
        return made
    if called.name in dir(builtins):
        return _builtin(called.name, args, fields, node)
    known = names.reading.known(called.name)
    if known is None:
        return Made(called.name, node.lineno, args, fields)
    return _of_library(called, known, args, fields, names.reading, node.lineno)


def _of_library(
    called: Imported, known: Mapping[str, Any], args: list[Any], fields: dict[str, Any], reading: Any, line: int
) -> Any:
    """What a function of another file gives, of which the framework's table tells."""
    for name, value in known.get("only", {}).items():
        if name in fields and fields[name] != value:
            return NotKnown(f"of {called.last}({name}=...), of which flopcast knows {name}={value!r} alone", line)
    if known.get("sets") and args and isinstance(args[0], Made) and not any(each is None for each in args):
        for key, value in known["sets"].items():
            args[0].put(key, value)
        return None
    if known.get("recipe"):
        reading.used.append((called.name, line))
    made = Made(called.name, line, [], nested(known.get("gives", {}), line))
    places = known.get("arguments", ())
    made.args = args[len(places) :]
    for key, value in [*zip(places, args, strict=False), *fields.items()]:
        made.fields[key] = value
    return made


def _deferred(what: Any, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Any:
    if isinstance(what, Class):
        return _instance(what, args, fields, line, names)
    if isinstance(what, (Imported, Function)):
        known = names.reading.known(what.name) or {}
        return Made(what.name, line, args, {**nested(known.get("gives", {}), line), **fields})
    return Made(what.name if isinstance(what, Made) else "", line, args, fields)


def _instance(made_by: Class, args: list[Any], fields: dict[str, Any], line: int, names: Any) -> Made:
    """An object of a class of the file: what it is given."""
    names.reading.note(line, f"{made_by.name}()", "what a class of the file sets by itself is not followed")
    return Made(made_by.name, line, args, fields)


def _builtin(name: str, args: list[Any], fields: dict[str, Any], node: ast.Call) -> Any:
    line = node.lineno
    known = [plain(each) for each in args]
    missing = next((each for each in known if isinstance(each, NotKnown)), None)
    if name in ("getattr", "hasattr") and len(args) > 1:
        return _looked_up(name, args[0], known, line)
    if name == "setattr" and len(args) == 3 and isinstance(args[0], Made) and isinstance(known[1], str):
        args[0].put(known[1], args[2])
        return None
    if missing is not None:
        return missing
    try:
        if name in _PLAIN and not fields:
            simple = all(isinstance(each, (int, float, str, bool, list, tuple, dict)) for each in known)
            return _PLAIN[name](*known) if simple and known else NotKnown(f"of {name}()", line)
        if name == "dict" and all(isinstance(each, dict) for each in known):
            return {key: value for each in [*known, fields] for key, value in each.items()}
        if name in ("list", "tuple", "set") and all(isinstance(each, (list, tuple, dict)) for each in known):
            items = list(known[0]) if known else []
            return tuple(items) if name == "tuple" else items
        if name == "isinstance" and len(known) == 2:
            return _of_type(known[0], known[1], line)
    except (TypeError, ValueError, OverflowError):
        return NotKnown(f"of {name}() of something else", line)
    return NotKnown(f"of {name}()", line)


def _looked_up(name: str, owner: Any, args: list[Any], line: int) -> Any:
    """getattr and hasattr, of what the file sets."""
    if isinstance(owner, Made) and str(args[1]) in owner.fields:
        return True if name == "hasattr" else owner.fields[str(args[1])]
    return NotKnown(f"another file says whether there is {args[1]!s:.40}", line)


def _of_type(value: Any, types: Any, line: int) -> Any:
    wanted = types if isinstance(types, tuple) else (types,)
    if not all(isinstance(each, Imported) and each.name in _TYPES for each in wanted):
        return NotKnown("of isinstance()", line)
    return any(isinstance(value, _TYPES[each.name]) for each in wanted)


def _method(base: Any, name: str, args: list[Any], fields: dict[str, Any], node: ast.Call, names: Any) -> Any:
    line = node.lineno
    if isinstance(base, Made):
        if base.last == "ArgumentParser":
            return _parser(base, name, args, fields, line)
        part = base.fields.get(name)
        if isinstance(part, Function):
            return names.reading.follow(part, args, fields, line)
        if base.blank:
            return NotKnown(f"of {name}() of what another file says", line)
        return Made(f"{base.name}.{name}", line, args or base.args, fields)
    if isinstance(base, str) and name in _TEXTS:
        known = all(isinstance(each, (str, tuple, int)) for each in args) and not fields
        return getattr(base, name)(*args) if known and len(base) <= LONGEST else NotKnown(f"of {name}()", line)
    allowed = _LISTS if isinstance(base, list) else _DICTS if isinstance(base, dict) else ()
    if name not in allowed or isinstance(base, NotKnown):
        return base if isinstance(base, NotKnown) else NotKnown(f"of {name}()", line)
    if len(base) > LONGEST:
        return NotKnown("of a long list", line)
    try:
        result = getattr(base, name)(*args, **fields)
    except (TypeError, ValueError, KeyError, IndexError):
        return NotKnown(f"of {name}() that fails", line)
    return list(result) if name in ("keys", "values", "items") else result


def _parser(parser: Made, name: str, args: list[Any], fields: dict[str, Any], line: int) -> Any:
    """argparse: what arguments hold where the command line gives none."""
    if name in ("parse_args", "parse_known_args"):
        parsed = Made("argparse.Namespace", line, [], dict(parser.fields.get("()", {})))
        return parsed if name == "parse_args" else (parsed, [])
    if name == "add_argument_group":
        return parser
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
