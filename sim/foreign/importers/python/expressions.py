"""Expressions of a Python text, worked out as far as the text says: literals, simple arithmetic, attributes, choices.

Nothing is executed: numbers, texts, lists and mappings are computed here, everything else stands for itself."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Protocol

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.python.values import Class, Function, Imported, Made

LARGEST = 10**30
LONGEST = 10_000
"""Of a number, and of a text or list, that comes of arithmetic."""


class Names(Protocol):
    """The names that an expression sees, and what it needs of the reading."""

    def lookup(self, name: str, line: int) -> Any:
        """What a name holds."""

    def call(self, node: ast.Call) -> Any:
        """What a call gives."""

    def within(self, values: dict[str, Any]) -> Names:
        """The same names, and some more."""

    def step(self, line: int) -> None:
        """Count one step."""


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: _same(left, right),
    ast.IsNot: lambda left, right: not _same(left, right),
}


def value_of(node: ast.expr, names: Names) -> Any:
    """What an expression gives; `NotKnown` where only running code knows."""
    names.step(node.lineno)
    work = _WORK.get(type(node))
    if work is None:
        return NotKnown(f"of {_called(node)}", node.lineno)
    return work(node, names)


def plain(value: Any) -> Any:
    """A value for arithmetic and comparison: an object of which nothing is known is not known."""
    return NotKnown("another file says it", value.line) if isinstance(value, Made) and value.blank else value


def unknown(*values: Any) -> NotKnown | None:
    """The first of several values that is not known, if any is."""
    return next((value for value in map(plain, values) if isinstance(value, NotKnown)), None)


def truth(value: Any, line: int) -> bool | NotKnown:
    """Whether a value counts as true."""
    value = plain(value)
    if isinstance(value, (NotKnown, Imported)):
        return value if isinstance(value, NotKnown) else NotKnown(f"{value.last} stands in another file", line)
    if isinstance(value, Made) and not value.sure:
        return NotKnown(f"{value.last}() stands in another file", value.line)
    return True if isinstance(value, (Made, Function, Class)) else bool(value)


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and isinstance(left, (Imported, bool)) and left == right)


def _name(node: ast.Name, names: Names) -> Any:
    return names.lookup(node.id, node.lineno)


def _attribute(node: ast.Attribute, names: Names) -> Any:
    base = value_of(node.value, names)
    if isinstance(base, Imported):
        return Imported(f"{base.name}.{node.attr}")
    if isinstance(base, Made):
        return base.part(node.attr, node.lineno)
    if isinstance(base, Class):
        return Imported(f"{base.name}.{node.attr}")
    return base if isinstance(base, NotKnown) else NotKnown(f"of the attribute {node.attr}", node.lineno)


def _binary(node: ast.BinOp, names: Names) -> Any:
    left, right = (plain(value_of(side, names)) for side in (node.left, node.right))
    missing = unknown(left, right)
    if missing is not None:
        return missing
    return _computed(_BINARY.get(type(node.op)), left, right, node)


def _computed(work: Callable[[Any, Any], Any] | None, left: Any, right: Any, node: ast.expr) -> Any:
    """Arithmetic within bounds: of numbers, and sums and repetitions of texts and lists."""
    sizes = [len(side) for side in (left, right) if isinstance(side, (str, list, tuple, dict))]
    times = next((side for side in (left, right) if isinstance(side, int)), 1)
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    formats = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and bool(sizes)
    if work is None or formats or (sizes and sum(sizes) * max(1, times) > LONGEST):
        return NotKnown(f"of {_called(node)}", node.lineno)
    if power and not (isinstance(right, (int, float)) and abs(right) <= 64 and abs(left) <= 10**6):
        return NotKnown("of a large power", node.lineno)
    try:
        result = work(left, right)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return NotKnown("of arithmetic that fails", node.lineno)
    large = isinstance(result, (int, float)) and not -LARGEST <= result <= LARGEST
    return NotKnown("of a number too large", node.lineno) if large else result


def _unary(node: ast.UnaryOp, names: Names) -> Any:
    value = plain(value_of(node.operand, names))
    if isinstance(node.op, ast.Not):
        holds = truth(value, node.lineno)
        return holds if isinstance(holds, NotKnown) else not holds
    if isinstance(value, (int, float)):
        return -value if isinstance(node.op, ast.USub) else value
    return value if isinstance(value, NotKnown) else NotKnown("of a sign", node.lineno)


def _either(node: ast.BoolOp, names: Names) -> Any:
    value: Any = None
    for each in node.values:
        value = value_of(each, names)
        holds = truth(value, node.lineno)
        if isinstance(holds, NotKnown):
            return holds
        if holds == isinstance(node.op, ast.Or):
            return value
    return value


def _compare(node: ast.Compare, names: Names) -> Any:
    left, result = plain(value_of(node.left, names)), True
    for sign, each in zip(node.ops, node.comparators, strict=True):
        right = plain(value_of(each, names))
        missing = unknown(left, right)
        if missing is not None or _incomparable(left, right, sign):
            return missing or NotKnown("of comparing what another file says", node.lineno)
        try:
            result = bool(_COMPARED[type(sign)](left, right))
        except TypeError:
            return NotKnown("of comparing what does not compare", node.lineno)
        if not result:
            return False
        left = right
    return result


def _incomparable(left: Any, right: Any, sign: ast.cmpop) -> bool:
    """Whether two values are of other files, so that nobody here can compare them."""
    if isinstance(sign, (ast.Is, ast.IsNot)):
        return any(isinstance(each, Made) and not each.sure for each in (left, right))
    outside = [isinstance(each, (Made, Imported)) for each in (left, right)]
    return any(outside) and not all(isinstance(each, Imported) for each in (left, right))


def _choice(node: ast.IfExp, names: Names) -> Any:
    holds = truth(value_of(node.test, names), node.lineno)
    if isinstance(holds, NotKnown):
        return holds
    return value_of(node.body if holds else node.orelse, names)


def _items(node: ast.List | ast.Tuple | ast.Set, names: Names) -> Any:
    items: list[Any] = []
    for each in node.elts:
        if not isinstance(each, ast.Starred):
            items.append(value_of(each, names))
            continue
        more = value_of(each.value, names)
        if not isinstance(more, (list, tuple)):
            return NotKnown("of a list within a list", node.lineno)
        items += more
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _mapping(node: ast.Dict, names: Names) -> Any:
    made: dict[Any, Any] = {}
    for key, each in zip(node.keys, node.values, strict=True):
        value = value_of(each, names)
        if key is None:
            value = plain(value)
            if not isinstance(value, dict):
                return value if isinstance(value, NotKnown) else NotKnown("of a mapping within", node.lineno)
            made |= value
            continue
        name = value_of(key, names)
        if not isinstance(name, (str, int, float, tuple, Imported)) or not _hashable(name):
            return NotKnown("of a key that is not known", node.lineno)
        made[name] = value
    return made


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _subscript(node: ast.Subscript, names: Names) -> Any:
    base, at = plain(value_of(node.value, names)), None
    if isinstance(base, Imported):  # a generic such as Optional[int]
        return base
    if not isinstance(node.slice, ast.Slice):
        at = plain(value_of(node.slice, names))
    missing = unknown(base, at)
    if missing is not None:
        return missing
    if at is not None and isinstance(base, (dict, list, tuple, str)) and _hashable(at):
        try:
            return base[at]
        except (KeyError, IndexError, TypeError):
            return NotKnown(f"of {at!r:.30}, which is not among what is there", node.lineno)
    return NotKnown("of a part", node.lineno)


def _comprehension(node: ast.ListComp | ast.GeneratorExp, names: Names) -> Any:
    """A list of one loop over what is known."""
    loop = node.generators[0]
    items = plain(value_of(loop.iter, names))
    if len(node.generators) > 1 or not isinstance(loop.target, ast.Name) or not isinstance(items, (list, tuple, dict)):
        return items if isinstance(items, NotKnown) else NotKnown("of a comprehension", node.lineno)
    made: list[Any] = []
    for item in list(items)[:LONGEST]:
        inner = names.within({loop.target.id: item})
        keeps = [truth(value_of(each, inner), node.lineno) for each in loop.ifs]
        missing = next((each for each in keeps if isinstance(each, NotKnown)), None)
        if missing is not None:
            return missing
        if all(keeps):
            made.append(value_of(node.elt, inner))
    return made


def _called(node: ast.AST) -> str:
    """What a kind of expression is called."""
    known = {"JoinedStr": "an f-string", "Lambda": "a lambda", "DictComp": "a comprehension", "Await": "await"}
    name = type(node).__name__
    return known.get(name, name)


_WORK: dict[type[ast.expr], Callable[[Any, Names], Any]] = {
    ast.Constant: lambda node, names: node.value,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _either,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.List: _items,
    ast.Tuple: _items,
    ast.Set: _items,
    ast.Dict: _mapping,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.Call: lambda node, names: names.call(node),
}
