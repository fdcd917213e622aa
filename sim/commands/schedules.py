"""The verbs that show schedules and timelines: schedule, timeline, compare-schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument

from sim.commands import options as opt
from sim.commands.progress import spinner
from sim.errors import ScheduleError, SpecError
from sim.schedules import build_order, format_grid, get_schedule, make_order, schedule_names
from sim.schedules.actions import read_grid
from sim.schedules.registry import is_file
from sim.specs import load_scenario

NEIGHBOURS, LINE = 3, 72
"""Lines around a mistake in a file that are shown, and how much of them."""
_NAME = "A schedule such as 1f1b, or a text file with a grid."


def schedule(
    name: Annotated[str, Argument(help=_NAME, show_default=False, autocompletion=opt.COMPLETED["schedule"])],
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    group: int | None = None,
    slices: int | None = None,
    stages: int | None = None,
    batches: int | None = None,
    as_json: opt.AsJson = False,
) -> None:
    """What each pipeline rank does, in order, as a text grid: 2F0 is the forward of micro-batch 0 on stage 2.

    F forward, B backward, I and W its input- and weight-gradient halves, U a weight update.

    ranks : Pipeline ranks; 4 if not given.
    microbatches : Micro-batches; 8 if not given.
    chunks : Model chunks a rank; 2 for schedules that need several if not given.
    group : Micro-batches that visit a chunk in turn (interleaved).
    slices : Slices of each sequence (seq1f1b).
    stages : Stages of an incomplete last round (modular).
    batches : Batches of a schedule without flush.
    """
    options: dict[str, Any] = {"group": group, "slices": slices, "stages": stages, "batches": batches}
    if is_file(name) or (name not in schedule_names() and Path(name).is_file()):
        given = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks, **options}
        wrong = [f"--{option}" for option, value in given.items() if value is not None]
        if wrong:
            raise SpecError(f"{name!r} is a grid, which has its own sizes; leave {' and '.join(wrong)} out")
        try:
            grid = read_grid(name)
        except ScheduleError as error:
            raise ScheduleError(f"{error}{_place_in_file(Path(name), str(error))}") from None
        everything = [action for row in grid for action in row]
        stages = max(action.stage for action in everything) + 1
        order = make_order(name, grid, stages, max(action.microbatch for action in everything) + 1)
    else:
        chosen = get_schedule(name)
        needed = chosen.chunks if isinstance(chosen.chunks, int) else 2 if chosen.interleaves else 1
        sizes = (4 if ranks is None else ranks, needed if chunks is None else chunks)
        order = build_order(name, *sizes, 8 if microbatches is None else microbatches, **options)
    if as_json:
        opt.print_json({"schedule": name, "ranks": [[str(action) for action in row] for row in order.actions]})
    else:
        typer.echo(format_grid(order.actions))


def _place_in_file(path: Path, message: str) -> str:
    """The lines of a grid around the one that a message names, with an arrow before the cell it names."""
    found = re.search(r"line (\d+): '([^']+)' is not an action", message)
    if found is None:
        return ""
    number, cell = int(found[1]) - 1, found[2]
    lines = path.read_text(encoding="utf-8").splitlines()
    first = max(0, number - NEIGHBOURS)
    shown = lines[first : number + NEIGHBOURS + 1]
    at = lines[number].find(cell)
    begin = max(0, at - LINE // 2)
    shown[number - first] = f"{lines[number][:at]}→{lines[number][at:]}"
    return "".join(f"\n{first + index + 1:>4} | {line[begin : begin + LINE]}" for index, line in enumerate(shown))


def timeline(
    scenario: opt.ScenarioFile,
    *,
    png: opt.Png = None,
    svg: opt.Svg = None,
    trace: Path | None = None,
    begin: float | None = None,
    end: float | None = None,
    overrides: opt.Overrides = None,
    engine: opt.Engine = "dag",
    profile: opt.ProfileOption = None,
) -> None:
    """When each pipeline rank does what in a step: a Gantt chart in the terminal, as a figure, or as a trace.

    A figure of a step too long to be read shows its beginning and its end; --from and --to show another part.

    trace FILE : Write a Chrome trace for ui.perfetto.dev.
    begin --from SECONDS : Show the step from here.
    end --to SECONDS : Show the step up to here.
    """
    from sim.report.figures import check_paths, save
    from sim.report.gantt import gantt_figure, gantt_text, step_view, write_trace

    figures = opt.figure_paths(png, svg)
    if trace is not None:
        check_paths([trace], (".json",))
        if begin is not None or end is not None:
            raise SpecError("a trace holds the whole step; leave --from and --to out, or write a figure")
    view = step_view(load_scenario(scenario, overrides or (), profile).require_plan(), engine)
    if figures:
        save(gantt_figure(view, between=(begin, end)), figures)
    count = 0 if trace is None else write_trace(view, trace)
    for path in figures:
        typer.echo(f"figure: {path}")
    if trace is not None:
        typer.echo(f"trace: {trace}  {count:,} events; open it at https://ui.perfetto.dev")
    if not figures and trace is None:
        from sim.report.terminal import console

        out = console()
        out.print(gantt_text(view, out.width, (begin, end)), no_wrap=True, overflow="ignore", crop=False)


def compare_schedules(
    scenario: opt.ScenarioFile,
    *,
    schedules: str | None = None,
    png: opt.Png = None,
    svg: opt.Svg = None,
    overrides: opt.Overrides = None,
    engine: opt.Engine = "dag",
    profile: opt.ProfileOption = None,
    as_json: opt.AsJson = False,
) -> None:
    """One scenario under every schedule: step time, bubble, memory, weight versions, bytes on each network, staleness.

    A schedule that needs several chunks a rank gets two (modular a layer a chunk), one that cuts sequences four slices,
    where the plan sets nothing else; the table says so. What the scenario cannot take is listed with the reason.

    schedules NAME,NAME… : Which schedules; all if not given.
    """
    from sim.report.figures import save
    from sim.report.gantt import comparison_figure, step_view
    from sim.report.schedules import compare_schedules as compare
    from sim.report.schedules import comparison_view

    figures = opt.figure_paths(png, svg)
    names = None if schedules is None else [name.strip() for name in schedules.split(",") if name.strip()]
    if names == []:
        raise SpecError("--schedules is empty; name some, such as 1f1b,zb_v, or leave it out for all")
    question = load_scenario(scenario, overrides or (), profile).require_plan()
    with spinner("schedules") as report:
        comparison = compare(question, names, engine, report)
        if figures:
            views = []
            for row in comparison.rows:
                report(f"{row.name}, drawn")
                views.append(step_view(row.answer.scenario, engine, row.answer))
            drawing = comparison_figure(views)
            report("figure")
            save(drawing, figures)
    opt.print_answer(as_json, comparison.to_dict, lambda: comparison_view(comparison))
    for path in figures:
        typer.echo(f"figure: {path}", err=as_json)
