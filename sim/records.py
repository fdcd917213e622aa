"""`dataclass` for frozen records: the standard one's, but for functions that it would compile anew for every class.

The standard decorator compiles six functions for a frozen class. A short answer loads a hundred classes, and spent an
eighth of its time so. Here a class has one compiled function, `__init__`; comparing, hashing and showing are done by
functions that are not. What `dataclasses` offers (`fields`, `replace`, `asdict`) works as ever.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, **options):
        """Make a record of a frozen class; any other goes to `dataclasses.dataclass`."""
        decorate = _record if frozen else dataclasses.dataclass
        return decorate(cls, **options) if cls else lambda later: decorate(later, **options)


def _record(cls: Any, *, eq: bool = True, repr: bool = True, **options: Any) -> Any:
    own = {name for name, method in cls.__dict__.items() if method is not None}  # __hash__ is None beside an __eq__
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard decorator would look up a signature to say it
    made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, **options)
    fields = dataclasses.fields(made)
    compared = _getter(tuple(each.name for each in fields if each.compare))
    methods = {
        "__init__": _initializer(made, fields),
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
    }
    if "__slots__" in made.__dict__:
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    if repr:
        methods["__repr__"] = _shown
    if eq:
        methods["__eq__"] = _equality(made, compared)
        methods["__hash__"] = lambda self: hash(compared(self))
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _initializer(cls: Any, fields: tuple[Any, ...]) -> Any:
    """The function that sets the fields, the only one that has to be compiled."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_made": dataclasses.MISSING, "__name__": cls.__module__}
    plain: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    for each in fields:
        name, value = each.name, each.name
        if each.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = each.default_factory
            argument, value = f"{name}=_made", f"_make_{name}() if {name} is _made else {name}"
        elif each.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = each.default
            argument = f"{name}=_default_{name}"
        else:
            argument = name
        (keywords if each.kw_only else plain).append(argument)
        lines.append(f"\n _set(self, '{name}', {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("\n self.__post_init__()")
    given = ", ".join(["self", *plain, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({given}):{''.join(lines) or ' pass'}", names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {each.name: each.type for each in fields} | {"return": None}
    return made


def _getter(names: tuple[str, ...]) -> Any:
    """The function record -> the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equality(cls: Any, compared: Any) -> Any:
    def __eq__(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


@recursive_repr()
def _shown(self: Any) -> str:
    parts = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
