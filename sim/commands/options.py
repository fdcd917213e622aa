"""What verbs have in common: options that several take, how an answer is told, and checks of what is typed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, echo
from typer.core import TyperCommand, TyperGroup

from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.estimate import Estimate

COMMON = """
scenario : A scenario in YAML; - reads it from a pipe.
overrides --set -s FIELD=VALUE : Override a field, such as plan.tp=4; may be repeated.
engine : dag (exact) or des (discrete events).
profile : A profile's name or YAML file, instead of the scenario's.
model : A preset, a model of the Hugging Face hub, or a config.json.
price : Price of a GPU-hour: 2, '2.5 EUR' or €2.5; default: the GPU's list price.
output --output -o FILE : Write it here; else it is printed.
export_to --export FRAMEWORK : Also the best plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or
    deepspeed.
figure FILE : Draw it in a file (.png, .svg).
verbose --verbose -v : Show all assumptions and details.
as_json --json : Machine-readable, with the keys that docs/answers.md lists.
"""
"""What options are that several verbs have, unless a verb's own docstring says it."""
TARGETS = {"output": (), "figure": (".png", ".svg"), "trace": (".json",)}
"""Options that name a file to be written, and the endings that it may have; any if there are none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb answers; what nobody asked for is not made.

    data : the answer as plain data, for --json.
    view : the same for eyes: texts, what rich can show, or functions of the terminal's width that give these.
    fits : estimates whose plans must fit in memory, or the exit code tells that they do not.
    after : what comes once all that is printed: writes files, says a line of each, or raises what the exit code tells.
    figure : the answer drawn, for --figure.
    """

    data: Callable[[], Any]
    view: Callable[[], Iterable[Any]]
    fits: tuple[Estimate, ...] = ()
    after: Callable[[], Iterable[str] | None] = tuple
    figure: Callable[[], Any] | None = None

    def tell(self, as_json: bool, figure: Path | None) -> None:
        """Print the answer, then write what was asked for: what was found is said before a file can go wrong."""
        if as_json:
            print_json(self.data())
        else:
            print_view(self.view())
        if figure is not None and self.figure is not None:
            from sim.report.figures import save

            save(self.figure(), figure)
            echo(f"figure: {figure}", err=as_json)
        for line in self.after() or ():
            if not as_json:
                echo(line)
        for each in self.fits:
            each.require_fit()


def print_view(parts: Iterable[Any]) -> None:
    """Print texts as they are, and what rich can show; what depends on the terminal's width is a function of it."""
    from sim.report.terminal import console

    out = console()
    for part in parts:
        shown = part(out.width) if callable(part) else part
        if isinstance(shown, str):
            echo(shown)
        else:
            out.print(shown)


def print_json(data: Any) -> None:
    """Print plain data; numbers that JSON lacks as null."""
    import json

    echo(json.dumps(finite(data), indent=2, allow_nan=False))


def finite(data: Any) -> Any:
    """Plain data with null for numbers that JSON lacks."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def examples(*lines: str) -> str:
    """What follows the options in --help; each example is what one types after `flopcast`.

    Blank lines between them keep a help text from running them into one paragraph.
    """
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"flopcast {line}" for line in lines)])


def _load(home: str) -> Any:
    """What a module has under a name, `module:name`."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def _offer(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Words that go on as what is typed; they are made, and their modules loaded, when Tab is pressed."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


def _preset(kind: str) -> Callable[[str], list[str]]:
    """Names of presets of one kind."""
    return _offer(lambda: _load("sim.specs.presets:preset_names")(kind))


def _any_preset() -> list[str]:
    names, kinds = _load("sim.specs.presets:preset_names"), _load("sim.specs.presets:KINDS")
    return sorted({name for kind in kinds for name in names(kind)}.union(_load("sim.files:shipped_scenarios")()))


def _paths(sections: Callable[[Any], object]) -> list[str]:
    """Paths of fields that hold a value rather than fields of their own, and of some sections."""
    found = _load("sim.report.fields:scenario_sections")()
    fields = [field.path for section in found for field in section.fields if not field.within]
    return [*fields, *(section.path for section in found if sections(section))]


