"""Arguments and options that several commands take, what completes them, and how commands print an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer, echo
from typer.core import TyperCommand, TyperGroup

from sim.errors import SpecError


def examples(*lines: str) -> str:
    """What follows the options in --help; each example is what one types after `flopcast`.

    Blank lines between them keep a help text from running them into one paragraph.
    """
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"flopcast {line}" for line in lines)])


def group_of(words: str, commands: dict[str, tuple[Callable[..., Any], tuple[str, ...]]]) -> Typer:
    """A verb with verbs of its own: the function and the examples of each."""
    from sim.commands.fills import with_records

    app = Typer(help=words, no_args_is_help=True)
    for name, (command, lines) in commands.items():
        app.command(name, epilog=examples(*lines))(with_records(command))
    return app


def _offer(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Words that go on as what is typed; they are made, and their modules loaded, when Tab is pressed."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


def _load(home: str) -> Any:
    """What a module has under a name, `module:name`."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def scenario_files(incomplete: str) -> list[str]:
    """YAML files and folders that the path so far leads to."""
    folder = Path(incomplete).expanduser() if incomplete.endswith("/") else Path(incomplete).expanduser().parent
    shown = incomplete[: incomplete.rfind("/") + 1]
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        names = [shown + (f"{path.name}/" if path.is_dir() else path.name) for path in paths]
    except OSError:
        return []
    return [name for name in names if name.endswith(("/", ".yaml", ".yml")) and name.startswith(incomplete)]


def scenarios_with_overrides(incomplete: str) -> list[str]:
    """YAML files and folders; behind an @ the fields that a file's own overrides may set."""
    file, at, begun = incomplete.rpartition("@")
    return [f"{file}@{field}" for field in fields(begun)] if at else scenario_files(incomplete)


def preset(kind: str) -> Callable[[str], list[str]]:
    """Names of presets of one kind."""
    return _offer(lambda: _load("sim.specs.presets:preset_names")(kind))


def _any_preset() -> list[str]:
    names = _load("sim.specs.presets:preset_names")
    shipped = _load("sim.files:shipped_scenarios")()
    return sorted({name for kind in _load("sim.specs.presets:KINDS") for name in names(kind)}.union(shipped))


def _values() -> list[str]:
    """Fields that hold a value rather than fields of their own."""
    sections = _load("sim.report.field_reference:scenario_sections")()
    return [field.path for section in sections for field in section.fields if not field.section]


def _sections(with_presets: bool) -> list[str]:
    sections = _load("sim.report.field_reference:scenario_sections")()
    return [each.path for each in sections if (each.preset if with_presets else each.path)]


any_preset = _offer(_any_preset)
frameworks_to_export_to = _offer(lambda: _load("sim.foreign.exporters:FRAMEWORKS"))
fields = _offer(lambda: [f"{path}=" for path in (*_values(), *_sections(with_presets=True))])
"""`section.field=` of every field of a scenario file; whole sections by preset."""
field_paths = _offer(lambda: [*_sections(with_presets=False), *_values()])
"""Sections and fields of a scenario file."""
COMPLETED: dict[str, Callable[[str], list[str]]] = {
    "scenario": scenario_files,
    "first": scenarios_with_overrides,
    "second": scenarios_with_overrides,
    "overrides": fields,
    "which": field_paths,
    "preset": any_preset,
    "kind_of_preset": _offer(lambda: [*_load("sim.specs.presets:KINDS"), "schedules", "scenarios"]),
    "schedule": _offer(lambda: _load("sim.schedules:schedule_names")()),
    "to": frameworks_to_export_to,
    "export_to": frameworks_to_export_to,
    "cluster": preset("clusters"),
    "framework": preset("frameworks"),
    "gpu": preset("gpus"),
    "model": preset("models"),
    "profile": preset("profiles"),
}
"""What completes a command's parameter, by its name."""


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


def print_view(*parts: Any) -> None:
    """Print what rich can show, one below the other; what depends on the terminal's width is a function of it."""
    from sim.report.terminal import console

    out = console()
    out.print(*(part(out.width) if callable(part) else part for part in parts), sep="\n")


def print_answer(as_json: bool, data: Callable[[], Any], view: Callable[[], Any]) -> None:
    """Print an answer as JSON, or a view of it, or several, for eyes; what is not printed is not made."""
    if as_json:
        print_json(data())
    else:
        shown = view()
        print_view(*(shown if isinstance(shown, list) else [shown]))


def figure_paths(png: Path | None, svg: Path | None) -> list[Path]:
    """Where a figure goes, if anywhere; a file that could not be written is refused before any work is done."""
    from sim.report.figures import check_paths

    given = {path: ending for path, ending in ((png, ".png"), (svg, ".svg")) if path is not None}
    for path, ending in given.items():
        check_paths([path], (ending,))
    return list(given)


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


ScenarioFile = Annotated[
    Path,
    Argument(help="A scenario in YAML; - reads it from a pipe.", show_default=False, autocompletion=scenario_files),
]
_SET: dict[str, Any] = {"metavar": "FIELD=VALUE", "autocompletion": fields}
Overrides = Annotated[
    list[str] | None, Option("--set", "-s", help="Override a field, such as plan.tp=4; may be repeated.", **_SET)
]
Engine = Annotated[
    str,
    Option(
        help="dag (exact) or des (discrete events).",
        autocompletion=_offer(lambda: _load("sim.engines:ENGINES")),
    ),
]
ProfileOption = Annotated[
    str | None,
    Option(
        "--profile",
        help="A profile's name or YAML file, instead of the scenario's.",
        autocompletion=preset("profiles"),
    ),
]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="[FILE]", help="Machine-readable: print it, or write it to a file.")
]
AsJson = Annotated[bool, Option("--json", help="Machine-readable, with the keys that docs/answers.md lists.")]
Json = Annotated[bool, Option("--json", help="Machine-readable.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show all assumptions and details.")]
Png = Annotated[Path | None, Option("--png", metavar="FILE", help="Write the figure as PNG.", show_default=False)]
Svg = Annotated[Path | None, Option("--svg", metavar="FILE", help="Write the figure as SVG.", show_default=False)]
PriceOption = Annotated[
    str | None, Option("--price", help="Price of a GPU-hour: 2, '2.5 EUR' or €2.5; default: the GPU's list price.")
]


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


def read_numbers(
    text: str, option: str, what: str = "numbers of one or more", example: str = "1,2,4"
) -> tuple[int, ...]:
    """Whole numbers from one on, in rising order, of words such as `4,1,2`."""
    try:
        numbers = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        numbers = (0,)
    if numbers[0] < 1:
        raise SpecError(f"{option} {text!r} must be {what} with commas between, such as {example}")
    return numbers


def check_numbers(**given: int | None) -> None:
    """Refuse counts below one, by the option's name as it is typed."""
    for name, number in given.items():
        if number is not None and number < 1:
            raise SpecError(f"--{name.replace('_', '-')} {number} must be one or more")


def read_limit(text: str) -> float:
    """Memory that a plan may use of a GPU. [bytes]"""
    from sim.units import parse

    limit = parse(text, "bytes")
    if limit <= 0:
        raise SpecError(f"--memory-limit {text!r} must be above zero, such as '72 GB'")
    return limit


def check_output(output: Path | None) -> None:
    """Refuse the file of a scenario that could not be written."""
    if output is not None and not output.parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    if output is not None and output.is_dir():
        raise SpecError(f"cannot write {output}: it is a folder; give the name of a file in it, such as best.yaml")
