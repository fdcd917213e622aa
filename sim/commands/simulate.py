"""`flopcast simulate`: step times with jitter, slow GPUs, shared, slow and lost links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from sim.commands.options import Json, Overrides, ProfileOption, ScenarioFile
from sim.commands.output import print_answer
from sim.commands.progress import spinner


def simulate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    profile: ProfileOption = None,
    jitter: Annotated[
        float | None,
        Option(help="Relative standard deviation of a GPU's kernel times, not cluster.gpu_spread; 0: none."),
    ] = None,
    seeds: Annotated[int | None, Option(help="Steps to draw where there is jitter.", show_default="20")] = None,
    seed: Annotated[int, Option(min=0, help="Of everything that is drawn.")] = 0,
    straggler: Annotated[
        list[str] | None, Option(metavar="FACTOR@WHERE", help="1.2@rank17 or 1.2@gpu139; may be repeated.")
    ] = None,
    slow_link: Annotated[
        list[str] | None,
        Option(metavar="SHARE@LINK", help="0.5@node12.nic3, 0.5@gpu99.nic, 0.9@leaf4; may be repeated."),
    ] = None,
    link_down: Annotated[
        list[str] | None, Option(metavar="LINK", help="node12.nic3, leaf4.cable7; may be repeated.")
    ] = None,
    fail_node: Annotated[int | None, Option(help="A node that fails: what becomes of the step.")] = None,
    contention: Annotated[bool, Option("--contention", help="Messages share the machine's links.")] = False,
    links: Annotated[
        bool, Option("--links", help="Follow every link through the step: where messages' time goes; drawn with --png.")
    ] = False,
    unfold: Annotated[bool, Option("--unfold", help="Every data-parallel replica has noise of its own.")] = False,
    placement: Annotated[
        str | None, Option(help="Order of the parallel dimensions over the GPUs, closest first: plan.placement.")
    ] = None,
    fragmentation: Annotated[
        float | None, Option(help="Share of the nodes that lie anywhere in the machine: cluster.fragmentation.")
    ] = None,
    as_json: Json = False,
    figure: Annotated[
        Path | None, Option("--png", help="Draw step times and the network's use here (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """How long steps take when GPUs jitter or are slow, and links are shared, slow or lost."""
    from sim import load_scenario
    from sim.report.figures import check_paths
    from sim.report.simulation import draw_links, draw_simulation, simulation_view
    from sim.simulate import simulate as run
    from sim.stragglers import failed_node

    asked = load_scenario(scenario, overrides or (), profile)
    if fail_node is not None:
        fate = failed_node(asked, fail_node)
        print_answer(as_json, lambda: {"scenario": asked.name, "step_time_s": None, "why": fate}, lambda: fate)
        return
    if figure is not None:
        check_paths([figure], (".png", ".svg", ".pdf"))
    with spinner("simulating"):
        answer = run(
            asked,
            jitter=jitter,
            seeds=20 if seeds is None else seeds,
            seed=seed,
            stragglers=straggler or (),
            slow_links=slow_link or (),
            links_down=link_down or (),
            contention=contention,
            links=links,
            unfold=unfold,
            placement=placement,
            fragmentation=fragmentation,
        )
    for given, option in ((seeds is not None, "--seeds"), (unfold, "--unfold")):
        if given and not jitter:
            typer.secho(f"flopcast: {option} changes nothing without --jitter", err=True, fg="yellow")
    if figure is not None:
        (draw_links if links else draw_simulation)(answer, figure)
    print_answer(as_json, answer.to_dict, lambda: simulation_view(answer))
