"""`flopcast import` and `flopcast export`: from other tools' configurations to scenarios, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from sim.commands.options import Json, Overrides, ScenarioFile, print_json, print_view
from sim.errors import SpecError
from sim.files import write_text
from sim.foreign.exporters import Exported, export_scenario
from sim.foreign.importers import Given, import_file
from sim.specs import load_scenario


def import_config(
    file: Path,
    *,
    output: Path | None = None,
    gpus: int | None = None,
    cluster: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    recipe: str | None = None,
    overrides: list[str] | None = None,
    arg: list[str] | None = None,
    env: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Turn a configuration you already have into a scenario. Nothing in it is executed, nothing is downloaded.

    What was read, what was filled in because the file does not say, and what was left out and why stands in the
    scenario as comments.

    file FILE : config.json, a Megatron-LM launch script, torchtitan's TOML or JSON, DeepSpeed's JSON, or a recipe.
    output --output -o YAML : Write the scenario here; else it is printed.
    gpus : How many GPUs, where the file does not say.
    cluster : A cluster's name: flopcast presets list clusters.
    model : A model's name, or its config.json.
    kind : Kind of file, if not recognised: huggingface, megatron, torchtitan, deepspeed, axolotl, ...
    recipe NAME : The recipe, if a Python file has several: NAME, or NAME(argument=value).
    overrides --set -s FIELD=VALUE : Set a field; may be repeated.
    arg VALUE : An argument of a script, the first for $1; may be repeated.
    env NAME=VALUE : A variable of a script's environment; may be repeated.
    as_json --json : Machine-readable: kind, scenario, read, ...
    """
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
    """Variables of NAME=VALUE."""
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise SpecError(f"--env {text!r:.60} must look like NNODES=4")
        variables[name] = value
    return variables


def export(
    scenario: ScenarioFile,
    *,
    to: str,
    output: Path | None = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write a scenario's plan as a framework's own options: the way opposite to import.

    What the framework decides itself, what cannot be said to it and what is left to you stands at the head of the file.
    A plan that it cannot run is refused, with the reason and the nearest that it can.

    to FRAMEWORK : megatron-lm, megatron-bridge, torchtitan or deepspeed.
    output --output -o FILE : Write it here; else it is printed.
    """
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
