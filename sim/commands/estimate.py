"""`flopcast estimate`, `compare`, `check`, `layout` and `report`: how long a step takes and why, is a run normal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sim.commands.options import Answer, check_target
from sim.commands.progress import progress_bar
from sim.errors import FlopcastError, SpecError
from sim.files import write_text
from sim.specs import ParallelPlan, Scenario, build_scenario, load_scenario
from sim.specs.framework_plans import broken_rules, framework_words, plan_rules, rules_of_scenario
from sim.units import listed, parse, show_time

if TYPE_CHECKING:
    from sim.estimate import Estimate
    from sim.foreign.logs import LoggedSteps

QUICK = 4096
"""GPUs up to which an estimate also looks for a faster plan, unasked: the search takes a second at most."""
WORTH = 0.1
"""Share of the step time that a faster plan must save to be told of."""


def estimate(
    scenario: Path,
    *,
    overrides: Sequence[str] = (),
    engine: str = "dag",
    profile: str | None = None,
    verbose: bool = False,
) -> Answer:
    """How long a step takes, how many FLOP/s that is, where the time goes, and whether it fits."""
    from sim import estimate as run

    given = load_scenario(scenario, overrides, profile)
    answer = run(given.replace(plan=_best_plan(given)) if given.is_open else given, engine)

    def views() -> Iterator[Any]:
        from sim.report.terminal import remarks
        from sim.report.text import estimate_view, opening

        yield opening(answer)
        searched = not given.is_open and engine == "dag" and answer.num_gpus <= QUICK
        asked = partial(_search_asked, scenario, overrides, profile, answer.num_gpus)
        if searched and given.cluster.node.cores is None and (words := _faster_plan(answer, asked)):
            yield remarks({"Would help": words})
        yield partial(estimate_view, answer, verbose=verbose)

    return Answer(answer.to_dict, views, (answer,))


def _search_asked(scenario: Path, overrides: Sequence[str], profile: str | None, num_gpus: int) -> str:
    """What a search is asked: a file, and what of it is overridden beside its plan, which a search would keep.

    Where the file's own plan has another number of GPUs, that of the answer; and no plan where it breaks a rule then.
    """
    kept = [each for each in overrides if not each.startswith("plan.")]
    size = num_gpus
    if len(kept) < len(overrides) and str(scenario) != "-":
        try:
            size = load_scenario(scenario, kept, profile).plan.num_gpus
        except FlopcastError:
            kept, size = [*kept, "plan="], 0
    words = [word for each in kept for word in ("-s", each)]
    words += ["--gpus", str(num_gpus)] if size != num_gpus else []
    return shlex.join([str(scenario), *words, *(("--profile", str(profile)) if profile else ())])


def _faster_plan(answer: Estimate, asked: Callable[[], str]) -> str:
    """A plan that is faster by a tenth or more, which a search finds; nothing where there is none.

    asked : gives what a search is asked, as one types it.
    """
    from sim.report.text import faster_words
    from sim.search import search

    scenario, stack = answer.scenario, answer.scenario.stack
    try:
        known = stack.framework if plan_rules(stack.framework) else None
        result = search(scenario, top=1, confirm=1, layouts=False, room=(), any_framework=True, export_to=known)
    except FlopcastError:
        return ""
    best = result.best[0].answer
    if 1.0 - best.step_time_s / answer.step_time_s < WORTH:
        return ""
    lacking, command = "", f"flopcast search {asked()}"
    if broken := broken_rules(best.scenario, rules_of_scenario(scenario)):
        why = listed(dict.fromkeys(rule.path for rule in broken), "and")
        lacking = f". {framework_words(stack.framework, stack.version)} cannot run it, because of {why}"
        command += " --any-framework"
    return faster_words(answer, best, lacking, command)


def _best_plan(scenario: Scenario) -> ParallelPlan:
    """The best plan of a scenario that has none, by a search of a second."""
    from sim.search import search

    result = search(scenario, top=1)
    found = result.best[0].scenario.plan
    typer.secho(
        f"{scenario.name} has no plan: this is the best of {result.plans_priced:,} on {found.num_gpus:,} GPUs "
        "(flopcast search)\n",
        err=True,
    )
    return found


def compare(
    first: str,
    second: str,
    *,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    verbose: bool = False,
) -> Answer:
    """Two scenarios side by side: what differs, and what it does. Overrides apply to both.

    first SCENARIO : A scenario in YAML; - reads it from a pipe. FILE@FIELD=VALUE overrides a field of this one alone.
    second SCENARIO : Another one, or the same file with overrides of its own: a.yaml a.yaml@plan.tp=4@plan.dp=2.
    """
    from sim import estimate as run
    from sim.report.text import compare_view

    pairs = [split_scenario(text) for text in (first, second)]
    if all(path == "-" for path, _ in pairs):
        raise SpecError("- reads one scenario from a pipe; name a file for the other")
    one, other = (run(load_scenario(path, (*overrides, *own), profile)) for path, own in pairs)
    view = partial(compare_view, one, other, verbose, [own for _, own in pairs])
    return Answer(lambda: [one.to_dict(), other.to_dict()], lambda: [view()], (one, other))


def split_scenario(text: str) -> tuple[str, list[str]]:
    """A file, and overrides of its own: `a.yaml@plan.tp=4@plan.dp=2`. A file of that very name is meant as it is."""
    try:
        if Path(text).exists():
            return text, []
    except (OSError, ValueError):  # no name of a file; reading it says so
        pass
    path, *own = re.split(r"@(?=[A-Za-z_][\w.]*=)", text)
    return path, own


def report(scenario: Scenario, *, output: Path = Path("report.html"), with_search: bool = True) -> None:
    """Write the answer and all that it rests on as one HTML file that needs nothing else, not even a network.

    Headline, the way from peak to what is achieved, memory, timeline, better plans, assumptions, how far to trust it,
    and the scenario to reproduce it.

    output --output -o HTML : Where to write it.
    with_search --search/--no-search : Also look for better plans.
    """
    check_target(output, (".html", ".htm"))
    from sim import estimate as run
    from sim.report.html.page import report_page
    from sim.search import search

    answer, found, why = run(scenario), None, ""
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


def layout(scenario: Scenario) -> Answer:
    """The pipeline layout whose slowest stage is fastest, in Megatron's letters, and what it gains."""
    from sim.search.stages import balance_layout

    found = balance_layout(scenario)
    before, after = show_time(found.before.step_time_s), show_time(found.answer.step_time_s)
    words = (
        f"pipeline_layout  {found.layout}\n"
        f"step time        {after}; the plan's own layout takes {before}\n"
        f"bound            another layout may be up to {found.gap:.1%} faster, and none more than that"
    )
    return Answer(found.to_dict, lambda: [words], (found.answer,))


