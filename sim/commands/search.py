"""`flopcast search`: the best plan out of every plan there is, why not another, and the best as the machine changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sim.commands import options
from sim.commands.fills import with_records
from sim.commands.options import Json, Overrides, ProfileOption, Verbose, print_answer
from sim.commands.progress import progress_bar
from sim.commands.search_options import (
    Questions,
    SpaceOptions,
    check_numbers,
    load_with_fixed,
    read_fields,
    refuse_gone,
)
from sim.errors import InfeasiblePlan, SpecError
from sim.files import write_text

if TYPE_CHECKING:
    from sim.report.search import SearchAnswers
    from sim.search import SearchResult
    from sim.specs import Scenario

BATCH = "training.global_batch_size"


@with_records
def search(
    *,
    scenario: Annotated[Path, Argument(help="A scenario in YAML; its plan, if any, says how many GPUs.")],
    more_fields: Annotated[
        list[str] | None, Argument(metavar="[FIELD=VALUE]...", help="Further fields of --why.")
    ] = None,
    overrides: Overrides = None,
    space: SpaceOptions,
    questions: Questions,
    profile: ProfileOption = None,
    jobs: Annotated[str | None, Option(hidden=True)] = None,
    save: Annotated[str | None, Option(hidden=True)] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Write the best plan as a scenario.")] = None,
    export_to: Annotated[
        str | None,
        Option(
            "--export",
            metavar="FRAMEWORK",
            help="Also the best plan as a framework's options: megatron-lm, megatron-bridge, torchtitan or deepspeed.",
            autocompletion=options.frameworks_to_export_to,
        ),
    ] = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Every feasible plan, memory-checked and ranked; the best confirmed by the exact engine."""
    from sim.foreign.exporters import check_beside_plan, check_framework
    from sim.search import search as run
    from sim.search.explain import check_fields
    from sim.search.risk import RANKED, at_risk, check_risk
    from sim.search.schedules.by_schedule import schedules_named, search_schedules

    refuse_gone(save=save, jobs=jobs)
    why, schedules = questions.why or [], questions.named_schedules
    if more_fields and not why:
        raise SpecError(f"{more_fields[0]!r} belongs to no option; write --why {' '.join(more_fields)}")
    questions.check(output, export_to)
    if questions.risk is not None:
        check_risk(questions.risk, space.space.keywords.get("objective", "step_time"))
    check_numbers(top=questions.top, max_gpus=space.space.keywords.get("max_gpus"), batch=space.batch)
    if export_to is not None:
        check_framework(export_to)
    if schedules is not None:
        schedules_named(schedules)  # a name that there is not is said at once
    own, named = read_fields((*why, *(more_fields or ())))
    check_fields(named, any_of_plan=own)
    original, fixed = load_with_fixed(scenario, overrides or (), space.fix or (), profile)
    if export_to is not None:
        check_beside_plan(original, export_to)
    if questions.fields:
        _print_fields(original, as_json)
        return
    given = original
    if space.batch is not None:
        if own:
            raise SpecError("--why own speaks of the scenario's own batch; leave --batch out")
        given = original.replace(
            training=original.training.replace(global_batch_size=space.batch),
            plan=original.plan.replace(dp=1, ep=1, microbatch_size=1),
        )
    options = {**space.arguments(given, bool(questions.sweep)), "fixed": fixed, "export_to": export_to}
    if space.batch is not None and not original.is_open:
        options.setdefault("gpus", (original.plan.num_gpus,) * 2)
    if questions.sweep:
        if space.batch is not None and any(word.startswith(BATCH) for word in questions.sweep):
            raise SpecError(f"{BATCH} is swept and given at once; leave --batch out")
        _sweep(given, questions.sweep, options, questions.figure, as_json)
        return
    with progress_bar("plans priced") as progress:
        top = questions.top if questions.risk is None else max(questions.top, RANKED)
        result = run(given, top=top, progress=progress, require_fit=schedules is None, **options)
    if schedules is not None and result.finished:  # who stops the one does not begin the other
        with progress_bar("schedules searched") as progress:
            result = search_schedules(result, schedules, progress=progress)
    if questions.risk is not None and result.best:
        result = at_risk(result, questions.risk, questions.top)
    if original.is_open and own:
        raise SpecError("--why own speaks of the scenario's own plan, and it has none; name fields of one instead")
    ranked = None if space.batch is not None or original.is_open else original
    answers = _answer(result, ranked, own, named, questions.asked)
    tell(answers, output, questions.figure, export_to, as_json, verbose)
    if answers.unanswered or not result.finished or any(each.interrupted for each in result.schedules):
        raise KeyboardInterrupt


