"""`flopcast train`: a whole run of a scenario, with failures, checkpoints, money and energy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sim.commands.fills import Fills, Opt, count, with_records
from sim.commands.options import (
    Output,
    Overrides,
    ProfileOption,
    Restart,
    ScenarioFile,
    Verbose,
    failure_options,
    startup_of,
)
from sim.reliability.cost import Price
from sim.reliability.goodput import Failures
from sim.reliability.storing import load_named
from sim.scaling.run import Terms
from sim.scaling.training import Training
from sim.scaling.training import train as run_of

FAILURES = failure_options("repair_s")
TERMS = Fills(
    Terms,
    "failures",
    "restart_is_whole",
    write_bytes_per_s="--write-bandwidth",
    asynchronous="--asynchronous/--blocking",
    load_by=Opt(read=lambda words, _: load_named(words)),
    price=Opt(read=lambda words, _: Price.read(words)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a whole run: how the cluster fails, how state is saved, and what all of it costs."""

    failures: Annotated[partial[Failures], FAILURES]
    restart: Restart = None
    others: Annotated[partial[Terms], TERMS]

    def terms(self, node_gpus: int) -> Terms:
        """The record that they fill; how many GPUs a node has says what fails together."""
        failures = startup_of(self.restart, self.failures)(gpus_per_node=node_gpus)
        return self.others(failures=failures, restart_is_whole=self.restart is not None)


@with_records
def train(
    *,
    scenario: ScenarioFile,
    overrides: Overrides = None,
    goal: Annotated[
        partial[Training],
        Fills(run_of, "scenario", "terms", tokens=Opt(read=count), loss=Opt(read=count)),
    ],
    run: RunOptions,
    profile: ProfileOption = None,
    verbose: Verbose = False,
    output: Output,
) -> None:
    """How many days a run takes, failures and checkpoints included; what it costs, and how sure that is."""
    from sim import load_scenario
    from sim.report.training import training_figure, training_view

    asked = load_scenario(scenario, overrides or (), profile)
    training = goal(asked, terms=run.terms(asked.cluster.node.gpus_per_node))
    output.show(training.to_dict, lambda: [training_view(training, verbose)], lambda: training_figure(training))
    training.answer.require_fit()
