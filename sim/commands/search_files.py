"""What `flopcast search` prints and writes once it has its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sim.commands.output import print_json, print_view
from sim.errors import SpecError
from sim.files import write_text

if TYPE_CHECKING:
    from sim.report.search_answers import SearchAnswers
    from sim.specs import Scenario


def tell(
    answers: SearchAnswers, output: Path | None, figure: Path | None, export_to: str | None, as_json: bool
) -> None:
    """Print all answers, then write the files that were asked for: what was found is said before one can go wrong."""
    if as_json:
        said = {} if export_to is None else {"export": exported(answers.result.best[0].scenario, export_to)}
        print_json({**answers.to_dict(), **said})
    else:
        from sim.report.terminal import console

        print_view(answers.view(console().width))
    if output is not None:
        write_scenario(output, answers.result.best[0].scenario)
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
        from sim.foreign.exporters import export_scenario

        typer.echo()
        print_exported(export_scenario(answers.result.best[0].scenario, export_to))
    if answers.unanswered:
        open_question = f"Interrupted at {answers.unanswered}: it is not answered, nor what comes after it"
        typer.secho(open_question, err=True, fg="red")


def exported(scenario: Scenario, framework: str) -> dict[str, Any]:
    """A plan in a framework's words, or why it cannot be said in them."""
    from sim.foreign.exporters import export_scenario

    try:
        return export_scenario(scenario, framework).to_dict()
    except SpecError as error:
        return {"framework": framework, "refused": str(error).splitlines()}


def write_scenario(path: Path, scenario: Scenario) -> None:
    """A scenario file that stands alone: every preset written out, so that it says the same tomorrow."""
    from sim.specs.writing import scenario_yaml

    described = scenario.replace(description=f"Best plan of a search. {scenario.description}".strip())
    write_text(path, scenario_yaml(described), "; make room there, or name another file")
