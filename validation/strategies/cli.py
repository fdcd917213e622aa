"""`flopcast validate strategies`: Lamy-Poirier's table by search instead of by formula."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from sim.commands.options import Json, check_target, print_json, print_view, read_numbers

REMARKS = (
    "rules: full recomputation, no more than the critical batch, no more GPUs than its sequences times tp",
    "the paper's body was not read: its claims are held as ratios, its table is a reconstruction",
)
OF_ONE = "* does not fit, and is timed all the same; † activations wait in host memory, copied beside compute"
OF_SIZES = (
    "–: no plan fits in memory, in standard order without host memory",
    "tp beyond a node where nothing fits within one: as few GPUs a layer as it takes, sequence parallelism too",
)


def strategies(
    x: Annotated[int, Argument(help="The x of the model X_x; 160 is 1.26 trillion parameters.")] = 160,
    *,
    bandwidth: str = "200 Gbit/s",
    ideal_network: bool = False,
    network_efficiency: float | None = None,
    vocabulary: int = 51_200,
    sizes: str | None = None,
    as_json: Json = False,
    figure: Path | None = None,
) -> None:
    """Lamy-Poirier's X_x by data, pipeline and tensor parallelism, in standard and layered order, at their best.

    bandwidth : Of the network, a GPU and direction.
    ideal_network : It reaches that, and costs compute nothing.
    network_efficiency : Share of it that all traffic reaches; an Ethernet preset's, or the A100 profile's.
    vocabulary : Vocabulary size; the paper counts none, as 16 does.
    sizes : Time against model size instead: 32,64,160,320.
    """
    from flopcast_validation.strategies import view
    from flopcast_validation.strategies.plans import THREE, alone, compare_strategies
    from flopcast_validation.strategies.question import family, formula_days, question
    from sim.commands.progress import progress_bar
    from sim.report.figures import save

    def asked(x: int) -> Any:
        return question(x, bandwidth, ideal_network, network_efficiency, vocabulary)

    if figure is not None:
        check_target(figure, (".png", ".svg"))
    remarks = (_of_network(bandwidth, ideal_network, network_efficiency), *REMARKS)
    if sizes is None:
        shape, scenario = family(x), asked(x)
        with progress_bar("plans searched") as progress:
            entries = compare_strategies(scenario, progress=progress)
            entries += compare_strategies(scenario, (THREE,), partitioned=True)
        every = (alone(scenario), *entries)
        data: Any = [{**each.to_dict(), "formula_days": formula_days(each.answer, shape)} for each in every]
        shown, draw = view.strategies_view(shape, scenario, every), view.strategies_figure
        drawn: tuple[Any, ...] = (shape, scenario, entries)
    else:
        wanted, data = read_numbers(sizes, "--sizes", "whole numbers", "32,64,160"), []
        with progress_bar("models searched") as progress:
            for each in wanted:
                shape, best = family(each), compare_strategies(asked(each), (THREE,))
                row = {"x": each, "params": shape.params, "batch": int(shape.critical_batch_sequences)}
                data.append(row | {e.method: {**e.to_dict(), "formula_days": formula_days(e.answer, shape)}
                                   for e in best})  # fmt: skip
                if progress is not None:
                    progress(len(data), len(wanted))
        shown, draw, drawn = view.sizes_view(data), view.sizes_figure, (data,)
    if as_json:
        print_json(data)
    else:
        print_view([*shown, view.notes(*view.refused(data), *remarks, *((OF_ONE,) if sizes is None else OF_SIZES))])
    if figure is not None:
        save(draw(*drawn), figure)


def _of_network(bandwidth: str, ideal: bool, efficiency: float | None) -> str:
    """What is assumed of the network."""
    from flopcast_validation.strategies.question import usual_efficiency

    usual, words = None if ideal else usual_efficiency(bandwidth), "ideal" if ideal else "as the A100 profile has it"
    if efficiency is not None:
        words += f", but at {efficiency:g} of its rate"
    elif usual is not None:
        words += f", scaled to Ethernet's preset, of which a collective alone reaches {usual:g}"
    return f"network {words}; GPUs and NVLink as calibrated; formula: GPUs at peak, all traffic hidden but tensor's"
