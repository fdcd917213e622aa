"""Options made from the parameters of a command, a record or a function, with what its docstring says of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer import Argument, Option

from sim.commands.options import COMMON, COMPLETED, TARGETS, Answer, check_target
from sim.specs import Scenario, load_scenario
from sim.specs.base import file_name, unit_of
from sim.units import parse, parse_count, show_bare

Read = Callable[[str, str], Any]
"""(words, name of the option) -> the value."""
Make = Callable[[dict[str, Any]], Any]
"""What was given by name -> the value of one parameter."""
_FIELD = re.compile(r"^(\w+(?:, \w+)*) : (.*(?:\n +.*)*)", re.MULTILINE)
_OPTION = re.compile(r"^(\w+)((?: [^\s:]+)*) : (.*(?:\n +.*)*)", re.MULTILINE)
_END = re.compile(r"(?<!\.)\.(?=\s|$)")
"""The end of a sentence, not the last of three dots."""


class Opt:
    """How an option differs from the parameter that it fills.

    flags : as typer has them, `--on/--off`. Default: the parameter's name, without its unit.
    read : what makes the value of the words. Default: the parameter's unit says.
    default : where the parameter has none, as it would be typed.
    look : of typer's `Option`, such as `help` where the docstring's first sentence does not suit.
    """

    def __init__(self, flags: str = "", read: Read | None = None, default: Any = None, **look: Any) -> None:
        self.flags, self.read, self.default, self.look = flags, read, default, look


COUNT = Opt(read=parse_count)
"""A large number, such as 15T."""


class Fills:
    """The options of a record or a function: all its parameters but those in `leave`.

    `run: Annotated[partial[Terms], Fills(Terms, "failures")]` gives a command an option for every other field of
    `Terms`, and `run(failures=...)` is the record.
    """

    def __init__(self, whose: Callable[..., Any], *leave: str, **differing: Opt | str) -> None:
        self.whose = whose
        self.options: dict[str, tuple[Parameter, Read | None]] = {}
        self.own: dict[str, Any] = {}  # words of defaults that the record has by itself
        hints, says = get_type_hints(whose), said_of(whose)
        for name, each in signature(whose).parameters.items():
            if name not in leave:
                given = differing.get(name, "")
                option = Opt(given) if isinstance(given, str) else given
                self.options[name] = made, _ = _option(each, hints[name], option, says.get(name, ""))
                if each.default is not Parameter.empty:
                    self.own[name] = made.default

    @property
    def parameters(self) -> list[Parameter]:
        """The options as parameters of a command."""
        return [parameter for parameter, _ in self.options.values()]

    def filled(self, given: dict[str, Any]) -> partial[Any]:
        """The record, or the function, with its options taken from what was given; what is not given is left out."""
        found = {}
        for name, (parameter, read) in self.options.items():
            value = given.get(parameter.name)
            if read is None and value is not None:
                found[name] = value
            elif read is not None and value not in (None, self.own.get(name)):
                found[name] = read(value, parameter.name)
        return partial(self.whose, **found)


def _option(each: Parameter, hint: Any, option: Opt, says: str) -> tuple[Parameter, Read | None]:
    """A parameter as an option of a command, and what makes its value of words."""
    unit, own = unit_of(each.name), None if each.default is Parameter.empty else each.default
    read = option.read or ((lambda words, _: parse(words, unit)) if unit else None)
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    kind = kinds[0] if kinds[0] in (bool, int, float, Path) and read is None else str
    if get_origin(hint) is Sequence and read is None:
        kind, own = list[str], None
    default = option.default if option.default is not None else own
    if isinstance(option.look.get("show_default"), str):  # whether it was given is for the command to know
        default = None
    if read is not None and isinstance(default, float):
        default = show_bare(default, unit) if unit else f"{default:g}"
    flags = option.flags or f"--{file_name(each.name).replace('_', '-')}"
    name = flags.partition("/")[0].lstrip("-").replace("-", "_")
    look = {
        "help": says,
        "show_default": default is not None,
        "autocompletion": COMPLETED.get(each.name),
        **option.look,
    }
    typed: Any = kind | None if default is None else kind
    annotation = Annotated[typed, Option(*flags.split(" "), **look)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation), read


def said_of(whose: Callable[..., Any]) -> dict[str, str]:
    """The first sentence of a docstring about each field or parameter."""
    found: dict[str, str] = {}
    for each in reversed(whose.__mro__) if isinstance(whose, type) else [whose]:
        doc = cleandoc(each.__doc__ or "")
        typed = "Parameters\n----" in doc
        for names, words in _FIELD.findall(doc):
            text = " ".join((words.partition("\n")[2] if typed else words).split())
            unit = ", in tokens" if text.endswith("[tokens]") else ""
            text = re.sub(r"\s*\[[^]]+\]$", "", _END.split(text)[0]) + unit
            found |= {name: f"{text[:1].upper()}{text[1:]}." for name in names.split(", ") if text}
    return found


def asked(scenario: Path, *, overrides: Sequence[str] = (), profile: str | None = None) -> Scenario:
    """The scenario that a verb's three options name."""
    return load_scenario(scenario, overrides, profile)


