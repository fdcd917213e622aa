"""`flopcast search`: the best plan out of every plan there is, why not another, and the best as the machine changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sim.commands import options as opt
from sim.commands.files import Kept
from sim.commands.fills import Fills, Opt
from sim.commands.progress import progress_bar, spinner
from sim.errors import FlopcastError, InfeasiblePlan, SpecError
from sim.foreign.exporters import check_beside_plan
from sim.search import SearchResult
from sim.search import search as run
from sim.search.by_schedule import schedules_named, search_schedules
from sim.search.explain import check_fields, rank_plan, why_not
from sim.search.fields import as_fixed, read_words
from sim.search.risk import RANKED, at_risk, check_risk
from sim.search.room import check_ways
from sim.search.sweep import SIZE, sweep
from sim.search.sweep import sensitivity as cost_of_values
from sim.specs import Scenario, load_scenario
from sim.units import parse_whole

if TYPE_CHECKING:
    from sim.report.search import SearchAnswers

BATCH = "training.global_batch_size"
OWN = "own"
"""The word in --why for the scenario's own plan. Fields beside it change that plan, and nothing is left free."""
TOP = 10
"""Plans that are shown unless more or fewer are asked for."""
SPACE = Fills(
    run,
    *("scenario", "top", "confirm", "fixed", "export_to", "progress", "require_fit"),
    gpus=Opt(read=lambda words, _: opt.read_range(words), help="Number of GPUs, such as 1024, or a range: 64..4096."),
    memory_limit_bytes=Opt(
        "--memory-limit",
        read=lambda words, _: opt.read_limit(words),
        help="Memory that a plan may use of a GPU, such as 72 GB; default: all the driver gives.",
    ),
    objective=Opt(help="What is best: step_time, days or cost."),
    room=Opt(
        read=lambda words, _: check_ways(words),
        default="modules,block",
        metavar="WAYS",
        help="How plans that do not fit may save memory: recompute some modules, recompute a block of layers, offload, "
        "or none.",
    ),
    layouts=Opt("--layouts/--no-layouts", help="Also balance layers over the stages; default: if the framework can."),
    any_framework=Opt("--any-framework", help="Also search plans that the scenario's framework cannot run."),
)


@dataclass(frozen=True, slots=True)
class Questions:
    """What else is asked about the plans, or instead of the best of them.

    schedules NAMES : Also show the best plan of each of these schedules, such as zb_v,zb_h1, or all.
    pareto : Also show the Pareto front of time, memory, GPUs and cost.
    sensitivity : Also show what each value of tp, pp and so on would cost, and why.
    sweep FIELD=VALUES : Show instead how the best plan changes with a number of the scenario: a..b, a..b:N or a,b,c.
        Twice to go over both.
    top : How many plans to show.
    risk : Rank by the step time that a plan stays below with this probability, such as 0.9, instead of by the expected
        one. Not together with --why, --sensitivity or --pareto.
    why FIELD=VALUE : Explain why a plan with this field is not the best: plan.tp=4, or own for the scenario's plan; may
        be repeated, and then asks of a plan with all of them. Not together with --risk.
    figure FILE : File for the figure of --sweep, --sensitivity or --pareto (.png, .svg).
    """

    schedules: str | None = None
    pareto: bool = False
    sensitivity: bool = False
    sweep: Sequence[str] = ()
    top: int = TOP
    risk: float | None = None
    why: Sequence[str] = ()
    figure: Path | None = None

    def check(self, kept: Kept) -> None:
        """Refuse what has nothing to say beside --sweep or --risk, and what cannot be answered."""
        asked = {"--why": bool(self.why), "--sensitivity": self.sensitivity, "--pareto": self.pareto}
        beside = {"--schedules": self.schedules is not None, "-o": kept.output is not None}
        beside |= {"--export": kept.export_to is not None, "--risk": self.risk is not None}
        about = [word for word, on in asked.items() if on]
        others = [*about, *(word for word, on in beside.items() if on)]
        if self.risk is not None and about:
            raise SpecError(
                f"--risk ranks plans by what they stay below, and {' and '.join(about)} compares expected step times; "
                "ask them one after the other"
            )
        if self.sweep and others:
            raise SpecError(f"--sweep asks another question than {' and '.join(others)}; ask them one after the other")
        if self.sweep and self.top != TOP:
            raise SpecError("--top would change nothing beside --sweep; leave out what does nothing")
        drawn = [*(["--sweep"] if self.sweep else []), *(word for word in about if word != "--why")]
        if self.figure is not None and len(drawn) != 1:
            there = " and ".join(drawn) if drawn else "none of them"
            raise SpecError(f"--figure draws one of --sweep, --sensitivity and --pareto, but there is {there}")
        opt.check_numbers(top=self.top)
        if self.risk is not None:
            check_risk(self.risk)
        if self.schedules is not None:
            schedules_named(self.schedules)  # a name that there is not is said at once


