"""`flopcast search`: the best plan out of every plan there is, why not another, and the best as the machine changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import completion as complete
from sim.commands.options import Json, MemoryLimit, Overrides, ProfileOption, read_range
from sim.commands.output import print_json, print_view
from sim.commands.progress import progress_bar
from sim.commands.search_files import tell
from sim.commands.search_options import (
    check_files,
    check_numbers,
    check_together,
    load_with_fixed,
    read_degrees,
    read_fields,
    read_limit,
    read_ways,
    refuse_gone,
)
from sim.errors import InfeasiblePlan, SpecError

if TYPE_CHECKING:
    from sim.report.search_answers import SearchAnswers
    from sim.search import SearchResult
    from sim.specs import Scenario

BATCH = "training.global_batch_size"
TOP = 10
"""Plans that are shown unless more or fewer are asked for."""


def search(
    scenario: Annotated[Path, typer.Argument(help="A scenario in YAML; its plan, if any, says how many GPUs.")],
    more_fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="Further fields of --why.")
    ] = None,
    overrides: Overrides = None,
    gpus: Annotated[str | None, typer.Option(help="How many GPUs, such as 64..4096 or 1024.")] = None,
    objective: Annotated[str, typer.Option(help="step_time, days, cost or memory_headroom.")] = "step_time",
    max_gpus: Annotated[int | None, typer.Option(help="No plan of more GPUs.")] = None,
    memory_limit: MemoryLimit = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the scenario's.")] = None,
    cp: Annotated[
        str | None, typer.Option(help="Context-parallel degrees, such as 1,2,4; those with long pieces if not given.")
    ] = None,
    ep: Annotated[
        str | None, typer.Option(help="Expert-parallel degrees, such as 8,16,32; all that suit if not given.")
    ] = None,
    overlaps: Annotated[bool, typer.Option("--overlaps", help="Also switch the stack's overlaps on and off.")] = False,
    room: Annotated[
        str | None,
        typer.Option(
            metavar="WAYS",
            help="What plans may do that do not fit else: modules, block (layers), offload, or none; modules,block "
            "if not given.",
        ),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD[=VALUE]",
            help="Keep a field of the plan: tp=8, or tp for the scenario's own value; -s plan.tp=8 does the same.",
        ),
    ] = None,
    any_framework: Annotated[
        bool, typer.Option("--any-framework", help="Also plans that the scenario's framework cannot run.")
    ] = False,
    layouts: Annotated[
        bool | None,
        typer.Option(
            "--layouts/--no-layouts",
            help="Also deal layers so that no stage is slower than it must be; if the framework has it, unless said.",
        ),
    ] = None,
    windows: Annotated[
        bool, typer.Option("--windows", help="Also larger groups of micro-batches that visit a chunk (interleaved).")
    ] = False,
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
    top: Annotated[int, typer.Option(help="How many plans to show.")] = TOP,
    why: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Why not a plan with these fields: plan.tp=4; own: the scenario's."),
    ] = None,
    profile: ProfileOption = None,
    jobs: Annotated[str | None, typer.Option(hidden=True)] = None,
    save: Annotated[str | None, typer.Option(hidden=True)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the best plan as a scenario.")] = None,
    export_to: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FRAMEWORK",
            help="Also the best plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or deepspeed.",
            autocompletion=complete.frameworks_to_export_to,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Every feasible plan, memory-checked and ranked; the best confirmed by the exact engine."""
    from sim.search import schedules_named, search_schedules
    from sim.search import search as run
    from sim.search.explain import check_fields

    refuse_gone(save=save, jobs=jobs)
    if more_fields and not why:
        raise SpecError(f"{more_fields[0]!r} belongs to no option; write --why {' '.join(more_fields)}")
    schedules = schedules or ("all" if others else None)
    asked = {"--why": bool(why), "--rules": rules, "--sensitivity": sensitivity, "--pareto": pareto}
    instead = "--fields" if fields else "--sweep" if sweep else None
    check_together(
        instead,
        {
            **asked,
            "--schedules": schedules is not None,
            "-o": output is not None,
            "--export": export_to is not None,
            "--sweep": bool(sweep) and fields,
        },
        {
            "--top": top != TOP,
            "--figure": fields and figure is not None,
        },
    )
    check_numbers(top=top, max_gpus=max_gpus, batch=batch)
    check_files(
        {"--sweep": bool(sweep), "--sensitivity": sensitivity, "--pareto": pareto}, None if fields else figure, output
    )
    if export_to is not None:
        from sim.foreign.exporters import check_framework

        check_framework(export_to)
    if schedules is not None:
        schedules_named(schedules)  # a name that there is not is said at once
    own, named = read_fields((*(why or ()), *(more_fields or ())))
    check_fields(named, any_of_plan=own)
    given, fixed = load_with_fixed(scenario, overrides or (), fix or (), profile)
    original = given
    if export_to is not None:
        from sim.foreign.exporters import check_beside_plan

        check_beside_plan(given, export_to)
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
        gpus = gpus or (None if original.is_open else str(original.plan.num_gpus))
    options: dict[str, Any] = {
        "gpus": None if gpus is None else read_range(gpus),
        "max_gpus": max_gpus,
        "memory_limit_bytes": None if memory_limit is None else read_limit(memory_limit),
        "objective": objective,
        "overlaps": overlaps,
        "layouts": layouts,
        "windows": windows,
        "fixed": fixed,
        "any_framework": any_framework,
        "export_to": export_to,
    }
    if room is not None:
        options["room"] = read_ways(room)
    length, experts = (0, 0) if sweep else (given.training.sequence_length, given.model.num_experts)
    if cp is not None:
        options["context"] = read_degrees(cp, "--cp", length, f"sequence of {length:,} tokens")
    if ep is not None:
        options["experts"] = read_degrees(ep, "--ep", experts, f"{experts:,} experts")
    if sweep:
        if batch is not None and any(word.startswith(BATCH) for word in sweep):
            raise SpecError(f"{BATCH} is swept and given at once; leave --batch out")
        _sweep(given, sweep, options, figure, as_json)
        return
    with progress_bar("plans priced") as progress:
        result = run(given, top=top, progress=progress, require_fit=schedules is None, **options)
    if schedules is not None and result.finished:  # who stops the one does not begin the other
        with progress_bar("schedules searched") as progress:
            result = search_schedules(result, schedules, progress=progress)
    if original.is_open and own:
        raise SpecError("--why own speaks of the scenario's own plan, and it has none; name fields of one instead")
    answers = _answer(result, None if batch is not None or original.is_open else original, own, named, asked)
    tell(answers, output, figure, export_to, as_json)
    if answers.unanswered or not result.finished or any(each.interrupted for each in result.schedules):
        raise KeyboardInterrupt


