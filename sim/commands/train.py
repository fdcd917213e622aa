"""`flopcast train`: a whole run with failures and money."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from sim.commands import options as opt
from sim.commands.fills import COUNT, Fills, Opt
from sim.reliability.cost import Price
from sim.reliability.goodput import Failures
from sim.scaling.run import Terms, Training
from sim.scaling.run import train as run_of
from sim.specs import Scenario

FAILURES = Fills(
    Failures,
    *("hardware_share", "load_s"),
    gpu_mtbf_s=Opt("--mtbf", show_default="50,677 h"),
    startup_s=Opt(show_default="10 min"),
    spare_nodes="--spares",
)
TERMS = Fills(
    Terms,
    "failures",
    asynchronous="--asynchronous/--blocking",
    price=Opt(read=lambda words, _: Price.read(words)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a whole run: how the cluster fails, how state is saved, and what all of it costs."""

    failures: Annotated[partial[Failures], FAILURES]
    others: Annotated[partial[Terms], TERMS]

    def terms(self) -> Terms:
        """The record that they fill."""
        return self.others(failures=self.failures())


def train(
    scenario: Scenario,
    *,
    goal: Annotated[partial[Training], Fills(run_of, "scenario", "terms", tokens=COUNT, loss=COUNT)],
    run: RunOptions,
    verbose: bool = False,
) -> opt.Answer:
    """How many days a run takes, failures and checkpoints included; what it costs, and how sure that is."""
    from sim.report.training import training_view

    training = goal(scenario, terms=run.terms())
    return opt.Answer(training.to_dict, lambda: [training_view(training, verbose)], (training.answer,))
