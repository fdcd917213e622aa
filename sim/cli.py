"""The command line: one verb a question.

Exit codes: 0 answered, 1 the answer cannot be written, 2 bad input, 3 the plan does not fit, 130 interrupted, 141 the
reader has gone.
"""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

import typer

from sim.commands import completion as complete
from sim.commands.examples import examples
from sim.commands.exit_codes import run_to_the_end
from sim.commands.import_config import import_config
from sim.commands.options import AsJson, Engine, Overrides, ProfileOption, ScenarioFile
from sim.commands.output import print_json, print_view
from sim.commands.report import report
from sim.commands.scaling import app as scaling
from sim.commands.schedules import add_commands
from sim.commands.search import search
from sim.commands.shortest import shortest
from sim.commands.simulate import simulate
from sim.commands.topology import topology
from sim.commands.train import train
from sim.errors import SpecError, nearest

NARROW = 60
"""Columns below which help comes without frames, which would cut words off."""
app = typer.Typer(
    name="flopcast",
    help="Predict how fast a large language model trains on a GPU cluster, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
presets = typer.Typer(
    help="Shipped GPUs, nodes, clusters, models, stacks and profiles, with their sources.",
    no_args_is_help=True,
)
app.add_typer(presets, name="presets")
app.add_typer(scaling, name="scaling")


def _version(value: bool) -> None:
    if value:
        from sim import __version__

        typer.echo(f"flopcast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict how fast a large language model trains on a GPU cluster, and why."""


@app.command(
    epilog=examples(
        "estimate scenarios/gpt-1t-3072-a100.yaml",
        "estimate scenarios/gpt-1t-3072-a100.yaml --set plan.num_chunks=2 --set plan.schedule=interleaved",
        "estimate scenarios/llama3-405b-16384-h100.yaml --json",
    )
)
def estimate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    contention: Annotated[bool, typer.Option("--contention", help="Messages share the cluster's links.")] = False,
    as_json: AsJson = False,
) -> None:
    """How long a step takes, how many FLOP/s that is, where the time goes, and whether it fits."""
    from sim import estimate as run
    from sim import load_scenario

    answer = run(load_scenario(scenario, overrides or (), profile), engine, contention=contention)
    if as_json:
        print_json(answer.to_dict())
    else:
        from sim.report.terminal import console
        from sim.report.text import estimate_view

        print_view(estimate_view(answer, console().width))
    answer.require_fit()


@app.command(
    epilog=examples(
        "compare scenarios/megatron-2021/145.6b.yaml scenarios/gpt3-175b-1024-a100.yaml",
    )
)
def compare(
    first: ScenarioFile,
    second: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Two scenarios side by side: what differs, and what it does. Overrides apply to both."""
    from sim import estimate as run
    from sim import load_scenario

    answers = [run(load_scenario(path, overrides or (), profile), engine) for path in (first, second)]
    if as_json:
        print_json([answer.to_dict() for answer in answers])
    else:
        from sim.report.text import compare_view

        print_view(compare_view(*answers))
    for answer in answers:
        answer.require_fit()


@presets.command(
    "list",
    epilog=examples(
        "presets list",
        "presets list clusters",
    ),
)
def list_presets(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="gpus, nodes, clusters, models, stacks, profiles or schedules.", autocompletion=complete.kinds
        ),
    ] = None,
) -> None:
    """Names of the shipped presets."""
    from sim.schedules import get_schedule, schedule_names
    from sim.specs.presets import KINDS, preset_names

    kinds = (*KINDS, "schedules")
    if kind is not None and kind not in kinds:
        raise SpecError(f"unknown kind of preset {kind!r}{nearest(kind, kinds)}")
    for each in kinds if kind is None else (kind,):
        if kind is None:
            typer.secho(each, bold=True)
        for name in schedule_names() if each == "schedules" else preset_names(each):
            summary = f"  {get_schedule(name).summary}" if each == "schedules" else ""
            typer.echo(f"  {name}{summary}" if kind is None else f"{name}{summary}")


@presets.command(
    "show",
    epilog=examples(
        "presets show selene",
        "presets show gpus/a100-sxm-80gb",
    ),
)
def show_preset(
    name: Annotated[
        str,
        typer.Argument(
            help="A preset's name, or kind/name where two kinds share it.", autocompletion=complete.any_preset
        ),
    ],
) -> None:
    """A preset's values, and the source of each."""
    from sim.report.terminal import console
    from sim.specs.presets import KINDS, preset_names, preset_source
    from sim.table import Table

    wanted_kind, _, wanted = name.rpartition("/")
    if wanted_kind and wanted_kind not in KINDS:
        raise SpecError(f"unknown kind of preset {wanted_kind!r}{nearest(wanted_kind, KINDS)}")
    kinds = (wanted_kind,) if wanted_kind else KINDS
    found = [kind for kind in kinds if wanted in preset_names(kind)]
    if not found:
        known = {preset for kind in kinds for preset in preset_names(kind)}
        raise SpecError(f"no preset {wanted!r}{nearest(wanted, known)}" if wanted else "give the name of a preset")
    out = console()
    for kind in found:
        table = Table(title=f"{kind}/{wanted}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("field", overflow="fold")
        table.add_column("value", overflow="fold")
        table.add_column("source", style="dim", overflow="fold")
        for field, value, source in preset_source(kind, wanted):
            table.add_row(field, str(value), source)
        out.print(table)


add_commands(app)  # schedule, timeline, compare-schedules


app.command(
    "import",
    epilog=examples(
        "import config.json --gpus 64 -o mine.yaml",
        "import train_gpt3_175b.sh --cluster selene -o gpt3.yaml",
        "import llama3_8b.toml | flopcast estimate -",
    ),
)(import_config)
app.command(
    epilog=examples(
        "topology selene",
        "topology selene --nodes 384 --collectives 1GB --gpus 48 --json",
    )
)(topology)
app.command(
    epilog=examples(
        "search scenarios/gpt-1t-3072-a100.yaml -o best.yaml",
        "search scenarios/gpt-1t-3072-a100.yaml --why own",
        "search scenarios/gpt-1t-3072-a100.yaml --schedules zb_v,v_half",
        "search scenarios/gpt-1t-3072-a100.yaml --why plan.tp=8 plan.pp=64",
        "search scenarios/gpt3-175b-1024-a100.yaml --sweep gpus=64..1024 --figure sweep.png",
    )
)(search)
app.command(
    epilog=examples(
        "simulate scenarios/gpt-1t-3072-a100.yaml --jitter 0.02 --seeds 20 --straggler 1.2@rank17",
        "simulate scenarios/gpt-1t-3072-a100.yaml --links --png links.png",
        "simulate scenarios/gpt-1t-3072-a100.yaml --link-down leaf4.cable7",
    )
)(simulate)
app.command(
    epilog=examples(
        "report scenarios/gpt-1t-3072-a100.yaml -o report.html",
        "report scenarios/gpt3-175b-1024-a100.yaml -s plan.num_chunks=2 -s plan.schedule=interleaved --no-search",
    )
)(report)
app.command(
    epilog=examples(
        "train scenarios/gpt-1t-3072-a100.yaml",
        "train scenarios/gpt-1t-3072-a100.yaml --price 3 --png run.png",
    )
)(train)
app.command(
    epilog=examples(
        "shortest llama3-70b --cluster superpod-h100 --tokens 15T --gpus 256..32768 --png frontier.png",
        "shortest gpt3-175b --cluster ethernet-25 --loss 2.0 --within '60 d'",
    )
)(shortest)


def _add_commands() -> None:
    """Verbs that other installed packages bring, such as `calibrate`."""
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group="flopcast.commands"), key=lambda found: found.name):
        app.add_typer(point.load(), name=point.name)


def main() -> None:
    """Run the command line; explain mistakes in one message and an exit code, never in a traceback."""
    code = run_to_the_end(_run)
    if code:
        sys.exit(code)


def _run() -> None:
    _add_commands()
    narrow: dict[str, Any] = {}
    columns = shutil.get_terminal_size().columns
    if columns < NARROW:
        app.rich_markup_mode, narrow = None, {"terminal_width": columns}
    app(prog_name="flopcast", **narrow)


if __name__ == "__main__":
    main()
