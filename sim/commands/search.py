"""`flopcast search`: the best plan out of every plan there is, why not another, and the best as the machine changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.progress import progress_bar
from sim.commands.search_words import read_degrees, read_fields, read_range, write_scenario
from sim.errors import SpecError


def search(
    scenario: Annotated[Path, typer.Argument(help="A scenario in YAML; its plan says how many GPUs.")],
    more_fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Further fields of --why.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="FIELD=VALUE", help="Override a field; may be repeated.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="How many GPUs, such as 64..4096 or 1024.")] = None,
    objective: Annotated[str, typer.Option(help="step_time, days, cost or memory_headroom.")] = "step_time",
    max_gpus: Annotated[int | None, typer.Option(help="No plan of more GPUs.")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Of one GPU, such as 72 GB; all it has if not given.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the scenario's.")] = None,
    cp: Annotated[
        str | None, typer.Option(help="Context-parallel degrees, such as 1,2,4; those with long pieces if not given.")
    ] = None,
    ep: Annotated[
        str | None, typer.Option(help="Expert-parallel degrees, such as 8,16,32; all that suit if not given.")
    ] = None,
    overlaps: Annotated[bool, typer.Option("--overlaps", help="Also switch the stack's overlaps on and off.")] = False,
    schedules: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Also the best plan of each of these schedules, such as zb_v,zb_h1, or all."
        ),
    ] = None,
    others: Annotated[bool, typer.Option("--others", hidden=True, help="Short for --schedules all.")] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also the plans that none beats in time, memory, GPUs and cost at once.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also what each tp, pp, micro-batch and so on costs, and why.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Also what Megatron's rules of thumb would choose, and what that costs.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES",
            help="Instead: the best plan as a number of the scenario changes (a..b, a..b:N or a,b,c with units); "
            "twice for a map.",
        ),
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="Instead: the numbers that --sweep may go over.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw --sweep, --sensitivity or --pareto here (.png, .svg).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many plans to show.")] = 10,
    why: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Why not a plan with these fields: plan.tp=4; own: the scenario's."),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile's name or YAML file.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that price; as many as pay if not given.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Folder for the table of all plans, in Parquet; an interrupted search goes on.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the best plan as a scenario.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Every feasible plan, memory-checked and ranked; the best confirmed by the exact engine."""
    from sim.search import schedules_named, search_schedules
    from sim.search import search as run
    from sim.specs import load_scenario
    from sim.units import parse

    if more_fields and not why:
        raise SpecError(f"{more_fields[0]!r} belongs to no option; write --why {' '.join(more_fields)}")
    schedules = schedules or ("all" if others else None)
    asked = {"--pareto": pareto, "--sensitivity": sensitivity, "--rules": rules, "--why": bool(why),
             "--schedules": schedules is not None, "-o": output is not None}  # fmt: skip
    _check_words(asked, bool(sweep), figure, output)
    if schedules is not None:
        schedules_named(schedules)  # a name that there is not is said at once
    own, named = read_fields((*(why or ()), *(more_fields or ())))
    given = original = load_scenario(scenario, overrides or (), profile)
    if fields:
        _print_fields(original, as_json)
        return
    if batch is not None:
        if own:
            raise SpecError("--why own speaks of the scenario's own batch; leave --batch out")
        given = given.replace(
            training=given.training.replace(global_batch_size=batch),
            plan=given.plan.replace(dp=1, ep=1, microbatch_size=1),
        )
        gpus = gpus or str(original.plan.num_gpus)
    options: dict[str, Any] = {
        "gpus": None if gpus is None else read_range(gpus),
        "max_gpus": max_gpus,
        "memory_limit_bytes": None if memory_limit is None else parse(memory_limit, "bytes"),
        "objective": objective,
        "overlaps": overlaps,
    }
    for name, option, degrees in (("context", "--cp", cp), ("experts", "--ep", ep)):
        if degrees is not None:
            options[name] = read_degrees(degrees, option)
    if sweep:
        _sweep(given, sweep, options, figure, as_json)
        return
    with progress_bar("plans priced") as progress:
        result = run(given, top=top, progress=progress, jobs=jobs, save=save, **options)
    if schedules is not None and result.finished:  # who stops the one does not begin the other
        with progress_bar("schedules searched") as progress:
            result = search_schedules(result, schedules, progress=progress)
    answers = _answers(result, None if batch is not None else original, own, named, asked)
    if output is not None:
        write_scenario(output, result.best[0].scenario)
    if figure is not None:
        _draw(result, answers, figure)
    if as_json:
        from sim.commands.search_json import as_data

        typer.echo(json.dumps(as_data(result, named, answers), indent=2, allow_nan=False))
        return
    from sim.report.search_answers import print_answers
    from sim.report.text import console

    out = console()
    print_answers(out, result, named, answers)
    if output is not None:
        out.print(f"\nThe best plan is in {output}")
    if figure is not None:
        out.print(f"\nDrawn: {figure}")


