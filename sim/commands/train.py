"""`flopcast train`: a whole run of a scenario, with failures, checkpoints, money and energy."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.options import (
    AsJson,
    Asynchronous,
    LoadedBy,
    Mtbf,
    Overrides,
    Png,
    PriceOption,
    ProfileOption,
    Pue,
    Restart,
    ScenarioFile,
    Spares,
    StalenessModel,
    Startup,
    Svg,
    WriteBandwidth,
    terms_of,
)
from sim.commands.output import figure_paths, print_json, print_view


def train(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    tokens: Annotated[str | None, typer.Option(help="Token budget, instead of the scenario's.")] = None,
    loss: Annotated[str | None, typer.Option(help="Loss to reach, instead of a token budget.")] = None,
    batch_law: Annotated[str, typer.Option(help="Critical batch, for --loss.")] = "kaplan-2020",
    ramp: Annotated[str | None, typer.Option(help="Batch ramp: '1/4, 1/2@2%, 1@20%' of batch @ data; or best.")] = None,
    staleness_model: StalenessModel = "none",
    mtbf: Mtbf = None,
    startup: Startup = None,
    restart: Restart = None,
    spares: Spares = None,
    write_bandwidth: WriteBandwidth = None,
    asynchronous: Asynchronous = False,
    load_by: LoadedBy = None,
    price: PriceOption = "2",
    pue: Pue = 1.1,
    profile: ProfileOption = None,
    as_json: AsJson = False,
    png: Png = None,
    svg: Svg = None,
) -> None:
    """How many days a run takes, failures and checkpoints included; what it costs, and how sure that is."""
    from sim import load_scenario
    from sim.scaling.training import train as run
    from sim.units import parse_count

    paths = figure_paths(png, svg)
    asked = load_scenario(scenario, overrides or (), profile)
    training = run(
        asked,
        tokens=None if tokens is None else parse_count(tokens, "tokens"),
        loss=None if loss is None else parse_count(loss, "loss"),
        batch_law=batch_law,
        ramp=ramp,
        staleness=staleness_model,
        terms=terms_of(
            asked.cluster.node.gpus_per_node,
            mtbf=mtbf,
            restart=restart,
            startup=startup,
            spares=spares,
            write_bandwidth=write_bandwidth,
            asynchronous=asynchronous,
            load_by=load_by,
            price=price,
            pue=pue,
        ),
    )
    if as_json:
        print_json(training.to_dict())
    else:
        from sim.report.training import training_view

        print_view(training_view(training))
    if paths:
        from sim.report.figures import save
        from sim.report.training_figures import training_figure

        save(training_figure(training), paths)
    training.answer.require_fit()
