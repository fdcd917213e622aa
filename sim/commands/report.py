"""`flopcast report`: an answer as one file to hand on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands.options import Engine, Overrides, ProfileOption, ScenarioFile
from sim.errors import FlopcastError, SpecError
from sim.files import write_text

if TYPE_CHECKING:
    from sim.search import SearchResult
    from sim.specs import Scenario


def report(
    scenario: ScenarioFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="HTML", help="Where to write it.")] = Path(
        "report.html"
    ),
    with_search: Annotated[bool, typer.Option("--search/--no-search", help="Also look for better plans.")] = True,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
) -> None:
    """Write the answer and all that it rests on as one HTML file that needs nothing else, not even a network.

    Headline, the way from peak to what is achieved, memory, timeline, better plans, assumptions, how far to trust it,
    and the scenario to reproduce it.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"{output} must end in .html")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}, or it is a folder itself")
    from sim import estimate, load_scenario
    from sim.report.html.page import report_page

    question = load_scenario(scenario, overrides or (), profile)
    answer = estimate(question, engine)
    found, why = _search(question) if with_search else (None, "")
    page = report_page(answer, found, why)
    write_text(output, page)
    typer.echo(f"report: {output}  {len(page.encode()) / 1e3:,.0f} kB")
    answer.require_fit()


def _search(question: Scenario) -> tuple[SearchResult | None, str]:
    """The best plans on the same GPUs, or why there are none."""
    from sim.commands.progress import progress_bar
    from sim.search import search

    try:
        with progress_bar("plans priced") as progress:
            return search(question, progress=progress), ""
    except FlopcastError as error:
        return None, str(error)
