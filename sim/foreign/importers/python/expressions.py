"""Expressions of a Python text, worked out as far as the text says: literals, simple arithmetic, attributes, choices.

Nothing is executed: numbers, texts, lists and mappings are computed here, everything else stands for itself.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.foreign.importers.keys import NotKnown
from sim.foreign.importers.sources import DEEPEST

CALLED = "()"
"""The setting that holds which class or function made an object: `optimizer.()` of `optimizer=Muon(lr=1)`."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Something of another file, or of Python itself, by its dotted name: `torch.bfloat16`."""

    name: str

    @property
    def last(self) -> str:
        """What it is called without its module."""
        return self.name.rpartition(".")[2]


@dataclass(eq=False, slots=True)
class Made:
    """An object: what a call of something that stands in another file gives, or of a class of this one.

    name : who made it; empty where it is a part of an object that another file fills.
    line : where.
    args : arguments without a name.
    fields : arguments with a name, and what was set later.
    parent : the object of which it will be a part once something is set in it, and under which name.
    """

    name: str
    line: int
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    parent: tuple[Made, str] | None = None

    @property
    def last(self) -> str:
        """Who made it, without module, and without the `.Config` of a class inside a class."""
        outer, _, last = self.name.rpartition(".")
        above = outer.rpartition(".")[2]
        return above if last == "Config" and above[:1].isupper() else last

    @property
    def sure(self) -> bool:
        """Whether it is an object for certain: functions of other files may give anything."""
        return self.last[:1].isupper()

    @property
    def blank(self) -> bool:
        """Whether nothing at all is known of it."""
        return not self.name and not self.fields and not self.args

    def part(self, name: str, line: int) -> Any:
        """An attribute; where another file would say, a part in which later lines may set something."""
        if name in self.fields:
            return self.fields[name]
        return Made("", line, parent=(self, name))

    def put(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self.fields[name] = value
        if self.parent is not None:
            (owner, own), self.parent = self.parent, None
            owner.put(own, self)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the file, and the names that it sees."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    names: Any

    @property
    def name(self) -> str:
        """What it is called."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the file, whose own fields are not followed."""

    name: str


class MadeBy(str):
    """The name of a function or class that made an object; the line, and the module it is of."""

    __slots__ = ("line", "module")
    line: int
    module: str


def settings_of(value: Any, depth: int = 0) -> Any:
    """A value as nested settings: objects as mappings, with `()` for who made them and 0, 1, ... for arguments without
    a name."""
    if depth > DEEPEST:
        return None
    if isinstance(value, Made):
        if value.blank:
            return NotKnown("another file says it", value.line)
        made: dict[str, Any] = {}
        if value.name:
            made[CALLED] = MadeBy(value.last)
            made[CALLED].line, made[CALLED].module = value.line, value.name.rpartition(".")[0]
        made |= {str(at): settings_of(each, depth + 1) for at, each in enumerate(value.args)}
        return made | {key: settings_of(each, depth + 1) for key, each in value.fields.items()}
    if isinstance(value, dict):
        return {str(key): settings_of(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings_of(each, depth + 1) for each in value]
    if isinstance(value, Imported):
        return value.last
    if isinstance(value, (Function, Class)):
        return value.name
    return value


def holds_object(value: Any, depth: int = 0) -> bool:
    """Whether a value is an object, or a list or mapping that holds one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, Made) or (depth < DEEPEST and any(holds_object(each, depth + 1) for each in parts))


def copied(value: Any, depth: int = 0) -> Any:
    """A value that shares no object, list or mapping with the one it was copied from."""
    if depth > DEEPEST:
        return value
    if isinstance(value, Made):
        fields = {key: copied(each, depth + 1) for key, each in value.fields.items()}
        return Made(value.name, value.line, copied(value.args, depth + 1), fields)
    if isinstance(value, dict):
        return {key: copied(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each, depth + 1) for each in value]
    return value


def nested(settings: Mapping[str, Any], line: int) -> dict[str, Any]:
    """Settings by dotted names as the fields of an object, with an object for each dot."""
    root = Made("", line)
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = root
        for part in parts:
            if part not in place.fields:
                place.fields[part] = Made("", line)
            place = place.fields[part]
        place.fields[last] = copied(value)
    return root.fields


LARGEST = 10**30
LONGEST = 10_000
"""Largest number, and longest text or list, that arithmetic may give."""
FAILURES = (TypeError, ValueError, ArithmeticError, LookupError)

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: _same(left, right), ast.IsNot: lambda left, right: not _same(left, right),
}  # fmt: skip
_NAMES = {
    "JoinedStr": "an f-string",
    "Lambda": "a lambda",
    "DictComp": "a comprehension",
    "GeneratorExp": "a comprehension",
    "Await": "await",
}
"""What messages call kinds of expressions."""


class Unknown(Exception):
    """An expression needs what only running code knows; `value_of` gives that for it."""

    def __init__(self, why: str | NotKnown, line: int = 0) -> None:
        super().__init__()
        self.value = why if isinstance(why, NotKnown) else NotKnown(why, line)


def value_of(node: ast.expr, scope: Any) -> Any:
    """What an expression gives in a scope; `NotKnown` where only running code knows."""
    scope.step(node.lineno)
    work = _WORK.get(type(node))
    try:
        if work is None:
            raise Unknown(f"of {_called(node)}", node.lineno)
        return work(node, scope)
    except Unknown as unknown:
        return unknown.value


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


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and isinstance(left, (Imported, bool)) and left == right)


def _attribute(node: ast.Attribute, scope: Any) -> Any:
    base = value_of(node.value, scope)
    if isinstance(base, (Imported, Class)):
        return Imported(f"{base.name}.{node.attr}")
    if isinstance(base, Made):
        return base.part(node.attr, node.lineno)
    return base if isinstance(base, NotKnown) else NotKnown(f"of the attribute {node.attr}", node.lineno)


def _binary(node: ast.BinOp, scope: Any) -> Any:
    """Arithmetic within bounds: of numbers, and sums and repetitions of texts and lists."""
    work, line = _BINARY.get(type(node.op)), node.lineno
    left, right = known(*[value_of(side, scope) for side in (node.left, node.right)])
    sizes = [len(side) for side in (left, right) if isinstance(side, (str, list, tuple, dict))]
    times = next((side for side in (left, right) if isinstance(side, int)), 1)
    formats = isinstance(node.op, ast.Mod) and bool(sizes)
    if work is None or formats or (sizes and sum(sizes) * max(1, times) > LONGEST):
        raise Unknown(f"of {_called(node)}", line)
    if isinstance(node.op, ast.Pow) and not (
        isinstance(right, (int, float)) and abs(right) <= 64 and abs(left) <= 10**6
    ):
        raise Unknown("of a large power", line)
    try:
        result = work(left, right)
    except FAILURES:
        raise Unknown("of arithmetic that fails", line) from None
    if isinstance(result, (int, float)) and not -LARGEST <= result <= LARGEST:
        raise Unknown("of a number too large", line)
    return result


def _unary(node: ast.UnaryOp, scope: Any) -> Any:
    value = value_of(node.operand, scope)
    if isinstance(node.op, ast.Not):
        return not truth(value, node.lineno)
    (value,) = known(value)
    if not isinstance(value, (int, float)):
        raise Unknown("of a sign", node.lineno)
    return -value if isinstance(node.op, ast.USub) else value


def _either(node: ast.BoolOp, scope: Any) -> Any:
    value: Any = None
    for each in node.values:
        value = value_of(each, scope)
        if truth(value, node.lineno) == isinstance(node.op, ast.Or):
            break
    return value


def _compare(node: ast.Compare, scope: Any) -> bool:
    left = value_of(node.left, scope)
    for sign, each in zip(node.ops, node.comparators, strict=True):
        left, right = known(left, value_of(each, scope))
        if _incomparable(left, right, sign):
            raise Unknown("of comparing what another file says", node.lineno)
        try:
            if not _COMPARED[type(sign)](left, right):
                return False
        except TypeError:
            raise Unknown("of comparing what does not compare", node.lineno) from None
        left = right
    return True


def _incomparable(left: Any, right: Any, sign: ast.cmpop) -> bool:
    """Whether two values are of other files, so that nobody here can compare them."""
    if isinstance(sign, (ast.Is, ast.IsNot)):
        return any(isinstance(each, Made) and not each.sure for each in (left, right))
    outside = [isinstance(each, (Made, Imported)) for each in (left, right)]
    return any(outside) and not all(isinstance(each, Imported) for each in (left, right))


def _items(node: ast.List | ast.Tuple | ast.Set, scope: Any) -> Any:
    if any(isinstance(each, ast.Starred) for each in node.elts):
        raise Unknown("of a list within a list", node.lineno)
    items = [value_of(each, scope) for each in node.elts]
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _each(node: ast.ListComp, scope: Any) -> list[Any]:
    """`[list(x) for x in y]`: one name, one list, no condition."""
    (loop, *more), line = node.generators, node.lineno
    over = value_of(loop.iter, scope)
    if more or loop.ifs or not isinstance(loop.target, ast.Name) or not isinstance(over, (list, tuple)):
        raise Unknown("of a comprehension", line)
    inner = scope.inner()
    items = []
    for each in over:
        inner.names[loop.target.id] = each
        items.append(value_of(node.elt, inner))
    return items


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
        if not isinstance(name, (str, int, float, tuple, Imported)) or not _hashable(name):
            raise Unknown("of a key that is not known", node.lineno)
        made[name] = value
    return made


def _hashable(value: Any) -> bool:
    return all(map(_hashable, value)) if isinstance(value, tuple) else not isinstance(value, (list, dict))


def _subscript(node: ast.Subscript, scope: Any) -> Any:
    base = plain(value_of(node.value, scope))
    if isinstance(base, Imported):  # a generic such as Optional[int]
        return base
    at = None if isinstance(node.slice, ast.Slice) else value_of(node.slice, scope)
    base, at = known(base, at)
    if at is None or not isinstance(base, (dict, list, tuple, str)) or not _hashable(at):
        raise Unknown("of a part", node.lineno)
    try:
        return base[at]
    except FAILURES:
        raise Unknown(f"of {at!r:.30}, which is not among what is there", node.lineno) from None


def _called(node: ast.AST) -> str:
    name = type(node).__name__
    return _NAMES.get(name, name)


_WORK: dict[type[ast.expr], Callable[[Any, Any], Any]] = {
    ast.Constant: lambda node, scope: node.value,
    ast.Name: lambda node, scope: scope.lookup(node.id),
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _either,
    ast.Compare: _compare,
    ast.IfExp: lambda node, scope: value_of(
        node.body if truth(value_of(node.test, scope), node.lineno) else node.orelse, scope
    ),
    ast.List: _items,
    ast.Tuple: _items,
    ast.Set: _items,
    ast.ListComp: _each,
    ast.Dict: _mapping,
    ast.Subscript: _subscript,
    ast.Call: lambda node, scope: scope.call(node),
}