def check(
    log: Path,
    scenario: Path | None = None,
    *,
    cluster: str | None = None,
    measured: Sequence[str] = (),
    overrides: Sequence[str] = (),
    profile: str | None = None,
) -> Answer:
    """Is my run normal? Measured step times beside the estimate, and what to look at first if they differ.

    log LOG : A log of Megatron-LM, Megatron-Bridge, NeMo, torchtitan or DeepSpeed, a trainer_state.json, or a CSV of
        W&B; - reads it from a pipe. With --measured, no log but the scenario alone.
    scenario : The run's scenario in YAML; not needed where Megatron-LM printed its arguments.
    cluster : The machine, where there is no scenario: flopcast presets list clusters.
    measured TEXT : Measured step time, instead of a log: "9.1 s"; several as a log has them.
    """
    from sim.check import check as run
    from sim.check import measure
    from sim.foreign.logs import LoggedSteps, Row, read_log, seconds_of
    from sim.report.check import check_view

    if measured and scenario is not None:
        raise SpecError(f"--measured says how long a step takes, and so does the log {log}; leave one of them out")
    scenario = log if measured else scenario
    given = [Row(parse(text, "s"), line) for line, text in enumerate(measured)]
    logged = LoggedSteps("given by --measured", rows=given) if measured else read_log(log)
    build, name = _scenario(log, logged, scenario, cluster, overrides, profile)
    found = run(build, measure(seconds_of(logged, build(()), log)))
    own = "".join(f" -s {shlex.quote(each)}" for each in overrides)
    own += f" --profile {shlex.quote(profile)}" if profile else ""
    anchor = f"flopcast anchor {name} --measured '{found.measured.seconds:.4g} s'{own} -o {_unused('mine')}"
    made = f"flopcast import {shlex.quote(str(log))} --cluster {cluster} -o {name}" if scenario is None else ""
    about = {"source": logged.source, "notes": logged.notes, "next": [each for each in (made, anchor) if each]}
    view = partial(check_view, found, logged, f"flopcast estimate {name}{own}", made, anchor)
    return Answer(lambda: {**found.to_dict(), **about}, view)


def _unused(stem: str) -> str:
    """A name that no profile has here, so that what is suggested writes over none."""
    names = chain([f"{stem}.yaml"], (f"{stem}-{number}.yaml" for number in count(2)))
    return next(name for name in names if not Path(name).exists())


def _scenario(
    log: Path,
    logged: LoggedSteps,
    scenario: Path | None,
    cluster: str | None,
    overrides: Sequence[str],
    profile: str | None,
) -> tuple[Callable[[Sequence[str]], Scenario], str]:
    """(the scenario under further overrides, the name of its file)."""
    if scenario is not None:
        if cluster is not None:
            raise SpecError(f"{scenario} says its cluster; to try another one say -s cluster={cluster}")
        if str(scenario) == "-":
            raise SpecError("the scenario is read more than once, with one change at a time; give a file instead of -")
        path = scenario
        return lambda more: load_scenario(path, [*overrides, *more], profile), shlex.quote(str(path))
    if not logged.arguments or str(log) == "-":
        raise SpecError(
            f"{log} does not say what runs; give its scenario too: flopcast check {log} SCENARIO. Of the run's "
            "config.json, launch script, TOML or recipe one is made by flopcast import FILE -o run.yaml"
        )
    if cluster is None:
        raise SpecError(
            f"{log} has Megatron-LM's arguments, but not which machine they ran on; add --cluster NAME, one of "
            "flopcast presets list clusters"
        )
    from sim.foreign.importers import Given, import_text

    imported = import_text(logged.arguments, str(log), Given(cluster=cluster), kind="megatron")
    data = imported.data | ({"profile": profile} if profile else {})
    return lambda more: build_scenario(data, [*overrides, *more], str(log)), shlex.quote(f"{log.stem}-scenario.yaml")