def search(
    scenario: Path,
    *,
    overrides: Sequence[str] = (),
    space: Annotated[partial[SearchResult], SPACE],
    questions: Questions,
    profile: str | None = None,
    kept: Kept,
    verbose: bool = False,
) -> opt.Answer:
    """Every feasible plan, memory-checked and ranked; the best confirmed by the exact engine.

    scenario : A scenario in YAML; its plan, if any, says how many GPUs.
    """
    questions.check(kept)
    why = [each for words in questions.why for each in words.split()]
    own = OWN in why
    given, fixed, size = _load(scenario, overrides, profile, own)
    if questions.why and not why:
        raise SpecError(f"--why names no field; write --why plan.tp=4, or --why {OWN} for the scenario's own plan")
    named = read_words(given, [each for each in why if each != OWN])
    check_fields(named, any_of_plan=own)
    if kept.export_to is not None:
        check_beside_plan(given, kept.export_to)
    options = {**space.keywords, "fixed": fixed, "export_to": kept.export_to}
    if size is not None and SIZE not in [word.partition("=")[0].strip() for word in questions.sweep]:
        options.setdefault("gpus", (size, size))
    if questions.sweep:
        return _sweep(given, questions.sweep, options)
    if given.is_open and own:
        raise SpecError("--why own speaks of the scenario's own plan, and it has none; name fields of one instead")
    result = _result(given, questions, options)
    ranked = None if given.is_open or size is not None else given
    answers = _answers(result, ranked, own, named, questions)
    best, view = result.best[0].scenario, partial(answers.view, verbose=verbose)
    return kept.answer(answers.to_dict, view, best, ranked, figure=answers.figure)


def _load(
    path: Path, overrides: Sequence[str], profile: str | None, own: bool
) -> tuple[Scenario, dict[str, Any], int | None]:
    """The scenario, the fields of plans that are kept, and how many GPUs its file's plan has where it has another.

    A batch that `--set` gives need not suit the scenario's own plan, unless that plan is asked about: it is searched.
    """
    of_batch = [each for each in overrides if each.partition("=")[0].strip() == BATCH]
    try:
        return *_load_with_fixed(path, overrides, profile), None
    except FlopcastError:
        if not of_batch or own:
            raise
    found, fixed = _load_with_fixed(path, [each for each in overrides if each not in of_batch], profile)
    batch = parse_whole(of_batch[-1].partition("=")[2].strip(), "global_batch_size")
    opt.check_numbers(batch=batch)
    size = None if found.is_open else found.plan.num_gpus
    training = found.training.replace(global_batch_size=batch)
    return found.replace(training=training, plan=found.plan.replace(dp=1, ep=1, microbatch_size=1)), fixed, size


def _load_with_fixed(path: Path, overrides: Sequence[str], profile: str | None) -> tuple[Scenario, dict[str, Any]]:
    """The scenario with its file's own plan, and the fields of plans that --set keeps."""
    of_plan = [each for each in overrides if each.startswith("plan.")]
    try:
        found = load_scenario(path, [each for each in overrides if each not in of_plan], profile)
    except FlopcastError:  # the file's own plan does not suit what else is set
        found = load_scenario(path, overrides, profile)
    return as_fixed(found, of_plan)


def _result(given: Scenario, questions: Questions, options: dict[str, Any]) -> SearchResult:
    """The best plans, those of other schedules beside them, and their ranking at risk where one is asked for."""
    top = questions.top if questions.risk is None else max(questions.top, RANKED)
    with progress_bar("plans priced") as progress:
        result = run(given, top=top, progress=progress, require_fit=questions.schedules is None, **options)
    if questions.schedules is not None:
        with progress_bar("schedules searched") as progress:
            result = search_schedules(result, questions.schedules, progress=progress)
    return result if questions.risk is None else at_risk(result, questions.risk, questions.top)


def _answers(
    result: SearchResult, original: Scenario | None, own: bool, named: dict[str, Any], questions: Questions
) -> SearchAnswers:
    """Answer what was asked beside the best plans."""
    from sim.report.search import SearchAnswers

    found = SearchAnswers(result, named, pareto=questions.pareto)
    with spinner("questions answered"):
        if original is not None:
            changed = original.replace(plan=original.plan.replace(**named)) if own and named else original
            found = replace(found, own=rank_plan(result, changed, steps=own), own_asked=own)
        if questions.why and not own:
            found = replace(found, why=why_not(result, named))
        return replace(found, sensitivity=cost_of_values(result) if questions.sensitivity else None)


def _sweep(scenario: Scenario, words: Sequence[str], options: dict[str, Any]) -> opt.Answer:
    """Answer --sweep."""
    from sim.report.search_questions import sweep_view

    with progress_bar("points searched") as progress:
        swept = sweep(scenario, words, progress=progress, **options)

    def require_all() -> None:
        if all(point.best is None for point in swept.points):
            raise InfeasiblePlan("no point of the sweep has a plan that can be run; why not is said at each")

    return opt.Answer(
        lambda: {"sweep": swept.to_dict()}, lambda: [sweep_view(swept)], after=require_all, figure=swept.plot
    )
