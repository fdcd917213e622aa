"""`flopcast simulate`: step times with jitter, slow GPUs, shared, slow and lost links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.commands.progress import spinner

if TYPE_CHECKING:
    from sim.engines.link_history import LinkHistory
    from sim.simulate import Simulation
    from sim.table import Table


def simulate(
    scenario: Annotated[Path, typer.Argument(help="A scenario in YAML.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="FIELD=VALUE", help="Override a field; may be repeated.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile's name or YAML file.")] = None,
    jitter: Annotated[float, typer.Option(help="Relative standard deviation of a GPU's kernel times.")] = 0.0,
    seeds: Annotated[int | None, typer.Option(help="Steps to draw where there is jitter.", show_default="20")] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    straggler: Annotated[
        list[str] | None, typer.Option(metavar="FACTOR@WHERE", help="1.2@rank17 or 1.2@gpu139; may be repeated.")
    ] = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option(metavar="SHARE@LINK", help="0.5@node12.nic3, 0.5@gpu99.nic, 0.9@leaf4; may be repeated."),
    ] = None,
    link_down: Annotated[
        list[str] | None, typer.Option(metavar="LINK", help="node12.nic3, leaf4.cable7; may be repeated.")
    ] = None,
    fail_node: Annotated[int | None, typer.Option(help="A node that fails: what becomes of the step.")] = None,
    contention: Annotated[bool, typer.Option("--contention", help="Messages share the machine's links.")] = False,
    links: Annotated[
        bool,
        typer.Option(
            "--links", help="Follow every link through the step: where messages' time goes; drawn with --png."
        ),
    ] = False,
    unfold: Annotated[bool, typer.Option("--unfold", help="Every data-parallel replica has noise of its own.")] = False,
    placement: Annotated[
        str | None,
        typer.Option(help="Order of the parallel dimensions over the GPUs, closest first.", show_default="tp-cp-dp-pp"),
    ] = None,
    fragmentation: Annotated[float, typer.Option(help="Share of the nodes that lie anywhere in the machine.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    figure: Annotated[
        Path | None, typer.Option("--png", help="Draw step times and the network's use here (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """How long steps take when GPUs jitter or are slow, and links are shared, slow or lost."""
    from sim import load_scenario
    from sim.network.ranks import MEGATRON_ORDER
    from sim.report.figures import check_paths
    from sim.report.links import draw_links
    from sim.report.simulation import draw_simulation
    from sim.simulate import simulate as run
    from sim.stragglers import failed_node

    asked = load_scenario(scenario, overrides or (), profile)
    if fail_node is not None:
        fate = failed_node(asked, fail_node)
        typer.echo(
            json.dumps({"scenario": asked.name, "step_time_s": None, "why": fate}, indent=2) if as_json else fate
        )
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
            placement=placement or MEGATRON_ORDER,
            fragmentation=fragmentation,
        )
    for given, option, needs in (
        (seeds is not None and not jitter, "--seeds", "--jitter"),
        (unfold and not jitter, "--unfold", "--jitter"),
        (fragmentation > 0 and not (answer.levels or straggler), "--fragmentation", "--contention"),
        (placement is not None and not (answer.levels or straggler), "--placement", "--contention"),
    ):
        if given:
            typer.secho(f"flopcast: {option} changes nothing without {needs}", err=True, fg="yellow")
    if figure is not None:
        (draw_links if links else draw_simulation)(answer, figure)
    if as_json:
        typer.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    else:
        _show(answer)


def _show(answer: Simulation) -> None:
    from sim.report.text import console
    from sim.table import Table
    from sim.units import show

    out = console()
    pipelines = f"{answer.pipelines} pipeline{'s' * (answer.pipelines != 1)}"
    drawn = f"{len(answer.step_times_s)} steps of {pipelines} drawn" if answer.jitter else "one step, nothing drawn"
    out.print(f"[bold]{answer.scenario.name}[/bold]  {drawn}")

    def line(label: str, seconds: float, note: str = "") -> None:
        out.print(f"  {label:<22}{show(seconds, 's', digits=4):>10}  {note}")

    line("Step without noise", answer.noiseless_s)
    share = answer.mean_s / answer.noiseless_s - 1
    added = f"{share:+.2%}" if abs(share) >= 5e-5 else "the same"
    if len(answer.step_times_s) == 1:
        line("Step", answer.mean_s, added)
    else:
        line("Mean", answer.mean_s, added)
        line("Median", answer.quantile_s(0.5))
        line("5 % to 95 %", answer.quantile_s(0.05), f"to {show(answer.quantile_s(0.95), 's', digits=4)}")
    if answer.levels:
        out.print(f"\nNetwork  ({answer.meetings:,} messages met others on a link too narrow for all)")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
        table.add_column("level")
        for heading in ("links", "bytes a step", "mean use", "most"):
            table.add_column(heading, justify="right")
        for row in answer.levels:
            table.add_row(
                f"{row['level']} {row['direction']}",
                f"{row['links']:,}",
                show(row["bytes"], "B"),
                f"{row['mean_utilisation']:.2%}",
                f"{row['max_utilisation']:.2%}",
            )
        out.print(table)
        out.print("Busiest links")
        for row in answer.busiest:
            out.print(f"  {row['link']:<22}{show(row['bytes'], 'B'):>10}  {row['utilisation']:.2%}")
    if answer.history is not None:
        out.print("\nWhere messages' time goes  (seconds of a step, on the average rank)")
        out.print(_messages(answer.history))
    out.print()
    for note in answer.assumptions:
        out.print(f"  · {note}", style="dim")


def _messages(history: LinkHistory) -> Table:
    """Kinds of messages and causes of their time that there are."""
    from sim.table import Table
    from sim.units import show

    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 1))  # nine columns in eighty places
    causes = [c for c in history.kinds[0]["seconds"] if any(row["seconds"][c] > 1e-9 for row in history.kinds)]
    table.add_column("kind", no_wrap=True)
    for heading in ("messages", "bytes", *causes):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in history.kinds:
        seconds = (f"{row['seconds'][cause]:.3f}" if row["seconds"][cause] > 1e-9 else "" for cause in causes)
        table.add_row(row["kind"], f"{row['messages']:,}", show(row["bytes"], "B"), *seconds)
    return table