def with_records(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as typer reads it, whose parameters are explained by its docstring, or stand for several options.

    `nodes --nodes N : How many nodes.` in the docstring makes an option of `nodes`, or an argument where it stands
    before the star; flags and the word for its value may be left out, and all of it if it is in `COMMON`. Several
    options come from a dataclass of options, from what is annotated with `Fills`, and from `Scenario`: they take the
    place of `run` in `def train(*, run: Annotated[partial[Terms], Fills(Terms)])`, which is a function that makes the
    record. A command that returns an `Answer` has --json as well, and files that it is to write are checked first.
    """
    parameters, arguments = options_of(command)
    if answers := get_type_hints(command).get("return") is Answer:
        hint = Annotated[bool, _explained("as_json", False, _said(COMMON)["as_json"])]
        parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=hint))

    @wraps(command)
    def run(**given: Any) -> Any:
        if not answers:
            return command(**arguments(given))
        for name, endings in TARGETS.items():
            if given.get(name) is not None:
                check_target(given[name], endings)
        return command(**arguments(given)).tell(given["as_json"], given.get("figure"))

    del run.__wrapped__  # whoever asks for the annotations is to see the options
    run.__doc__ = _OPTION.sub("", cleandoc(command.__doc__ or "")).strip()
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def options_of(target: Callable[..., Any]) -> tuple[list[Parameter], Make]:
    """The options of a command or of a dataclass of options, and what makes its arguments of what was given."""
    hints, says = get_type_hints(target, include_extras=True), _said(COMMON, cleandoc(target.__doc__ or ""))
    parameters: list[Parameter] = []
    made: dict[str, Make] = {}
    for each in signature(target).parameters.values():
        name, hint = each.name, hints[each.name]
        fills = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Fills)), None)
        if fills is not None:
            parameters += fills.parameters
            made[name] = fills.filled
        elif hint is Scenario or is_dataclass(hint):
            record: Callable[..., Any] = asked if hint is Scenario else hint  # type: ignore[assignment]
            inner, arguments = options_of(record)
            parameters += inner
            made[name] = partial(lambda record, make, given: record(**make(given)), record, arguments)
        else:
            several = get_origin(hint) is Sequence
            kind: Any = list[str] | None if several else hint
            if name in says and get_origin(hint) is not Annotated:
                first = each.kind is Parameter.POSITIONAL_OR_KEYWORD and not is_dataclass(target)
                kind = Annotated[kind, _explained(name, first, says[name])]
            default = None if several else each.default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
            made[name] = partial(
                lambda name, several, given: given[name] or () if several else given[name], name, several
            )
    return parameters, lambda given: {name: make(given) for name, make in made.items()}


def _said(*docs: str) -> dict[str, tuple[list[str], str]]:
    """What docstrings say of options: flags with the word for the value, and help."""
    found = (match for doc in docs for match in _OPTION.findall(doc))
    return {name: (marks.split(), " ".join(words.split())) for name, marks, words in found}


def _explained(name: str, first: bool, says: tuple[list[str], str]) -> Any:
    """An argument, if it stands first, or an option, as a docstring has it: flags, the word for its value, its help."""
    marks, words = says
    flags = [each for each in marks if each.startswith("-")] or [f"--{name.replace('_', '-')}"]
    metavar = " ".join(each for each in marks if not each.startswith("-")) or None
    look: dict[str, Any] = {"help": words, "metavar": metavar, "autocompletion": COMPLETED.get(name)}
    return Argument(show_default=False, **look) if first else Option(*flags, **look)
