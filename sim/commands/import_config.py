"""`flopcast import`: a configuration you already have becomes a scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from sim.commands import options
from sim.commands.options import print_view
from sim.errors import SpecError
from sim.files import write_text


def import_config(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="config.json, a Megatron-LM launch script, torchtitan's TOML or JSON, DeepSpeed's JSON, or a recipe.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="YAML", help="Write the scenario here; else it is printed.")
    ] = None,
    gpus: Annotated[int | None, Option(help="How many GPUs, where the file does not say.")] = None,
    cluster: Annotated[
        str | None,
        Option(help="A cluster's name: flopcast presets list clusters.", autocompletion=options.preset("clusters")),
    ] = None,
    model: Annotated[
        str | None, Option(help="A model's name, or its config.json.", autocompletion=options.preset("models"))
    ] = None,
    kind: Annotated[
        str | None,
        Option(help="Kind of file, if not recognised: huggingface, megatron, torchtitan, deepspeed, axolotl, ..."),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(metavar="NAME", help="The recipe, if a Python file has several: NAME, or NAME(argument=value)."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        Option(
            "--set", "-s", metavar="FIELD=VALUE", help="Set a field; may be repeated.", autocompletion=options.fields
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        Option(metavar="VALUE", help="An argument of a script, the first for $1; may be repeated."),
    ] = None,
    env: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="A variable of a script's environment; may be repeated.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Machine-readable: kind, scenario, read, ...")] = False,
) -> None:
    """Turn a configuration you already have into a scenario. Nothing in it is executed, nothing is downloaded.

    What was read, what was filled in because the file does not say, and what was left out and why stands in the
    scenario as comments.
    """
    from sim.foreign.importers import Given, import_file

    if output is not None and not output.absolute().parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    given = Given(gpus, cluster, model, recipe, args=tuple(arg or ()), env=_environment(env or ()))
    imported = import_file(file, given, kind=kind, overrides=overrides or ())
    ledger = imported.ledger
    if output is not None:
        write_text(output, imported.to_yaml())
    if as_json:
        data = {
            "kind": imported.kind,
            "scenario": imported.data,
            "confidence": ledger.confidence,
            "read": [entry.plain() for entry in ledger.read],
            "defaulted": [entry.plain() for entry in ledger.defaulted],
            "ignored": [entry._asdict() for entry in ledger.ignored],
        }
        typer.echo(json.dumps(data, indent=2, allow_nan=False))
    elif output is None:
        typer.echo(imported.to_yaml(), nl=False)
    else:
        from sim.report.presets import imported_view

        print_view(partial(imported_view, imported))
        typer.echo(f"\nThe scenario is in {output}; next: flopcast estimate {output}")


def _environment(texts: Sequence[str]) -> dict[str, str]:
    """Variables of NAME=VALUE.

    Raises
    ------
    SpecError
        A text that is no such pair.
    """
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise SpecError(f"--env {text!r:.60} must look like NNODES=4")
        variables[name] = value
    return variables
