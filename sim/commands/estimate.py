"""`flopcast estimate` and `flopcast compare`: how long a step takes and why, of one scenario or of two side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.options import AsJson, Engine, Overrides, ProfileOption, ScenarioFile
from sim.commands.output import print_json, print_view


def estimate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    contention: Annotated[bool, typer.Option("--contention", help="Messages share the cluster's links.")] = False,
    as_json: AsJson = False,
) -> None:
    """How long a step takes, how many FLOP/s that is, where the time goes, and whether it fits."""
    from sim import estimate as run
    from sim import load_scenario

    answer = run(load_scenario(scenario, overrides or (), profile), engine, contention=contention)
    if as_json:
        print_json(answer.to_dict())
    else:
        from sim.report.terminal import console
        from sim.report.text import estimate_view

        print_view(estimate_view(answer, console().width))
    answer.require_fit()


def compare(
    first: ScenarioFile,
    second: ScenarioFile,
    overrides: Overrides = None,
    engine: Engine = "dag",
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Two scenarios side by side: what differs, and what it does. Overrides apply to both."""
    from sim import estimate as run
    from sim import load_scenario

    answers = [run(load_scenario(path, overrides or (), profile), engine) for path in (first, second)]
    if as_json:
        print_json([answer.to_dict() for answer in answers])
    else:
        from sim.report.text import compare_view

        print_view(compare_view(*answers))
    for answer in answers:
        answer.require_fit()