def _answer(
    result: SearchResult, original: Scenario | None, own: bool, named: dict[str, Any], asked: dict[str, bool]
) -> SearchAnswers:
    """Answer what was asked beside the best plans, up to the first question that an interrupt leaves open."""
    from sim.report.search_answers import SearchAnswers
    from sim.search import megatron_rules, rank_plan, why_not
    from sim.search import sensitivity as cost_of_values

    found = SearchAnswers(result, named)
    open_questions = [word for word, on in asked.items() if on]
    if not result.finished:  # who stops a search does not wait for more
        return replace(found, unanswered=next(iter(open_questions), None))
    word = "the scenario's own plan"
    try:
        if original is not None:
            changed = original.replace(plan=original.plan.replace(**named)) if own and named else original
            found = replace(found, own=rank_plan(result, changed, steps=own), own_asked=own)
        for word in open_questions:
            if word == "--why" and not own:
                found = replace(found, why=why_not(result, named))
            elif word == "--rules":
                found = replace(found, rules=megatron_rules(result))
            elif word == "--sensitivity":
                with progress_bar("values looked at") as progress:
                    found = replace(found, sensitivity=cost_of_values(result, progress=progress))
            elif word == "--pareto":
                found = replace(found, pareto=True)
    except KeyboardInterrupt:
        return replace(found, unanswered=word)
    return found


def _sweep(scenario: Scenario, words: list[str], options: dict[str, Any], figure: Path | None, as_json: bool) -> None:
    """Answer --sweep."""
    from sim.search import sweep

    with progress_bar("points searched") as progress:
        swept = sweep(scenario, words, progress=progress, **options)
    if as_json:
        print_json({"sweep": swept.to_dict()})
    else:
        from sim.report.sweep import sweep_view

        print_view(sweep_view(swept))
    if figure is not None:
        from sim.report.figures import save

        save(swept.plot(), [figure])
        if not as_json:
            typer.echo(f"\nDrawn: {figure}")
    if not swept.finished:
        raise KeyboardInterrupt
    if all(point.best is None for point in swept.points):
        raise InfeasiblePlan("no point of the sweep has a plan that can be run; why not is said at each")


def _print_fields(scenario: Scenario, as_json: bool) -> None:
    """Answer --fields."""
    from sim.search.axes import sweepable

    fields = sweepable(scenario)
    if as_json:
        print_json({"fields": [{"path": each.path, "unit": each.unit, "value": each.value} for each in fields]})
    else:
        from sim.report.sweep import fields_view

        print_view(fields_view(fields))
