"""`flopcast report`: an answer and all that it rests on, as one file to hand on."""

from __future__ import annotations

from pathlib import Path

import typer

from sim.commands.options import check_target
from sim.commands.progress import progress_bar
from sim.errors import FlopcastError
from sim.files import write_text
from sim.search import search
from sim.specs import Scenario


def report(
    scenario: Scenario, *, output: Path = Path("report.html"), with_search: bool = True, engine: str = "dag"
) -> None:
    """Write the answer and all that it rests on as one HTML file that needs nothing else, not even a network.

    Headline, the way from peak to what is achieved, memory, timeline, better plans, assumptions, how far to trust it,
    and the scenario to reproduce it.

    output --output -o HTML : Where to write it.
    with_search --search/--no-search : Also look for better plans.
    """
    check_target(output, (".html", ".htm"))
    from sim import estimate
    from sim.report.html.page import report_page

    answer, found, why = estimate(scenario, engine), None, ""
    try:
        if with_search:
            with progress_bar("plans priced") as progress:
                found = search(scenario, progress=progress)
    except FlopcastError as error:
        why = str(error)
    page = report_page(answer, found, why)
    write_text(output, page)
    typer.echo(f"report: {output}  {len(page.encode()) / 1e3:,.0f} kB")
    answer.require_fit()
