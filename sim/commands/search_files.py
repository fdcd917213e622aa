"""What `flopcast search` prints and writes once it has its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sim.commands.output import print_answer
from sim.files import write_text

if TYPE_CHECKING:
    from sim.report.search_answers import SearchAnswers
    from sim.specs import Scenario


def tell(
    answers: SearchAnswers, output: Path | None, figure: Path | None, export_to: str | None, as_json: bool
) -> None:
    """Print all answers, then write the files that were asked for: what was found is said before one can go wrong."""
    from sim.commands.export import print_exported
    from sim.foreign.exporters import export_scenario
    from sim.report.figures import save

    best, drawn = answers.result.best[0].scenario, None
    exported = None if export_to is None else export_scenario(best, export_to)
    data = {} if exported is None else {"export": exported.to_dict()}
    print_answer(as_json, lambda: {**answers.to_dict(), **data}, lambda: answers.view)
    if output is not None:
        write_scenario(output, best)
    if figure is not None and (drawn := answers.figure()) is not None:
        save(drawn, [figure])
    if not as_json and output is not None:
        typer.echo(f"\nThe best plan is in {output}; flopcast export {output} --to FRAMEWORK says it to one")
    if not as_json and drawn is not None:
        typer.echo(f"\nDrawn: {figure}")
    if exported is not None and not as_json:
        typer.echo()
        print_exported(exported)
    if answers.unanswered:
        open_question = f"Interrupted at {answers.unanswered}: it is not answered, nor what comes after it"
        typer.secho(open_question, err=True, fg="red")


def write_scenario(path: Path, scenario: Scenario) -> None:
    """A scenario file: presets by their names, and what differs from them."""
    from sim.specs.writing import scenario_yaml

    described = scenario.replace(description=f"Best plan of a search. {scenario.description}".strip())
    write_text(path, scenario_yaml(described), "; make room there, or name another file")
