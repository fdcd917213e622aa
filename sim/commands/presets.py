"""`flopcast presets`: what ships, and the source of every value."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands import completion as complete
from sim.commands.examples import examples
from sim.errors import SpecError, nearest

app = typer.Typer(
    help="Shipped GPUs, nodes, clusters, models, stacks and profiles, with their sources.",
    no_args_is_help=True,
)


@app.command(
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


@app.command(
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
