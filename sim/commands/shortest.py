"""`flopcast shortest`: how fast a model could be trained at all on a kind of cluster, and what decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from typer import Argument, Option

from sim.commands.fills import Fills, Opt, count, with_records
from sim.commands.options import Output, read_numbers, read_range
from sim.commands.train import RunOptions
from sim.errors import require_positive
from sim.scaling.run import Goal, goal_of
from sim.specs import Scenario
from sim.units import parse, parse_count

GOAL = Fills(
    goal_of, "params", "loss_law", tokens=Opt(read=count), loss=Opt(read=count), critical_batch=Opt(read=count)
)


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The range in which the shortest run is looked for, and other runs that are shown beside it."""

    gpus: Annotated[
        str | None, Option(help="Range of GPUs, such as 64..65536; default: up to all that the cluster has.")
    ] = None
    batches: Annotated[str | None, Option(help="Batches to try, in sequences: 512,1024.")] = None
    within: Annotated[str | None, Option(help="Also show the cheapest run that ends in this time: '60 d'.")] = None
    budget: Annotated[str | None, Option(help="Also show the shortest run for this much money: 50M.")] = None
    ramp: Annotated[str | None, Option(help="Batch ramp: '1/4, 1/2@2%, 1@20%' means batch @ data.")] = None

    def machine(self, asked: Scenario) -> tuple[Scenario, tuple[int, int]]:
        """The question on a cluster of the same kind that is large enough, and the fewest and most of its GPUs."""
        if self.gpus is None:
            return asked, (1, asked.cluster.num_gpus)
        sizes = read_range(self.gpus)
        if sizes[1] > asked.cluster.num_gpus:
            nodes = -(-sizes[1] // asked.cluster.node.gpus_per_node)
            asked = asked.replace(cluster=asked.cluster.replace(num_nodes=nodes))
        return asked, sizes

    def read(self) -> tuple[Any, Any, float | None, float | None]:
        """(batches to try, ramp of the batch, time that another run must keep to [s], money that another may cost)."""
        from sim.scaling.ramp import parse_ramp

        ramp = None if self.ramp is None else parse_ramp(self.ramp)
        limit, what = None if self.within is None else parse(self.within, "s"), "numbers of sequences"
        if limit is not None:
            require_positive(within=limit)
        batches = None if self.batches is None else read_numbers(self.batches, "--batches", what, "512,1024")
        return batches, ramp, limit, None if self.budget is None else parse_count(self.budget, "budget")


@with_records
def shortest(
    *,
    model: Annotated[str, Argument(help="A model preset, such as llama3-70b.", show_default=False)],
    cluster: Annotated[str, Option(help="A cluster preset; its nodes and network at any size.")],
    aim: Annotated[partial[Goal], GOAL],
    among: RangeOptions,
    overrides: Annotated[
        list[str] | None,
        Option("--set", "-s", metavar="FIELD=VALUE", help="Override a field of model, cluster, training or stack."),
    ] = None,
    stack: Annotated[str, Option(help="Preset of a software stack.")] = "megatron-core",
    profile: Annotated[str | None, Option(help="A profile's name or YAML file.")] = None,
    layered: Annotated[bool, Option(help="Also try breadth-first orders and modular pipelines.")] = True,
    run: RunOptions,
    output: Output,
) -> None:
    """The shortest training run over cluster size, batch and plan; what it costs, and what limits it."""
    from sim.commands.progress import progress_bar
    from sim.report.training import frontier_figure, frontier_view
    from sim.scaling.run import goal_of_model
    from sim.scaling.training_time import shortest

    asked, gpus = among.machine(_question(model, cluster, stack, profile, overrides or []))
    goal = goal_of_model(asked.model, **aim.keywords)
    batches, ramp, limit, money = among.read()
    terms = run.terms(asked.cluster.node.gpus_per_node)
    with progress_bar("batches priced and plans run") as progress:
        frontier = shortest(
            asked, goal, gpus=gpus, batches=batches, terms=terms, ramp=ramp, layered=layered, progress=progress
        )
    chosen = {} if limit is None else {"within": frontier.cheapest_within(limit)}
    chosen |= {} if money is None else {"budget": frontier.fastest_for(money)}
    output.show(
        lambda: {
            "scenario": asked.name,
            **frontier.to_dict(),
            **{name: point.to_dict() for name, point in chosen.items()},
        },
        lambda: [frontier_view(asked, frontier, chosen)],
        lambda: frontier_figure(asked, frontier),
    )


def _question(model: str, cluster: str, stack: str, profile: str | None, overrides: list[str]) -> Scenario:
    """Model and cluster as a scenario; sequences as long as the model takes, but no longer than 8,192."""
    from pathlib import Path

    from sim.scaling.questions import ask, length_of, precision_of
    from sim.specs.presets import load_file_as_preset

    own = load_file_as_preset(Path(profile)) if profile is not None and profile.endswith((".yaml", ".yml")) else profile
    return ask(
        model,
        cluster,
        stack=stack,
        training=lambda shape, gpu: (
            {"global_batch_size": 1, "sequence_length": length_of(shape, None)[0], "precision": precision_of(gpu)[0]},
            (),
        ),
        profile=own,
        name=f"{model} on {cluster}",
        overrides=overrides,
    )
