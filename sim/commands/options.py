"""Arguments and options that several commands take, and what their words say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from sim.commands import completion as complete
from sim.commands.output import figure_paths, print_answer
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.commands.fills import Fills
    from sim.reliability import Failures


def with_value(args: list[str], option: str, value: str, is_value: Callable[[str], bool]) -> list[str]:
    """Arguments in which an option that stands alone has a value; what is one behind it, `is_value` says."""
    ends = [*args[1:], "--"]
    bare = [each == option and not is_value(after) for each, after in zip(args, ends, strict=False)]
    return [part for each, alone in zip(args, bare, strict=True) for part in ([each, value] if alone else [each])]


def json_alone(args: list[str]) -> list[str]:
    """Arguments in which `--json` without a file, as most verbs take it, names the screen."""
    return with_value(args, "--json", "-", lambda after: after == "-" or not after.startswith("-"))


class JsonCommand(TyperCommand):
    """A command whose `--json` is a flag, or takes a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, json_alone(args))


class JsonGroup(TyperGroup):
    """A group that is also a command, whose own `--json` is a flag or takes a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = next((at for at, each in enumerate(args) if each in self.commands), len(args))
        return super().parse_args(ctx, json_alone(args[:own]) + args[own:])


ScenarioFile = Annotated[
    Path,
    Argument(
        help="A scenario in YAML; - reads it from a pipe.", show_default=False, autocompletion=complete.scenario_files
    ),
]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Override a field, such as plan.tp=4; may be repeated.",
        autocompletion=complete.fields,
    ),
]
Engine = Annotated[
    str,
    Option(
        help="dag (exact), des (discrete events) or shared (processes on shared cores).",
        autocompletion=complete.engines,
    ),
]
ProfileOption = Annotated[
    str | None,
    Option(
        "--profile",
        help="A profile's name or YAML file, instead of the scenario's.",
        autocompletion=complete.preset("profiles"),
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
Width = Annotated[float, Option(help="Width of the figure in inches.")]
Restart = Annotated[
    str | None,
    Option("--restart", help="Time from a failure to the next step, loading included, instead of --startup."),
]
PriceOption = Annotated[
    str | None, Option("--price", help="Price of a GPU-hour: 2, '2.5 EUR' or €2.5; default: the GPU's list price.")
]


@dataclass
class Output:
    """Options that say in which form an answer comes.

    Raises
    ------
    SpecError
        A figure's file could not be written: this is said before anything is computed.
    """

    as_json: AsJson = False
    png: Png = None
    svg: Svg = None

    def __post_init__(self) -> None:
        self.paths = figure_paths(self.png, self.svg)

    def show(self, data: Callable[[], Any], view: Callable[[], Any], figure: Callable[[], Any]) -> None:
        """Print the answer as JSON or for eyes, and draw the figure where one was asked for."""
        print_answer(self.as_json, data, view)
        if self.paths:
            from sim.report.figures import save

            save(figure(), self.paths)


def startup_of(restart: str | None, failures: partial[Failures]) -> partial[Failures]:
    """Failures from which a job comes back as --startup says, or --restart with loading in it.

    Raises
    ------
    SpecError
        Both were given.
    """
    from sim.units import parse, show_bare

    startup = failures.keywords.get("startup_s")
    if restart is not None and startup is not None:
        raise SpecError(
            f"--restart {restart!r} is the start-up and the loading after it, --startup {show_bare(startup, 's')!r} "
            "the first of them; give one of the two"
        )
    return failures if restart is None else partial(failures, startup_s=parse(restart, "s"))


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


def failure_options(*left_out: str) -> Fills:
    """Return the options of `Failures` but those that a verb fills itself."""
    from sim.commands.fills import Fills, Opt
    from sim.reliability import Failures

    return Fills(
        Failures,
        "hardware_share",
        "gpus_per_node",
        "load_s",
        *left_out,
        gpu_mtbf_s=Opt("--mtbf", show_default="50,677 h"),
        startup_s=Opt(show_default="10 min"),
        spare_nodes="--spares",
    )
