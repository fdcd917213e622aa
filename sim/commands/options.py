"""Arguments and options that several commands take, and what their words say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim.commands import completion as complete
from sim.errors import SpecError

if TYPE_CHECKING:
    from sim.scaling.run import Terms


def json_alone(args: list[str]) -> list[str]:
    """Arguments in which `--json` without a file, as most verbs take it, names the screen."""
    ends = [*args[1:], "--"]
    bare = [
        each == "--json" and after.startswith("-") and after != "-" for each, after in zip(args, ends, strict=False)
    ]
    return [part for each, alone in zip(args, bare, strict=True) for part in ([each, "-"] if alone else [each])]


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
    typer.Argument(
        help="A scenario in YAML; - reads it from a pipe.", show_default=False, autocompletion=complete.scenario_files
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Override a field, such as plan.tp=4; may be repeated.",
        autocompletion=complete.fields,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="dag (exact), closed_form (formula), des (discrete events) or shared (processes on shared cores).",
        autocompletion=complete.engines,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A profile's name or YAML file, instead of the scenario's.",
        autocompletion=complete.preset("profiles"),
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="[FILE]", help="Machine-readable: print it, or write it to a file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable, with the keys that docs/answers.md lists.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write the figure as PNG.", show_default=False)]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the figure as SVG.", show_default=False)]
Width = Annotated[float, typer.Option(help="Width of the figure in inches.")]
StalenessModel = Annotated[
    str,
    typer.Option(
        "--staleness-model", help="What late gradients cost on the way to a loss: none, delayed-sgd or measured."
    ),
]
Mtbf = Annotated[
    str | None, typer.Option("--mtbf", help="Between failures of one GPU; Llama 3's 50,677 h if not given.")
]
Restart = Annotated[
    str | None, typer.Option("--restart", help="From a failure to the next step, loading included, instead of both.")
]
Startup = Annotated[
    str | None,
    typer.Option("--startup", help="From a failure to a job that loads state; 10 min if not given."),
]
Asynchronous = Annotated[
    bool,
    typer.Option("--asynchronous/--blocking", help="Checkpoints go out in the background, or training waits."),
]
LoadedBy = Annotated[
    str | None, typer.Option("--load-by", help="Who reads a checkpoint: all, one or shares; the fastest if not given.")
]
Spares = Annotated[int | None, typer.Option("--spares", help="Spare nodes; as many as it takes if not given.")]
WriteBandwidth = Annotated[
    str | None,
    typer.Option("--write-bandwidth", help="Of the storage, all ranks; the cluster's if not given."),
]
PriceOption = Annotated[
    str, typer.Option("--price", help="Of a GPU-hour: 2, '2.5 EUR', €2.5; US dollars if not named.")
]
Pue = Annotated[float, typer.Option("--pue", help="Building's power over the machines'.")]


def terms_of(
    node_gpus: int,
    *,
    mtbf: str | None,
    restart: str | None,
    startup: str | None,
    spares: int | None,
    write_bandwidth: str | None,
    asynchronous: bool,
    load_by: str | None,
    price: str,
    pue: float,
) -> Terms:
    """The options as a record; how many GPUs a node has says what fails together."""
    from sim.reliability import GPU_MTBF_S, Failures, Price, load_named
    from sim.scaling.run import Terms
    from sim.units import parse

    failures = Failures(
        GPU_MTBF_S if mtbf is None else parse(mtbf, "s"),
        startup_of(restart, startup),
        gpus_per_node=node_gpus,
        spare_nodes=spares,
    )
    return Terms(
        failures,
        None if write_bandwidth is None else parse(write_bandwidth, "bytes_per_s"),
        asynchronous=asynchronous,
        load_by=None if load_by is None else load_named(load_by),
        restart_is_whole=restart is not None,
        price=Price.read(price),
        pue=pue,
    )


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
