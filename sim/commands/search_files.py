"""What `flopcast search` prints and writes once it has its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sim.commands.output import print_json, print_view
from sim.files import write_text

if TYPE_CHECKING:
    from sim.report.search_answers import SearchAnswers
    from sim.specs import Scenario


def tell(
    answers: SearchAnswers, output: Path | None, figure: Path | None, export_to: str | None, as_json: bool
) -> None:
    """Print all answers, then write the files that were asked for: what was found is said before one can go wrong."""
    from sim.foreign.exporters import export_scenario

    best = answers.result.best[0].scenario
    if as_json:
        said = {} if export_to is None else {"export": export_scenario(best, export_to).to_dict()}
        print_json({**answers.to_dict(), **said})
    else:
        from sim.report.terminal import console

        print_view(answers.view(console().width))
    if output is not None:
        write_scenario(output, best)
    drawn = None if figure is None else answers.figure()
    if drawn is not None and figure is not None:
        from sim.report.figures import save

        save(drawn, [figure])
    for words, path, then in (
        ("The best plan is in", output, f"; flopcast export {output} --to FRAMEWORK says it to one"),
        ("Drawn:", None if drawn is None else figure, ""),
    ):
        if path is not None and not as_json:
            typer.echo(f"\n{words} {path}{then}")
    if export_to is not None and not as_json:
        from sim.commands.export import print_exported

        typer.echo()
        print_exported(export_scenario(best, export_to))
    if answers.unanswered:
        open_question = f"Interrupted at {answers.unanswered}: it is not answered, nor what comes after it"
        typer.secho(open_question, err=True, fg="red")


def write_scenario(path: Path, scenario: Scenario) -> None:
    """A scenario file: presets by their names, and what differs from them."""
    from sim.specs.writing import scenario_yaml

    described = scenario.replace(description=f"Best plan of a search. {scenario.description}".strip())
    write_text(path, scenario_yaml(described), "; make room there, or name another file")
