"""`flopcast train`: a whole run of a scenario, with failures, checkpoints, money and energy."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from sim.commands.options import (
    Output,
    Overrides,
    ProfileOption,
    RunOptions,
    ScenarioFile,
    StalenessModel,
    with_records,
)


@with_records
def train(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    tokens: Annotated[str | None, Option(help="Token budget, instead of the scenario's.")] = None,
    loss: Annotated[str | None, Option(help="Loss to reach, instead of a token budget.")] = None,
    batch_law: Annotated[str, Option(help="Critical batch, for --loss.")] = "kaplan-2020",
    ramp: Annotated[str | None, Option(help="Batch ramp: '1/4, 1/2@2%, 1@20%' of batch @ data; or best.")] = None,
    staleness_model: StalenessModel = "none",
    run: RunOptions,
    profile: ProfileOption = None,
    output: Output,
) -> None:
    """How many days a run takes, failures and checkpoints included; what it costs, and how sure that is."""
    from sim import load_scenario
    from sim.report.training import training_view
    from sim.report.training_figures import training_figure
    from sim.scaling.training import train
    from sim.units import parse_count

    asked = load_scenario(scenario, overrides or (), profile)
    training = train(
        asked,
        tokens=None if tokens is None else parse_count(tokens, "tokens"),
        loss=None if loss is None else parse_count(loss, "loss"),
        batch_law=batch_law,
        ramp=ramp,
        staleness=staleness_model,
        terms=run.terms(asked.cluster.node.gpus_per_node),
    )
    output.show(training.to_dict, lambda: [training_view(training)], lambda: training_figure(training))
    training.answer.require_fit()
