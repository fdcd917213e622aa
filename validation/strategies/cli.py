"""`flopcast validate strategies`: Lamy-Poirier's table by search instead of by formula."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sim.commands.options import Json, Png, Svg, examples, figure_paths, print_json, print_view, read_numbers

THREE = "data + pipeline + tensor"


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(name="strategies", epilog=examples("validate strategies", "validate strategies --ideal-network"))(
        strategies
    )


def strategies(
    x: Annotated[int, typer.Argument(help="The x of the model X_x; 160 is 1.26 trillion parameters.")] = 160,
    bandwidth: Annotated[str, typer.Option(help="Of the network, a GPU and direction.")] = "200 Gbit/s",
    ideal_network: Annotated[
        bool, typer.Option("--ideal-network", help="It reaches that, and costs compute nothing.")
    ] = False,
    network_efficiency: Annotated[
        float | None,
        typer.Option(help="Share of it that all traffic reaches; an Ethernet preset's, or the A100 profile's."),
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size; the paper counts none, as 16 does.")] = 51_200,
    sizes: Annotated[str | None, typer.Option(help="Time against model size instead: 32,64,160,320.")] = None,
    as_json: Json = False,
    png: Png = None,
    svg: Svg = None,
) -> None:
    """Lamy-Poirier's X_x by data, pipeline and tensor parallelism, in standard and layered order, at their best."""
    from flopcast_validation.strategies import view
    from flopcast_validation.strategies.plans import alone, compare_strategies
    from flopcast_validation.strategies.question import family, formula_days, question, usual_efficiency
    from sim.commands.progress import progress_bar
    from sim.report.figures import save

    paths = figure_paths(png, svg)
    network = "ideal" if ideal_network else "as the A100 profile has it"
    usual = None if ideal_network else usual_efficiency(bandwidth)
    if network_efficiency is not None:
        network += f", but at {network_efficiency:g} of its rate"
    elif usual is not None:
        network += f", scaled to Ethernet's preset, of which a collective alone reaches {usual:g}"
    remarks = [
        f"network {network}; GPUs and NVLink as calibrated; formula: GPUs at peak, all traffic hidden but tensor's",
        "rules: full recomputation, no more than the critical batch, no more GPUs than its sequences times tp",
        "the paper's body was not read: its claims are held as ratios, its table is a reconstruction",
    ]
    if sizes is not None:
        rows: list[dict[str, Any]] = []
        wanted = read_numbers(sizes, "--sizes", "whole numbers", "32,64,160")
        with progress_bar("models searched") as progress:
            for number, each in enumerate(wanted):
                entries = compare_strategies(
                    question(each, bandwidth, ideal_network, network_efficiency, vocabulary), (THREE,)
                )
                shape = family(each)
                row: dict[str, Any] = {"x": each, "params": shape.params}
                row["batch"] = int(shape.critical_batch_sequences)
                row |= {e.method: {**e.to_dict(), "formula_days": formula_days(e.answer, shape)} for e in entries}
                rows.append(row)
                if progress is not None:
                    progress(number + 1, len(wanted))
        remarks += [
            "–: no plan fits in memory, in standard order without host memory",
            "tp beyond a node where nothing fits within one: as few GPUs a layer as it takes, sequence parallelism too",
        ]
        if as_json:
            print_json(rows)
        else:
            print_view(view.sizes_view(rows, remarks))
        if paths:
            save(view.sizes_figure(rows), paths)
        return
    shape, scenario = family(x), question(x, bandwidth, ideal_network, network_efficiency, vocabulary)
    with progress_bar("plans searched") as progress:
        entries = compare_strategies(scenario, progress=progress)
        entries += compare_strategies(scenario, (THREE,), partitioned=True)
    single = alone(scenario)
    if as_json:
        rows = [{**each.to_dict(), "formula_days": formula_days(each.answer, shape)} for each in (single, *entries)]
        print_json(rows)
    else:
        remarks += [
            "* does not fit, and is timed all the same; † activations wait in host memory, copied beside compute"
        ]
        print_view(view.strategies_view(shape, scenario, single, entries, remarks))
    if paths:
        save(view.strategies_figure(shape, scenario, entries), paths)
