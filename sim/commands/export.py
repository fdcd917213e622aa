"""`flopcast export`: a scenario's plan as what a training framework takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sim.commands import options
from sim.commands.options import Json, Overrides, ScenarioFile, print_json, print_view
from sim.files import write_text

if TYPE_CHECKING:
    from sim.foreign.exporters import Exported


def export(
    scenario: ScenarioFile,
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="FRAMEWORK",
            help="megatron-lm, megatron-bridge, torchtitan or deepspeed.",
            autocompletion=options.frameworks_to_export_to,
        ),
    ],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write it here; else it is printed.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write a scenario's plan as a framework's own options: the way opposite to import.

    What the framework decides itself, what cannot be said to it and what is left to you stands at the head of the file.
    A plan that it cannot run is refused, with the reason and the nearest that it can.
    """
    from sim.foreign.exporters import export_scenario
    from sim.specs import load_scenario

    exported = export_scenario(load_scenario(scenario, overrides or ()), to)
    if output is not None:
        write_text(output, exported.with_account())
    if as_json:
        print_json(exported.to_dict())
    elif output is None:
        print_exported(exported)
    else:
        from sim.report.presets import exported_view

        print_view(partial(exported_view, exported))
        typer.echo(f"\n{exported.account.title}'s file is {output}")


def print_exported(exported: Exported) -> None:
    """Print the file; the account beside it, where the format has no comments."""
    typer.echo(exported.with_account(), nl=False)
    if exported.with_account() == exported.text:
        typer.echo("\n".join(exported.account_lines()), err=True)
