"""`flopcast import` and `flopcast export`: from other tools' configurations to scenarios, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from sim.commands.options import Answer
from sim.errors import SpecError
from sim.files import write_text
from sim.foreign.exporters import Exported, check_framework, export_scenario
from sim.foreign.importers import Given, import_file
from sim.specs import Scenario, load_scenario
from sim.specs.writing import scenario_yaml


def import_config(
    file: Path,
    *,
    output: Path | None = None,
    gpus: int | None = None,
    cluster: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    arg: Sequence[str] = (),
    env: Sequence[str] = (),
) -> Answer:
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
    """
    given = Given(gpus, cluster, model, recipe, args=tuple(arg), env=dict(map(_variable, env)))
    imported = import_file(file, given, kind=kind, overrides=overrides)
    ledger = imported.ledger
    data = {
        "kind": imported.kind,
        "scenario": imported.data,
        "confidence": ledger.confidence,
        "read": [entry.plain() for entry in ledger.read],
        "defaulted": [entry.plain() for entry in ledger.defaulted],
        "ignored": [entry._asdict() for entry in ledger.ignored],
    }
    if output is None:
        return Answer(lambda: data, lambda: [imported.to_yaml().rstrip("\n")])
    words = f"\nThe scenario is in {output}; next: flopcast estimate {output}"
    return Answer(lambda: data, imported.account_lines, after=partial(_write, output, imported.to_yaml, words))


def _write(output: Path, text: Any, words: str) -> Iterator[str]:
    write_text(output, text())
    yield words


def _variable(text: str) -> tuple[str, str]:
    """A variable and its value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise SpecError(f"--env {text!r:.60} must look like NNODES=4")
    return name, value


def export(scenario: Path, *, to: str, output: Path | None = None, overrides: Sequence[str] = ()) -> Answer:
    """Write a scenario's plan as a framework's own options: the way opposite to import.

    What the framework decides itself, what cannot be said to it and what is left to you stands at the head of the file.
    A plan that it cannot run is refused, with the reason and the nearest that it can.

    to FRAMEWORK : megatron-lm, megatron-bridge, torchtitan or deepspeed.
    """
    exported = export_scenario(load_scenario(scenario, overrides), to)
    if output is None:
        return Answer(exported.to_dict, partial(_text, exported))
    words = f"\n{exported.account.title}'s file is {output}"
    return Answer(exported.to_dict, exported.account_lines, after=partial(_write, output, exported.with_account, words))


def _text(exported: Exported) -> Iterator[str]:
    """The file; the account beside it on stderr, where the format has no comments."""
    yield exported.with_account().rstrip("\n")
    if exported.with_account() == exported.text:
        typer.echo("\n".join(exported.account_lines()), err=True)


@dataclass(frozen=True, slots=True)
class Kept:
    """What becomes of the best plan of a search.

    output --output -o YAML : Write the best plan as a scenario.
    """

    output: Path | None = None
    export_to: str | None = None

    def __post_init__(self) -> None:
        if self.export_to is not None:
            check_framework(self.export_to)

    def answer(
        self, data: Callable[[], dict[str, Any]], view: Any, best: Scenario, own: Scenario | None = None, **more: Any
    ) -> Answer:
        """The answer with the plan in the formats that were asked for.

        own : the scenario whose script is to be changed, if there is one.
        more : of the answer, such as its figure.
        """
        exported = None if self.export_to is None else export_scenario(best, self.export_to)
        if exported is not None and own is not None:
            exported = exported.beside_own(own)

        def after() -> Iterator[str]:
            if self.output is not None:
                write_scenario(self.output, best)
                yield f"\nThe best plan is in {self.output}"
            if exported is not None:
                yield f"\n{exported.with_account().rstrip(chr(10))}"
                yield from exported.account_lines() if exported.with_account() == exported.text else ()

        written = {} if exported is None else {"export": exported.to_dict()}
        return Answer(lambda: {**data(), **written}, lambda: [view], after=after, **more)


def write_scenario(path: Path, scenario: Scenario) -> None:
    """A scenario file: presets by their names, and what differs from them."""
    said = "Best plan of a search."
    of_whom = scenario.description.removeprefix(said).strip()
    described = scenario.replace(description=f"{said} {of_whom}".strip())
    write_text(path, scenario_yaml(described), "; make room there, or name another file")
