"""Values that name others of the same file, as OmegaConf writes them: `${model.hidden_size}`, `${.hidden_size}`,
`${multiply:4, ${.hidden_size}}`. What names nothing in the file, such as `${data_dir}`, is left as it stands."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

_INNERMOST = re.compile(r"\$\{([^${}]{1,500})\}")
_DEEPEST = 20
"""Names that lead to names; configurations have two or three."""
_LONGEST = 10_000
"""Letters of a text that names are put into."""


def _divided(one: Any, other: Any) -> Any:
    """One over the other; a whole number where it comes out."""
    return one // other if other and not one % other else one / other


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": operator.mul,
    "mul": operator.mul,
    "sum": operator.add,
    "add": operator.add,
    "divide": _divided,
    "div": _divided,
    "int_div": operator.floordiv,
    "max": max,
    "min": min,
}
"""Resolvers that frameworks register (NeMo's multiply, sum, divide, int_div), by their names."""


def resolved(data: Any) -> Any:
    """The data, with every name replaced by what it stands for in them."""
    return _walk(data, data, ()) if isinstance(data, Mapping) else data


def _walk(item: Any, root: Any, path: tuple[str, ...]) -> Any:
    if isinstance(item, Mapping):
        return {key: _walk(value, root, (*path, str(key))) for key, value in item.items()}
    if isinstance(item, list):
        return [_walk(value, root, (*path, str(place))) for place, value in enumerate(item)]
    return _value(item, root, path, 0) if isinstance(item, str) and "${" in item else item


def _value(text: str, root: Any, path: tuple[str, ...], depth: int) -> Any:
    """What a text with names in it stands for; the text itself where one of them stands for nothing."""
    left = text
    while depth < _DEEPEST and (found := _INNERMOST.search(left)) is not None:
        value = _named(found[1].strip(), root, path, depth)
        if value is None or isinstance(value, (Mapping, list)) or (isinstance(value, str) and "${" in value):
            return text
        if found[0] == left:
            return value
        left = left[: found.start()] + str(value) + left[found.end() :]
        if len(left) > _LONGEST:
            return text
    return left if "${" not in left else text


def _named(name: str, root: Any, path: tuple[str, ...], depth: int) -> Any:
    """What stands at a place of the file, or what a function makes of numbers; None for neither."""
    function, colon, arguments = name.partition(":")
    if colon:
        return _called(function.strip(), arguments)
    dots = len(name) - len(name.lstrip("."))
    parts = tuple(part for part in re.split(r"[.\[\]]", name) if part)
    place = (*path[: max(0, len(path) - dots)], *parts) if dots else parts
    found = _at(root, place)
    if found is None and not dots:  # a launcher's file stands below a key of its own, such as training
        found, place = _at(root, parts[1:]), parts[1:]
    return _value(found, root, place, depth + 1) if isinstance(found, str) and "${" in found else found


def _at(root: Any, place: tuple[str, ...]) -> Any:
    for part in place:
        if isinstance(root, list) and part.isdecimal() and int(part) < len(root):
            root = root[int(part)]
        elif isinstance(root, Mapping):
            root = root.get(part)
        else:
            return None
    return root if place else None


def _called(function: str, arguments: str) -> Any:
    numbers = [_number(each.strip()) for each in arguments.split(",")]
    known = [number for number in numbers if number is not None]
    if function not in _FUNCTIONS or len(known) < len(numbers) or len(known) < 2:
        return None
    try:
        value = reduce(_FUNCTIONS[function], known)
    except (ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _number(text: str) -> int | float | None:
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{0,15}\.?\d{1,15}(e-?\d{1,2})?", text) else None
