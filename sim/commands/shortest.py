"""`flopcast shortest`: the shortest training run that there can be, over cluster size, batch and plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from sim.commands import options as opt
from sim.commands.fills import COUNT, Fills, Opt
from sim.commands.progress import progress_bar
from sim.commands.train import RunOptions
from sim.errors import SpecError
from sim.scaling.goal import Goal, goal_of, goal_of_model
from sim.scaling.questions import ask, described, length_of, precision_of
from sim.scaling.training_time import Frontier, FrontierPoint, other_runs
from sim.scaling.training_time import shortest as shortest_of

GOAL = Fills(goal_of, "params", "loss_law", tokens=COUNT, loss=COUNT, critical_batch=COUNT)
AMONG = Fills(
    shortest_of,
    *("scenario", "goal", "terms", "layered", "progress"),
    gpus=Opt(
        read=lambda words, _: opt.read_range(words),
        help="Range of GPUs, such as 64..65536; default: up to all that the cluster has.",
    ),
    batches=Opt(read=lambda words, _: _read_batches(words), help="Batches to try, in sequences: 512,1024."),
)


def shortest(
    model: str,
    *,
    cluster: str,
    aim: Annotated[partial[Goal], GOAL],
    among: Annotated[partial[Frontier], AMONG],
    others: Annotated[partial[dict[str, FrontierPoint]], Fills(other_runs, "frontier", budget=COUNT)],
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

    shape, machine = described(model, cluster)
    length, precision = length_of(shape, None)[0], precision_of(machine.gpu)[0]
    training = {"global_batch_size": 1, "sequence_length": length, "precision": precision}
    asked = ask(model, cluster, training, stack=stack, profile=profile, overrides=overrides)
    whose = f"the model of {model}" if model.endswith((".yaml", ".yml")) else model  # other sections are not taken
    asked, most = asked.replace(name=f"{whose} on {cluster}"), asked.cluster.num_gpus
    gpus = among.keywords.get("gpus", (1, most))
    if gpus[1] > most:
        nodes = -(-gpus[1] // asked.cluster.node.gpus_per_node)
        asked = asked.replace(cluster=asked.cluster.replace(num_nodes=nodes))
    goal = goal_of_model(asked.model, **aim.keywords)
    with progress_bar("batches priced and plans run") as progress:
        frontier = among(asked, goal, gpus=gpus, terms=run.terms(), layered=layered, progress=progress)
    chosen = others(frontier)
    data = {"scenario": asked.name, **frontier.to_dict(), **{name: each.to_dict() for name, each in chosen.items()}}
    view = partial(frontier_view, asked, frontier, chosen)
    return opt.Answer(lambda: data, lambda: [view()], figure=partial(frontier_figure, asked, frontier))


def _read_batches(text: str) -> tuple[int, ...]:
    """Whole numbers from one on, in rising order, of words such as `1024,512`."""
    try:
        numbers = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        numbers = (0,)
    if numbers[0] < 1:
        raise SpecError(f"--batches {text!r} must be numbers of sequences with commas between, such as 512,1024")
    return numbers