any_preset = _offer(_any_preset)
fields = _offer(lambda: [f"{path}=" for path in _paths(lambda section: section.preset)])
"""`section.field=` of every field of a scenario file; whole sections by preset."""
field_paths = _offer(lambda: _paths(lambda section: section.path))
"""Sections and fields of a scenario file."""
_frameworks = _offer(lambda: _load("sim.foreign.exporters:FRAMEWORKS"))
COMPLETED: dict[str, Callable[[str], list[str]]] = {
    "overrides": fields,
    "which": field_paths,
    "preset": any_preset,
    "kind_of_preset": _offer(lambda: [*_load("sim.specs.presets:KINDS"), "schedules", "scenarios"]),
    "schedule": _offer(lambda: _load("sim.schedules:schedule_names")()),
    "engine": _offer(lambda: _load("sim.engines:ENGINES")),
    "to": _frameworks,
    "export_to": _frameworks,
    **{kind: _preset(f"{kind}s") for kind in ("cluster", "framework", "gpu", "model", "profile")},
}
"""What completes a command's parameter, by its name; for all else the shell offers files."""


def with_value(args: list[str], option: str, value: str, is_value: Callable[[str], bool]) -> list[str]:
    """Arguments in which an option that stands alone has a value; what is one behind it, `is_value` says."""
    ends = [*args[1:], "--"]
    bare = [each == option and not is_value(after) for each, after in zip(args, ends, strict=False)]
    return [part for each, alone in zip(args, bare, strict=True) for part in ([each, value] if alone else [each])]


def _json_alone(args: list[str]) -> list[str]:
    """Arguments in which `--json` without a file, as most verbs take it, names the screen."""
    return with_value(args, "--json", "-", lambda after: after == "-" or not after.startswith("-"))


class JsonCommand(TyperCommand):
    """A command whose `--json` is a flag, or takes a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _json_alone(args))


class JsonGroup(TyperGroup):
    """A group that is also a command, whose own `--json` is a flag or takes a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = next((at for at, each in enumerate(args) if each in self.commands), len(args))
        return super().parse_args(ctx, _json_alone(args[:own]) + args[own:])


JsonFile = Annotated[
    Path | None, Option("--json", metavar="[FILE]", help="Machine-readable: print it, or write it to a file.")
]
Json = Annotated[bool, Option("--json", help="Machine-readable.")]


def read_range(text: str) -> tuple[int, int]:
    """Fewest and most of `64..4096`, or twice the one number."""
    first, dots, last = text.partition("..")
    try:
        fewest, most = int(first), int(last if dots else first)
    except ValueError:
        raise SpecError(f"--gpus {text!r} must be a whole number or a range such as 64..4096") from None
    if fewest < 1:
        raise SpecError(f"--gpus {text!r}: {fewest} must be one or more, such as 64..4096")
    if fewest > most:
        raise SpecError(f"--gpus {text!r} must go from fewer to more; write {most}..{fewest}")
    return fewest, most


def read_limit(text: str) -> float:
    """Memory that a plan may use of a GPU. [bytes]"""
    from sim.units import parse

    limit = parse(text, "bytes")
    if limit <= 0:
        raise SpecError(f"--memory-limit {text!r} must be above zero, such as '72 GB'")
    return limit


def check_numbers(**given: int | None) -> None:
    """Refuse counts below one, by the option's name as it is typed."""
    for name, number in given.items():
        if number is not None and number < 1:
            raise SpecError(f"--{name.replace('_', '-')} {number} must be one or more")


def check_target(path: Path, endings: Iterable[str] = ()) -> None:
    """Refuse a file that could not be written, before the work is done."""
    if path.is_dir():
        raise SpecError(f"cannot write {path}: it is a folder; give the name of a file in it")
    if endings and path.suffix.lower() not in endings:
        raise SpecError(f"{str(path)!r} must end in {' or '.join(endings)}")
    folder = path.absolute().parent
    if not folder.is_dir():
        make = f"mkdir -p {path.parent}"
        raise SpecError(f"cannot write {path}: there is no folder {path.parent}; make it first ({make})")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise SpecError(f"cannot write {path}: it may not be written to; choose another place")
