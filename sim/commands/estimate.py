"""`flopcast estimate` and `flopcast compare`: how long a step takes and why, of one scenario or of two side by side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from sim.commands.options import (
    AsJson,
    Engine,
    Overrides,
    ProfileOption,
    ScenarioFile,
    Verbose,
    print_answer,
    print_json,
    print_view,
)

if TYPE_CHECKING:
    from sim.estimate import Estimate
    from sim.specs import ParallelPlan, Scenario


def estimate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    contention: Annotated[bool, Option("--contention", hidden=True)] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """How long a step takes, how many FLOP/s that is, where the time goes, and whether it fits."""
    from sim import estimate as run
    from sim import load_scenario
    from sim.errors import SpecError

    if contention:
        raise SpecError("estimate --contention is gone: flopcast simulate --contention plays the messages one by one")
    given = load_scenario(scenario, overrides or (), profile)
    answer = run(given.replace(plan=_best_plan(given)) if given.is_open else given, engine)
    if as_json:
        print_json(answer.to_dict())
    else:
        from sim.report.text import estimate_view, opening, remarks

        print_view(opening(answer))
        searched = not given.is_open and engine == "dag" and answer.num_gpus <= QUICK
        if searched and given.cluster.node.cores is None and (words := _faster_plan(answer, str(scenario))):
            print_view(remarks({"Would help": words}))
        print_view(partial(estimate_view, answer, verbose=verbose))
    answer.require_fit()


QUICK = 4096
"""GPUs up to which an estimate also looks for a faster plan, unasked: the search takes a second at most."""
WORTH = 0.1
"""Share of the step time that a faster plan must save to be told of."""


def _faster_plan(answer: Estimate, file: str) -> str:
    """A plan that is faster by a tenth or more, which a search finds; nothing where there is none."""
    from sim.errors import FlopcastError
    from sim.report.text import faster_words
    from sim.search import search
    from sim.specs.framework_plans import broken_rules, framework_words, plan_rules, rules_of_scenario
    from sim.units import listed

    scenario = answer.scenario
    framework = scenario.stack.framework
    try:
        known = framework if plan_rules(framework) else None
        result = search(scenario, top=1, confirm=1, layouts=False, room=(), any_framework=True, export_to=known)
    except FlopcastError:
        return ""
    best = result.best[0].answer
    if 1.0 - best.step_time_s / answer.step_time_s < WORTH:
        return ""
    broken = broken_rules(best.scenario, rules_of_scenario(scenario))
    words = framework_words(framework, scenario.stack.version)
    lacking = (
        f". {words} cannot run it, because of {listed(dict.fromkeys(rule.path for rule in broken), 'and')}"
        if broken
        else ""
    )
    return faster_words(answer, best, lacking, f"flopcast search {file}{' --any-framework' if broken else ''}")


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
    first: ScenarioFile,
    second: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Two scenarios side by side: what differs, and what it does. Overrides apply to both."""
    from sim import estimate as run
    from sim import load_scenario
    from sim.report.text import compare_view

    answers = [run(load_scenario(path, overrides or (), profile), engine) for path in (first, second)]
    print_answer(
        as_json, lambda: [answer.to_dict() for answer in answers], lambda: compare_view(answers[0], answers[1], verbose)
    )
    for answer in answers:
        answer.require_fit()
