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
_DEEPEST, _LONGEST = 20, 10_000
"""Names that lead to names, where configurations have two or three; letters of a text that names are put into."""
_NUMBER = re.compile(r"-?\d{0,15}\.?\d{1,15}(e-?\d{1,2})?")
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("multiply", "mul"), operator.mul),
    **dict.fromkeys(("sum", "add"), operator.add),
    **dict.fromkeys(("divide", "div"), lambda one, other: one // other if other and one % other == 0 else one / other),
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
    return _value(item, root, path, 0) if isinstance(item, str) else item


def _value(text: Any, root: Any, path: tuple[str, ...], depth: int) -> Any:
    """What a text with names in it stands for; the text itself where one of them stands for nothing."""
    left = text
    while isinstance(left, str) and depth < _DEEPEST and (found := _INNERMOST.search(left)) is not None:
        value = _named(found[1].strip(), root, path, depth)
        open_name = isinstance(value, str) and "${" in value
        if value is None or isinstance(value, (Mapping, list)) or open_name or len(left) > _LONGEST:
            return text
        left = value if found[0] == left else left[: found.start()] + str(value) + left[found.end() :]
    return text if isinstance(left, str) and "${" in left else left


def _named(name: str, root: Any, path: tuple[str, ...], depth: int) -> Any:
    """What stands at a place of the file, or what a function makes of numbers; None for neither."""
    function, colon, arguments = name.partition(":")
    if colon:
        return _called(function.strip(), [each.strip() for each in arguments.split(",")])
    dots = len(name) - len(name.lstrip("."))
    parts = tuple(part for part in re.split(r"[.\[\]]", name) if part)
    place = (*path[: max(0, len(path) - dots)], *parts) if dots else parts
    found = _at(root, place)
    if found is None and not dots:  # a launcher's file stands below a key of its own, such as training
        found, place = _at(root, parts[1:]), parts[1:]
    return _value(found, root, place, depth + 1)


def _at(root: Any, place: tuple[str, ...]) -> Any:
    found = root if place else None
    for part in place:
        if isinstance(found, list):
            found = dict(enumerate(found)).get(int(part)) if part.isdecimal() else None
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _called(function: str, arguments: list[str]) -> Any:
    if function not in _FUNCTIONS or len(arguments) < 2 or not all(map(_NUMBER.fullmatch, arguments)):
        return None
    try:
        value = reduce(_FUNCTIONS[function], (int(each) if each.isdecimal() else float(each) for each in arguments))
    except (ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None