def _check_words(asked: dict[str, bool], sweep: bool, figure: Path | None, output: Path | None) -> None:
    """Refuse what cannot be answered together, or written, before any work is done."""
    if output is not None and not output.parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    beside = [word for word, on in asked.items() if on]
    if sweep and beside:
        raise SpecError(f"--sweep asks another question than {' and '.join(beside)}; ask them one after the other")
    if figure is not None:
        from sim.report.figures import check_paths

        drawn = [word for word in ("--pareto", "--sensitivity") if asked[word]] + ["--sweep"] * sweep
        if len(drawn) != 1:
            found = " and ".join(drawn) if drawn else "none of them"
            raise SpecError(f"--figure draws one of --sweep, --sensitivity and --pareto, but there is {found}")
        check_paths([figure])


def _answers(result: Any, original: Any, own: bool, named: dict[str, Any], asked: dict[str, bool]) -> dict[str, Any]:
    """What was asked beside the best plans, by name."""
    from sim.search import megatron_rules, standing_of, why_not
    from sim.search import sensitivity as cost_of_values
    from sim.search.why import check_fields

    found: dict[str, Any] = {}
    if original is not None:
        check_fields(named)
        changed = original.replace(plan=original.plan.replace(**named)) if own and named else original
        found["own"] = standing_of(result, changed, steps=own)
        found["own_asked"] = own
    if asked["--why"] and not own:
        found["why"] = why_not(result, named)
    if asked["--pareto"]:
        found["pareto"] = True
    if asked["--sensitivity"]:
        with progress_bar("values looked at") as progress:
            found["sensitivity"] = cost_of_values(result, progress=progress)
    if asked["--rules"]:
        found["rules"] = megatron_rules(result)
    return found


def _sweep(scenario: Any, words: list[str], options: dict[str, Any], figure: Path | None, as_json: bool) -> None:
    from sim.search import sweep

    with progress_bar("points searched") as progress:
        swept = sweep(scenario, words, progress=progress, **options)
    if figure is not None:
        from sim.report.figures import save

        save(swept.plot(), [figure])
    if as_json:
        typer.echo(json.dumps({"sweep": swept.to_dict()}, indent=2, allow_nan=False))
        return
    from sim.report.sweep import sweep_view
    from sim.report.text import console

    out = console()
    out.print(sweep_view(swept))
    if figure is not None:
        out.print(f"\nDrawn: {figure}")


def _draw(result: Any, answers: dict[str, Any], figure: Path) -> None:
    from sim.report.figures import save
    from sim.report.search_figures import draw_pareto, draw_sensitivity

    drawn = draw_sensitivity(result, answers["sensitivity"]) if "sensitivity" in answers else draw_pareto(result)
    save(drawn, [figure])


def _print_fields(scenario: Any, as_json: bool) -> None:
    from sim.search.axes import sweepable

    fields = sweepable(scenario)
    if as_json:
        rows = [{"path": each.path, "unit": each.unit, "value": each.value} for each in fields]
        typer.echo(json.dumps({"fields": rows}, indent=2, allow_nan=False))
        return
    from sim.report.sweep import fields_view
    from sim.report.text import console

    console().print(fields_view(fields))
