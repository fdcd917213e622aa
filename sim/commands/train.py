"""`flopcast train` and `flopcast shortest`: a whole run with failures and money, and the shortest there can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from sim.commands import options as opt
from sim.commands.fills import COUNT, Fills, Opt
from sim.commands.progress import progress_bar
from sim.errors import SpecError, require_positive
from sim.reliability.cost import Price
from sim.reliability.goodput import Failures
from sim.scaling.goal import Goal, goal_of, goal_of_model
from sim.scaling.questions import ask, described, length_of, precision_of
from sim.scaling.run import Terms, Training
from sim.scaling.run import train as run_of
from sim.specs import Scenario
from sim.units import parse, parse_count

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
GOAL = Fills(goal_of, "params", "loss_law", tokens=COUNT, loss=COUNT, critical_batch=COUNT)


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


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The range in which the shortest run is looked for, and other runs that are shown beside it.

    gpus : Range of GPUs, such as 64..65536; default: up to all that the cluster has.
    batches : Batches to try, in sequences: 512,1024.
    within : Also show the cheapest run that ends in this time: '60 d'.
    budget : Also show the shortest run for this much money: 50M.
    """

    gpus: str | None = None
    batches: str | None = None
    within: str | None = None
    budget: str | None = None

    def machine(self, asked: Scenario) -> tuple[Scenario, tuple[int, int]]:
        """The question on a cluster of the same kind that is large enough, and the fewest and most of its GPUs."""
        if self.gpus is None:
            return asked, (1, asked.cluster.num_gpus)
        sizes = opt.read_range(self.gpus)
        if sizes[1] > asked.cluster.num_gpus:
            nodes = -(-sizes[1] // asked.cluster.node.gpus_per_node)
            asked = asked.replace(cluster=asked.cluster.replace(num_nodes=nodes))
        return asked, sizes

    def read(self) -> tuple[tuple[int, ...] | None, float | None, float | None]:
        """(batches to try, time that another run must keep to [s], money that another may cost)."""
        limit = None if self.within is None else parse(self.within, "s")
        if limit is not None:
            require_positive(within=limit)
        batches = None if self.batches is None else _read_batches(self.batches)
        return batches, limit, None if self.budget is None else parse_count(self.budget, "budget")


def _read_batches(text: str) -> tuple[int, ...]:
    """Whole numbers from one on, in rising order, of words such as `1024,512`."""
    try:
        numbers = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        numbers = (0,)
    if numbers[0] < 1:
        raise SpecError(f"--batches {text!r} must be numbers of sequences with commas between, such as 512,1024")
    return numbers


def shortest(
    model: str,
    *,
    cluster: str,
    aim: Annotated[partial[Goal], GOAL],
    among: RangeOptions,
    overrides: Sequence[str] = (),
    stack: str = "megatron-core",
    profile: str | None = None,
    layered: bool = True,
    run: RunOptions,
    figure: Path | None = None,
) -> opt.Answer:
    """The shortest training run over cluster size, batch and plan; what it costs, and what limits it.

    model : A model preset, such as llama3-70b.
    cluster : A cluster preset; its nodes and network at any size.
    overrides --set -s FIELD=VALUE : Override a field of model, cluster, training or stack.
    stack : Preset of a software stack.
    profile : A profile's name or YAML file.
    layered --layered/--no-layered : Also try breadth-first orders and modular pipelines.
    """
    from sim.report.training import frontier_figure, frontier_view
    from sim.scaling.training_time import shortest

    asked, gpus = among.machine(_question(model, cluster, stack, profile, overrides))
    goal = goal_of_model(asked.model, **aim.keywords)
    batches, limit, money = among.read()
    with progress_bar("batches priced and plans run") as progress:
        frontier = shortest(
            asked, goal, gpus=gpus, batches=batches, terms=run.terms(), layered=layered, progress=progress
        )
    chosen = {} if limit is None else {"within": frontier.cheapest_within(limit)}
    chosen |= {} if money is None else {"budget": frontier.fastest_for(money)}
    said = {name: point.to_dict() for name, point in chosen.items()}
    data = {"scenario": asked.name, **frontier.to_dict(), **said}
    view = partial(frontier_view, asked, frontier, chosen)
    return opt.Answer(lambda: data, lambda: [view()], figure=partial(frontier_figure, asked, frontier))


def _question(model: str, cluster: str, stack: str, profile: str | None, overrides: Sequence[str]) -> Scenario:
    """Model and cluster as a scenario; sequences as long as the model takes, but no longer than 8,192."""
    shape, machine = described(model, cluster)
    length, precision = length_of(shape, None)[0], precision_of(machine.gpu)[0]
    training = {"global_batch_size": 1, "sequence_length": length, "precision": precision}
    scenario = ask(model, cluster, training, stack=stack, profile=profile, overrides=overrides)
    whose = f"the model of {model}" if model.endswith((".yaml", ".yml")) else model  # other sections are not taken
    return scenario.replace(name=f"{whose} on {cluster}")
