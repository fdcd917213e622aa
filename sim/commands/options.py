"""Arguments and options that several commands take, and what their words say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from sim.commands import completion as complete
from sim.commands.output import figure_paths, print_answer
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.scaling.run import Terms


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
    """The same for a group that is a command itself."""

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
Png = Annotated[Path | None, Option("--png", metavar="FILE", help="Write the figure as PNG.", show_default=False)]
Svg = Annotated[Path | None, Option("--svg", metavar="FILE", help="Write the figure as SVG.", show_default=False)]
Width = Annotated[float, Option(help="Width of the figure in inches.")]
StalenessModel = Annotated[
    str,
    Option("--staleness-model", help="What late gradients cost on the way to a loss: none, delayed-sgd or measured."),
]
Restart = Annotated[
    str | None, Option("--restart", help="From a failure to the next step, loading included, instead of both.")
]
Startup = Annotated[
    str | None, Option("--startup", help="From a failure to a job that loads state; 10 min if not given.")
]
WriteBandwidth = Annotated[
    str | None, Option("--write-bandwidth", help="Of the storage, all ranks; the cluster's if not given.")
]
PriceOption = Annotated[
    str | None, Option("--price", help="Of a GPU-hour: 2, '2.5 EUR', €2.5; the GPU's list price if not given.")
]
MemoryLimit = Annotated[
    str | None, Option("--memory-limit", help="Of one GPU, such as 72 GB; all that its driver gives if not given.")
]
Pue = Annotated[float, Option("--pue", help="Building's power over the machines'.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a whole run: how the cluster fails, how state is saved, and what all of it costs."""

    mtbf: Annotated[
        str | None, Option("--mtbf", help="Between failures of one GPU; Llama 3's 50,677 h if not given.")
    ] = None
    startup: Startup = None
    restart: Restart = None
    spares: Annotated[int | None, Option("--spares", help="Spare nodes; as many as it takes if not given.")] = None
    write_bandwidth: WriteBandwidth = None
    asynchronous: Annotated[
        bool, Option("--asynchronous/--blocking", help="Checkpoints go out in the background, or training waits.")
    ] = False
    load_by: Annotated[
        str | None, Option("--load-by", help="Who reads a checkpoint: all, one or shares; the fastest if not given.")
    ] = None
    price: PriceOption = None
    pue: Pue = 1.1

    def terms(self, node_gpus: int) -> Terms:
        """The record that they fill; how many GPUs a node has says what fails together."""
        from sim.reliability import GPU_MTBF_S, Failures, Price, load_named
        from sim.scaling.run import Terms
        from sim.units import parse

        failures = Failures(
            GPU_MTBF_S if self.mtbf is None else parse(self.mtbf, "s"),
            startup_of(self.restart, self.startup),
            gpus_per_node=node_gpus,
            spare_nodes=self.spares,
        )
        return Terms(
            failures,
            None if self.write_bandwidth is None else parse(self.write_bandwidth, "bytes_per_s"),
            asynchronous=self.asynchronous,
            load_by=None if self.load_by is None else load_named(self.load_by),
            restart_is_whole=self.restart is not None,
            price=None if self.price is None else Price.read(self.price),
            pue=self.pue,
        )


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


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses of options take these options one by one.

    `def train(scenario: ScenarioFile, run: RunOptions)` gets the options of `RunOptions` in the place of `run`, and a
    filled `RunOptions` when it is called.
    """
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for each in signature(command).parameters.values():
        if each.name not in records:
            parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[each.name]))
            continue
        options = get_type_hints(records[each.name], include_extras=True)
        parameters += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=options[field.name],
            )
            for field in fields(records[each.name])
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        filled = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in records.items()
        }
        command(**given, **filled)

    del run.__wrapped__  # whoever asks for the annotations is to see the options
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def startup_of(restart: str | None, startup: str | None) -> float:
    """Seconds from a failure to a job that loads its checkpoint, or to one that has where a restart is given whole."""
    from sim.reliability import STARTUP_S
    from sim.units import parse

    if restart is not None and startup is not None:
        raise SpecError(
            f"--restart {restart!r} is the start-up and the loading after it, --startup {startup!r} the first of them; "
            "give one of the two"
        )
    given = restart or startup
    return STARTUP_S if given is None else parse(given, "s")


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
