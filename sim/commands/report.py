"""`flopcast report`: an answer, or several side by side, as one file to hand on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sim.commands.options import Engine, Overrides, ProfileOption
from sim.commands.progress import progress_bar
from sim.errors import FlopcastError, InfeasiblePlan, SpecError
from sim.files import write_text
from sim.search import search
from sim.search.grid import own_axes, price_grid, read_axes

if TYPE_CHECKING:
    from sim.report.html.comparison import Asked

_OWN = re.compile(r"@(?=[A-Za-z_][\w.]*=)")
"""Where a file's name ends and an override of its own begins."""


def report(
    scenarios: list[str],
    *,
    output: Path = Path("report.html"),
    with_search: bool | None = None,
    with_sliders: bool | None = None,
    slider: list[str] | None = None,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
) -> None:
    """Write the answer and all that it rests on as one HTML file that needs nothing else, not even a network.

    Headline, the way from peak to what is achieved, memory, sliders over what else the plan could be, timeline, better
    plans, assumptions, how far to trust it, and the scenario to reproduce it. Several scenarios stand side by side,
    with what sets them apart by cause, and what was asked differently; --set applies to all of them.

    scenarios SCENARIO : Scenarios in YAML; - reads one from a pipe. FILE@FIELD=VALUE overrides a field of that one
        alone.
    output --output -o HTML : Where to write it.
    with_search --search/--no-search : Also look for better plans; for one scenario only.
    with_sliders --sliders/--no-sliders : Also estimate the plan with other numbers, for sliders; for one scenario only.
    slider FIELD=VALUES : A slider instead of the usual ones, such as plan.tp=1,2,4,8; may be repeated.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"{output} must end in .html")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}, or it is a folder itself")
    if len(scenarios) > 1:
        named = {"--search": with_search, "--sliders": with_sliders, "--slider": slider}
        given = next((option for option, value in named.items() if value), None)
        if given is not None:
            raise SpecError(f"{given} is for the report of one scenario; give one, or leave {given} out")
        _several(scenarios, output, overrides or (), engine, profile)
        return
    if with_sliders is False and slider:
        raise SpecError("--slider names a slider and --no-sliders leaves them out; give one of the two")
    from sim import estimate, load_scenario
    from sim.report.html.page import report_page

    path, own = split_scenario(scenarios[0])
    question = load_scenario(path, (*(overrides or ()), *own), profile)
    answer = estimate(question, engine)
    # Events are played one by one: as many estimates as sliders take are asked for, or not made.
    wanted = with_sliders if with_sliders is not None else bool(slider) or engine == "dag"
    axes = (read_axes(question, slider) if slider else own_axes(question)) if wanted else ()
    grid, found, why = None, None, ""
    if axes:  # else nothing can be changed
        with progress_bar("combinations estimated") as progress:
            grid = price_grid(question, axes, engine, progress)
    try:
        if with_search is not False:
            with progress_bar("plans priced") as progress:
                found = search(question, progress=progress)
    except FlopcastError as error:
        why = str(error)
    _write(output, report_page(answer, found, why, grid))
    answer.require_fit()


def split_scenario(text: str) -> tuple[str, list[str]]:
    """A file, and overrides of its own: `a.yaml@plan.tp=4@plan.dp=2`. A file of that very name is meant as it is."""
    try:
        if Path(text).exists():
            return text, []
    except (OSError, ValueError):  # no name of a file; reading it says so
        pass
    path, *own = _OWN.split(text)
    return path, own


def _write(output: Path, page: str) -> None:
    write_text(output, page)
    typer.echo(f"report: {output}  {len(page.encode()) / 1e3:,.0f} kB")


def _several(
    scenarios: Sequence[str], output: Path, overrides: Sequence[str], engine: str, profile: str | None
) -> None:
    """The comparison; afterwards the mistake of the first that has no answer, or does not fit, goes its way."""
    from sim.report.html.comparison import comparison_page

    asked = _asked(scenarios, overrides, engine, profile)
    broken = [each for each in asked if each.mistake is not None]
    mistakes = "\n".join(f"{each.label}: {each.mistake}" for each in broken)
    if len(broken) == len(asked):
        raise SpecError(mistakes)
    _write(output, comparison_page(asked))
    if broken:
        raise SpecError(mistakes)
    for each in asked:
        try:
            if each.answer is not None:
                each.answer.require_fit()
        except InfeasiblePlan as error:
            raise InfeasiblePlan(f"{each.label}: {error}") from None


def _asked(scenarios: Sequence[str], overrides: Sequence[str], engine: str, profile: str | None) -> list[Asked]:
    """Every scenario with its answer, or with why there is none; labels tell them apart."""
    from sim import estimate, load_scenario
    from sim.report.html.comparison import Asked

    pairs = [split_scenario(text) for text in scenarios]
    if sum(path == "-" for path, _ in pairs) > 1:
        raise SpecError("- reads one scenario from a pipe; name files for the others")
    asked: list[Asked] = []
    for path, own in pairs:
        answer, mistake, name = None, None, Path(path).stem or path or "scenario"
        try:
            question = load_scenario(path, (*overrides, *own), profile)
            name = question.name
            answer = estimate(question, engine)
        except FlopcastError as error:
            mistake = error
        changes = [each.removeprefix("plan.") for each in own if not each.startswith("name=")]
        label = f"{name} with {', '.join(changes)}" if changes else name
        same = sum(each.label == label or each.label.startswith(f"{label} (") for each in asked)
        asked.append(Asked(f"{label} ({same + 1})" if same else label, answer, mistake))
    return asked