def _answer(
    result: SearchResult, original: Scenario | None, own: bool, named: dict[str, Any], asked: dict[str, bool]
) -> SearchAnswers:
    """Answer what was asked beside the best plans, up to the first question that an interrupt leaves open."""
    from sim.report.search import SearchAnswers
    from sim.search.explain import rank_plan, why_not
    from sim.search.rules import megatron_rules
    from sim.search.sensitivity import sensitivity as cost_of_values

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
    from sim.report.figures import save
    from sim.report.sweep import sweep_view
    from sim.search.sweep import sweep

    with progress_bar("points searched") as progress:
        swept = sweep(scenario, words, progress=progress, **options)
    print_answer(as_json, lambda: {"sweep": swept.to_dict()}, lambda: sweep_view(swept))
    if figure is not None:
        save(swept.plot(), [figure])
        if not as_json:
            typer.echo(f"\nDrawn: {figure}")
    if not swept.finished:
        raise KeyboardInterrupt
    if all(point.best is None for point in swept.points):
        raise InfeasiblePlan("no point of the sweep has a plan that can be run; why not is said at each")


def _print_fields(scenario: Scenario, as_json: bool) -> None:
    """Answer --fields."""
    from sim.report.sweep import fields_view
    from sim.search.axes import sweepable

    fields = sweepable(scenario)
    rows = [{"path": each.path, "unit": each.unit, "value": each.value} for each in fields]
    print_answer(as_json, lambda: {"fields": rows}, lambda: fields_view(fields))


def tell(
    answers: SearchAnswers,
    output: Path | None,
    figure: Path | None,
    export_to: str | None,
    as_json: bool,
    verbose: bool = False,
) -> None:
    """Print all answers, then write the files that were asked for: what was found is said before one can go wrong."""
    from sim.commands.export import print_exported
    from sim.foreign.exporters import export_scenario
    from sim.report.figures import save

    best, drawn = answers.result.best[0].scenario, None
    exported = None if export_to is None else export_scenario(best, export_to)
    data = {} if exported is None else {"export": exported.to_dict()}
    print_answer(as_json, lambda: {**answers.to_dict(), **data}, lambda: partial(answers.view, verbose=verbose))
    if output is not None:
        write_scenario(output, best)
    if figure is not None and (drawn := answers.figure()) is not None:
        save(drawn, [figure])
    if not as_json and output is not None:
        typer.echo(f"\nThe best plan is in {output}; flopcast export {output} --to FRAMEWORK writes it for one")
    if not as_json and drawn is not None:
        typer.echo(f"\nDrawn: {figure}")
    if exported is not None and not as_json:
        typer.echo()
        print_exported(exported)
    if answers.unanswered:
        open_question = f"Interrupted at {answers.unanswered}: it is not answered, nor what comes after it"
        typer.secho(open_question, err=True, fg="red")


def write_scenario(path: Path, scenario: Scenario) -> None:
    """A scenario file: presets by their names, and what differs from them."""
    from sim.specs.writing import scenario_yaml

    said = "Best plan of a search."
    of_whom = scenario.description.removeprefix(said).strip()
    described = scenario.replace(description=f"{said} {of_whom}".strip())
    write_text(path, scenario_yaml(described), "; make room there, or name another file")
