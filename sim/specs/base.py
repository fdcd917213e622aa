"""What all descriptions share: frozen pydantic records that speak human in files and SI in Python.

A field whose name ends in a unit (`memory_bytes`, `latency_s`) has a short name in files (`memory`, `latency`),
where the value carries the unit instead: `memory: 80 GB`. A bare number is accepted only under the long name,
so a file can never be wrong about its units in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sim.errors import SpecError, nearest, visible
from sim.specs.yaml12 import load_yaml
from sim.units import EXAMPLES, NOUNS, parse, parse_count, parse_whole

UNKNOWN_FIELDS = Path(__file__).parents[1] / "presets" / "unknown_fields.yaml"
"""Record -> the name in files of a field that it does not have -> what the message about it ends with."""


class Format(NamedTuple):
    """Numbers of few bits with scales.

    peak : the precision of the matrix units that multiply them, in a GPU's peaks.
    nbytes : of a number with its share of scales. [bytes]
    cast : that a kernel of its own reads and writes a number, where no other kernel casts in passing. [bytes]
    kernels : launches of one cast.
    norms_cast : a norm writes what comes after it in this format.
    """

    peak: str
    nbytes: float
    cast: float
    kernels: int
    norms_cast: bool = False


FORMATS: Mapping[str, Format] = {
    # Read, and written by rows and by columns.
    "fp8": Format("fp8", 1.0, 2 + 2 * 1.0, 1, norms_cast=True),
    "mxfp8": Format("fp8", 1.0 + 1 / 32, 2 + 2 * (1.0 + 1 / 32), 1, norms_cast=True),
    # Read for the largest magnitude, read again, written by rows and by columns.
    "nvfp4": Format("fp4", 0.5 + 1 / 16, 2 * 2 + 2 * (0.5 + 1 / 16), 2),
    "mxfp4": Format("fp4", 0.5 + 1 / 32, 2 + 2 * (0.5 + 1 / 32), 1),
}
"""fp8: one scale a tensor, or a block of 128. mxfp8 and mxfp4: one of 8 bits for 32 numbers (Rouhani et al. 2023,
arXiv:2310.10537). nvfp4: one of 8 bits for 16, which need the tensor's largest magnitude first, and a Hadamard
transform before the weights' gradient (NVIDIA 2025, arXiv:2509.25149, section 4)."""


STORED = {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), **{name: each.nbytes for name, each in FORMATS.items()}}
"""Bytes of a weight that only lies in memory in a format. nf4: 4 bits, an 8-bit scale for 64 weights, and an fp32 one
for 256 of those scales (Dettmers et al. 2023, arXiv:2305.14314, section 3: double quantization). [bytes]"""


# Longest first: `_bytes_per_s` must win over `_s`.
_SUFFIXES = ("bytes_per_s", "flop_per_s", "bytes", "flop", "w", "s")
_SMALLEST, _LARGEST, _LARGEST_COUNT = 1e-15, 1e30, 10**15
"""Limits of quantities (zero apart) and of whole numbers. Any "what if the network cost nothing" has room between them;
beyond them arithmetic ends in infinities."""

_REPR = 200
"""Letters of a record's repr."""


@cache
def unit_of(field_name: str) -> str | None:
    """The dimension a field's name ends in, or None."""
    return next((unit for unit in _SUFFIXES if field_name.endswith(f"_{unit}")), None)


@cache
def file_name(field_name: str) -> str:
    """The field's name in files: without its unit."""
    unit = unit_of(field_name)
    return field_name.removesuffix(f"_{unit}") if unit else field_name


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Data with other data laid over it, mapping by mapping; `memory` and `memory_bytes` are the same key."""
    merged = dict(base)
    for key, value in over.items():
        twin = next((k for k in merged if isinstance(k, str) and file_name(k) == file_name(str(key))), key)
        below = merged.pop(twin, None)
        if isinstance(value, Mapping) and ("preset" in value or "value" in value):
            below = None  # another preset, or a value with its source, not changes to what is there
        merged[key] = laid_over(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values below mappings by dotted path."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        found |= flat(value, here) if isinstance(value, Mapping) else {here: value}
    return found


def _quantity(value: Any, unit: str, key: str, bare_allowed: bool) -> Any:
    if isinstance(value, Mapping):
        return {inner: _quantity(item, unit, f"{key}.{inner}", bare_allowed) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quantity(item, unit, f"{key}.{place}", bare_allowed) for place, item in enumerate(value)]
    if isinstance(value, str):
        try:
            return _in_range(parse(value, unit), unit, key, value)
        except SpecError as error:
            raise ValueError(f"{key}: {error}") from None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not bare_allowed:
        raise ValueError(f"{key}: {_shown(value)} has no unit; write {NOUNS[unit]} such as {EXAMPLES[unit]}")
    return _in_range(value, unit, key, value)


def _in_range(number: Any, unit: str, key: str, written: Any) -> Any:
    """The number, if it is one that a machine could have; what is no number is left to the field's own rule."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number in (0, math.inf) or number != number:
        return number
    if _SMALLEST <= abs(number) <= _LARGEST:
        return number
    raise ValueError(
        f"{key} = {_shown(written)} is outside what {NOUNS[unit]} can be: {_SMALLEST:g} to {_LARGEST:g} in SI units"
    )


