"""`flopcast report`: an answer and all that it rests on, as one file to hand on."""

from __future__ import annotations

from pathlib import Path

import typer

from sim.commands.options import Engine, Overrides, ProfileOption, ScenarioFile
from sim.commands.progress import progress_bar
from sim.errors import FlopcastError, SpecError
from sim.files import write_text
from sim.search import search


def report(
    scenario: ScenarioFile,
    *,
    output: Path = Path("report.html"),
    with_search: bool = True,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
) -> None:
    """Write the answer and all that it rests on as one HTML file that needs nothing else, not even a network.

    Headline, the way from peak to what is achieved, memory, timeline, better plans, assumptions, how far to trust it,
    and the scenario to reproduce it.

    output --output -o HTML : Where to write it.
    with_search --search/--no-search : Also look for better plans.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"{output} must end in .html")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}, or it is a folder itself")
    from sim import estimate, load_scenario
    from sim.report.html.page import report_page

    question = load_scenario(scenario, overrides or (), profile)
    answer, found, why = estimate(question, engine), None, ""
    try:
        if with_search:
            with progress_bar("plans priced") as progress:
                found = search(question, progress=progress)
    except FlopcastError as error:
        why = str(error)
    page = report_page(answer, found, why)
    write_text(output, page)
    typer.echo(f"report: {output}  {len(page.encode()) / 1e3:,.0f} kB")
    answer.require_fit()
