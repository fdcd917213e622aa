"""`flopcast simulate`: step times with jitter, slow GPUs, shared, slow and lost links."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from sim.commands.fills import Fills, Opt, with_records
from sim.commands.options import Json, Overrides, ProfileOption, ScenarioFile, print_answer
from sim.commands.progress import spinner
from sim.simulate import Simulation
from sim.simulate import simulate as run

STEPS = Fills(
    run,
    "scenario",
    seed=Opt(min=0),
    seeds=Opt(show_default="20"),
    stragglers=Opt("--straggler", metavar="FACTOR@WHERE"),
    slow_links=Opt("--slow-link", metavar="SHARE@LINK"),
    links_down=Opt("--link-down", metavar="LINK"),
    contention="--contention",
    links="--links",
    unfold="--unfold",
)


@with_records
def simulate(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    profile: ProfileOption = None,
    steps: Annotated[partial[Simulation], STEPS],
    fail_node: Annotated[int | None, Option(help="Say what becomes of the step if this node fails.")] = None,
    as_json: Json = False,
    figure: Annotated[
        Path | None, Option("--png", help="Draw step times and the network's use here (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """How long steps take when GPUs jitter or are slow, and links are shared, slow or lost."""
    from sim import load_scenario
    from sim.report.figures import check_paths
    from sim.report.simulation import draw_links, draw_simulation, simulation_view
    from sim.stragglers import failed_node

    asked = load_scenario(scenario, overrides or (), profile)
    if fail_node is not None:
        fate = failed_node(asked, fail_node)
        print_answer(as_json, lambda: {"scenario": asked.name, "step_time_s": None, "why": fate}, lambda: fate)
        return
    if figure is not None:
        check_paths([figure], (".png", ".svg", ".pdf"))
    with spinner("simulating"):
        answer = steps(asked)
    for name, option in (("seeds", "--seeds"), ("unfold", "--unfold")):
        if steps.keywords.get(name) and not steps.keywords.get("jitter"):
            typer.secho(f"flopcast: {option} changes nothing without --jitter", err=True, fg="yellow")
    if figure is not None:
        (draw_links if steps.keywords["links"] else draw_simulation)(answer, figure)
    print_answer(as_json, answer.to_dict, lambda: simulation_view(answer))