def _check_size(key: str, value: Any, is_text: bool) -> None:
    """Refuse numbers so large that arithmetic with them overflows."""
    if isinstance(value, bool):
        return
    digits = isinstance(value, str) and not is_text and value.strip().lstrip("+-").isdigit()
    if isinstance(value, int) or digits:
        too_large = len(value.strip()) > 16 if isinstance(value, str) else abs(value) > _LARGEST_COUNT
        if too_large:
            raise ValueError(f"{key} = {_shown(value)} is larger than any count here, {_LARGEST_COUNT:.0e}")
    elif isinstance(value, float) and _LARGEST < abs(value) < math.inf:
        raise ValueError(f"{key} = {_shown(value)} is larger than any number here, {_LARGEST:.0e}")


def _count(value: Any, field: _Field) -> Any:
    """A number that ends in a letter, such as 15T or 4k, where the field holds a number; any other value as it is."""
    written = value.strip() if isinstance(value, str) and field.number else ""
    if not (written[:1].isdigit() and written[-1:].isalpha()):
        return value
    try:
        return (parse_whole if field.number is int else parse_count)(value, field.short)
    except SpecError as error:
        raise ValueError(str(error)) from None


def _shown(value: Any) -> str:
    """A value for a message; of a vast number only how many digits it has."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * 0.30103)} digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} letters)"


class Spec(BaseModel):
    """A frozen, validated description. Build it from SI numbers in Python or from human text in YAML."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    FOLLOWS: ClassVar[Mapping[str, str | Callable[[Mapping[str, Any]], Any]]] = {}
    """Fields that follow from others where they are left out: from the field of this name, or by a rule over fields by
    name, which returns None where nothing follows. Zero stands for left out where a field is like another."""

    NAMES: ClassVar[tuple[str, ...]] = ()
    """Fields of several names, which one text may hold, as a command line does."""

    @model_validator(mode="before")
    @classmethod
    def _read_units(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields, follows = _fields(cls), cls.FOLLOWS
        read: dict[str, Any] = {}
        for key, value in data.items():
            field = fields.get(str(key))
            name = field.name if field else str(key)
            value = as_names(value) if name in cls.NAMES else value
            like_another = isinstance(follows.get(name), str)
            if name in follows and (value in (None, "", [], ()) or (like_another and value == 0)):
                continue
            if name in read:
                raise ValueError(f"{file_name(name)!r} is given twice (as {key!r} and {name!r}); keep one")
            if field is None:  # pydantic refuses it
                read[name] = value
                continue
            takes_both = bool in get_args(field.kind)  # and something else
            if not takes_both and (field.kind is bool) != isinstance(value, bool):
                remedy = "write true or false" if field.kind is bool else f"{str(value).lower()} is not a value for it"
                raise ValueError(f"{field.short} = {value!r}: {remedy}")
            if field.unit is None:
                _check_size(field.short, value, field.kind is str)
                read[name] = visible(value) if field.kind is str and isinstance(value, str) else _count(value, field)
            else:
                read[name] = _quantity(value, field.unit, str(key), bare_allowed=key == name)
        for name, rule in follows.items():
            value = None if name in read else _followed(rule, read)
            if value is not None:
                read[name] = value
        return read

    def mistakes(self) -> Iterator[str]:
        """Yield what breaks a rule between fields, with its remedy; the first is said."""
        yield from ()

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        for mistake in self.mistakes():
            raise ValueError(mistake)
        return self

    def __repr__(self) -> str:
        """One line: the fields that are not as by default, records in it by their names."""
        given = ((name, getattr(self, name)) for name, info in type(self).model_fields.items())
        parts = (
            f"{name}={getattr(value, 'name', value)!r}"
            for name, value in given
            if value != type(self).model_fields[name].default
        )
        text = f"{type(self).__name__}({', '.join(parts)})"
        return text if len(text) <= _REPR else f"{text[: _REPR - 2]}…)"

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    def read(cls, data: Any, where: str) -> Self:
        """Validate data as read from YAML, turning pydantic's report into one message a person can act on.

        where : what the message calls it: "plan", "gpu preset 'a100'".

        Raises SpecError: with one line per mistake.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError("\n".join(_explain(cls, where, item) for item in error.errors())) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again. Fields that were derived from others are derived anew."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).read({**given, **changes}, type(self).__name__)

    def model_post_init(self, context: Any, /) -> None:
        """Count fields whose value follows from the others' as left out (`model_fields_set`)."""
        follow = {name for name, rule in self.FOLLOWS.items() if getattr(self, name) == _followed(rule, vars(self))}
        self.model_fields_set.difference_update(follow)


def as_names(value: Any) -> Any:
    """Names of a file or a command line as a list: one text may hold several, between commas, pluses or blanks."""
    return tuple(each for each in re.split(r"[\s,+]+", value) if each) if isinstance(value, str) else value


def _followed(rule: str | Callable[[Mapping[str, Any]], Any], fields: Mapping[str, Any]) -> Any:
    """What follows by a rule of `Spec.FOLLOWS`."""
    return fields.get(rule) if isinstance(rule, str) else rule(fields)


class _Field(NamedTuple):
    """What reading a field takes: its names in Python and in files, its dimension, its type, and that of its number."""

    name: str
    short: str
    unit: str | None
    kind: Any
    number: type | None


@cache
def _fields(cls: type[Spec]) -> dict[str, _Field]:
    """A record's fields by either name."""
    found = [
        _Field(name, file_name(name), unit_of(name), info.annotation, number_kind(info.annotation))
        for name, info in cls.model_fields.items()
    ]
    return {key: field for field in found for key in (field.short, field.name)}


def number_kind(annotation: Any) -> type | None:
    """int or float where a field of this annotation holds one number, or one under each name."""
    if get_origin(annotation) is Annotated:
        return number_kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [number_kind(each) for each in get_args(annotation) if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else None
    if get_origin(annotation) is dict:
        return number_kind(get_args(annotation)[1])
    return annotation if annotation in (int, float) else None


def _explain(cls: type[Spec], where: str, item: Any) -> str:
    path = ".".join(file_name(str(part)) for part in item["loc"])
    place = f"{where}.{path}" if path else where
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        owner = cls
        for part in item["loc"][:-1]:
            field = owner.model_fields.get(str(part))
            owner = (record_in(field.annotation) if field else None) or owner  # else part is a key of a mapping
        names, name = {file_name(name) for name in owner.model_fields}, str(item["loc"][-1])
        remedy = load_yaml(UNKNOWN_FIELDS).get(owner.__name__, {}).get(file_name(name))
        if below := list(_places_below(owner, file_name(name))):
            remedy = f"write {' or '.join(below[:2])}"
        return f"{place}: unknown field {name!r}{f'; {remedy}' if remedy else nearest(name, names)}"
    if kind == "missing":
        return f"{place} is required and missing; add it (flopcast fields {path.rpartition('.')[2]} says what it is)"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{place} must be a mapping of fields, not {_shown(value)}"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "value_error":
        return f"{place}: {message}"
    if kind == "tuple_type":
        message = "should be a list"
    if kind == "literal_error" and repr(str(value)) in message:
        message = f"{message}; write it in quotes, {str(value)!r}"
    return f"{place} = {_shown(value)}: {message}"


def record_in(annotation: Any) -> type[Spec] | None:
    """The record that a field holds: itself, or as an option, or under names of one's own."""
    kinds = (annotation, *(() if get_origin(annotation) is tuple else get_args(annotation)))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, Spec)), None)


def _places_below(owner: type[Spec], wanted: str) -> Iterator[str]:
    """Yield the paths of fields of this name in records below `owner`; NAME stands for a name of one's own."""
    for name, field in owner.model_fields.items():
        record = record_in(field.annotation)
        if record is None:
            continue
        place = f"{file_name(name)}.NAME" if get_origin(field.annotation) is dict else file_name(name)
        if wanted in map(file_name, record.model_fields):
            yield f"{place}.{wanted}"
        yield from (f"{place}.{below}" for below in _places_below(record, wanted))


def divisor_near(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`, for remedies in messages; of vast numbers, among the smallest."""
    divisors = [d for d in range(1, min(math.isqrt(number), 100_000) + 1) if number % d == 0]
    divisors += [number // d for d in divisors]
    return min(divisors, key=lambda d: (abs(d - wanted), d))
