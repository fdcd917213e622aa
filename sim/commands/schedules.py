"""The verbs that show schedules and timelines: schedule, timeline, compare-schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from sim.commands import options as opt
from sim.commands.progress import spinner
from sim.errors import ScheduleError, SpecError
from sim.schedules import build_order, format_grid, get_schedule, make_order, schedule_names
from sim.schedules.actions import read_grid
from sim.schedules.registry import is_file
from sim.specs import Scenario

NEIGHBOURS, LINE = 3, 72
"""Lines around a mistake in a file that are shown, and how much of them."""


def schedule(
    schedule: str,
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    group: int | None = None,
    slices: int | None = None,
    stages: int | None = None,
    batches: int | None = None,
) -> opt.Answer:
    """What each pipeline rank does, in order, as a text grid: 2F0 is the forward of micro-batch 0 on stage 2.

    F forward, B backward, I and W its input- and weight-gradient halves, U a weight update.

    schedule NAME : A schedule such as 1f1b, or a text file with a grid.
    ranks : Pipeline ranks; 4 if not given.
    microbatches : Micro-batches; 8 if not given.
    chunks : Model chunks a rank; 2 for schedules that need several if not given.
    group : Micro-batches that visit a chunk in turn (interleaved).
    slices : Slices of each sequence (seq1f1b).
    stages : Stages of an incomplete last round (modular).
    batches : Batches of a schedule without flush.
    """
    name = schedule
    options: dict[str, Any] = {"group": group, "slices": slices, "stages": stages, "batches": batches}
    if is_file(name) or (name not in schedule_names() and Path(name).is_file()):
        given = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks, **options}
        if wrong := [f"--{option}" for option, value in given.items() if value is not None]:
            raise SpecError(f"{name!r} is a grid, which has its own sizes; leave {' and '.join(wrong)} out")
        try:
            grid = read_grid(name)
        except ScheduleError as error:
            raise ScheduleError(f"{error}{_place_in_file(Path(name), str(error))}") from None
        everything = [action for row in grid for action in row]
        sizes = (max(getattr(action, of) for action in everything) + 1 for of in ("stage", "microbatch"))
        order = make_order(name, grid, *sizes)
    else:
        chosen = get_schedule(name)
        needed = chosen.chunks if isinstance(chosen.chunks, int) else 2 if chosen.interleaves else 1
        sizes_of_plan = (4 if ranks is None else ranks, needed if chunks is None else chunks)
        order = build_order(name, *sizes_of_plan, 8 if microbatches is None else microbatches, **options)
    data = {"schedule": name, "ranks": [[str(action) for action in row] for row in order.actions]}
    return opt.Answer(lambda: data, lambda: [format_grid(order.actions)])


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
    scenario: Scenario,
    *,
    figure: Path | None = None,
    trace: Path | None = None,
    begin: float | None = None,
    end: float | None = None,
) -> None:
    """When each pipeline rank does what in a step: a Gantt chart in the terminal, as a figure, or as a trace.

    trace FILE : Write a Chrome trace for ui.perfetto.dev.
    begin --from SECONDS : Show the step from here.
    end --to SECONDS : Show the step up to here.
    """
    from sim.report.figures import save
    from sim.report.gantt import gantt_figure, gantt_text, step_view, write_trace

    for path, endings in ((figure, opt.TARGETS["figure"]), (trace, opt.TARGETS["trace"])):
        if path is not None:
            opt.check_target(path, endings)
    if trace is not None and (begin is not None or end is not None):
        raise SpecError("a trace holds the whole step; leave --from and --to out, or write a figure")
    view = step_view(scenario.require_plan())
    if figure is not None:
        save(gantt_figure(view, between=(begin, end)), figure)
        typer.echo(f"figure: {figure}")
    if trace is not None:
        typer.echo(f"trace: {trace}  {write_trace(view, trace):,} events; open it at https://ui.perfetto.dev")
    if figure is None and trace is None:
        opt.print_view([lambda width: gantt_text(view, width, (begin, end))])


def compare_schedules(scenario: Scenario, *, schedules: str | None = None, figure: Path | None = None) -> opt.Answer:
    """One scenario under every schedule: step time, bubble, memory, weight versions, bytes on each network, staleness.

    A schedule that needs several chunks a rank gets two (modular a layer a chunk), one that cuts sequences four slices,
    where the plan sets nothing else; the table says so. What the scenario cannot take is listed with the reason.

    schedules NAME,NAME… : Which schedules; all if not given.
    """
    from sim.report.gantt import comparison_figure, step_view
    from sim.report.schedules import compare_schedules as compare
    from sim.report.schedules import comparison_view

    names = None if schedules is None else [name.strip() for name in schedules.split(",") if name.strip()]
    if names == []:
        raise SpecError("--schedules is empty; name some, such as 1f1b,zb_v, or leave it out for all")
    with spinner("schedules") as report:
        comparison = compare(scenario.require_plan(), names, report)

    def drawn() -> Any:
        return comparison_figure([step_view(row.answer) for row in comparison.rows])

    return opt.Answer(comparison.to_dict, lambda: [comparison_view(comparison)], figure=drawn)
