"""`flopcast layout`: which layers each pipeline stage should hold."""

from __future__ import annotations

import typer

from sim.commands.options import AsJson, Overrides, ProfileOption, ScenarioFile, print_json
from sim.units import show_time


def layout(
    scenario: ScenarioFile, overrides: Overrides = None, profile: ProfileOption = None, as_json: AsJson = False
) -> None:
    """The pipeline layout whose slowest stage is fastest, in Megatron's letters, and what it gains."""
    from sim import load_scenario
    from sim.search.layout import balance_layout

    found = balance_layout(load_scenario(scenario, overrides or (), profile))
    before, after = found.before.step_time_s, found.answer.step_time_s
    lines = (
        f"pipeline_layout  {found.layout}",
        f"step time        {show_time(after)}; the plan's own layout takes {show_time(before)}",
        f"bound            another layout may be up to {found.gap:.1%} faster, and none more than that",
    )
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo("\n".join(lines))
    found.answer.require_fit()
