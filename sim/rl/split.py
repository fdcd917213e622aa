"""How a number of GPUs is best dealt to rollouts and training."""

from __future__ import annotations

from sim.errors import FlopcastError, SpecError, require_positive
from sim.rl.best_step import Asynchrony, split_of
from sim.rl.pools import Inference
from sim.rl.samples import Samples
from sim.rl.step import RlStep
from sim.rl.trainer import Recipe, trainer_work, with_replicas
from sim.rl.weight_sync import Exchange
from sim.specs import Scenario


def best_split(
    scenario: Scenario,
    samples: Samples,
    num_gpus: int,
    *,
    recipe: Recipe | None = None,
    inference: Inference | None = None,
    exchange: Exchange | None = None,
    asynchrony: Asynchrony | None = None,
    most: int = 16,
) -> tuple[RlStep, ...]:
    """Steps of all ways to deal `num_gpus` to the pools, fewest training GPUs first.

    Training takes the scenario's plan with more or fewer data-parallel replicas, rollouts take whole nodes of the rest
    (or all of it where it is less than a node). Of more than `most` numbers of replicas evenly spaced ones are tried,
    and then those around the best.

    Raises
    ------
    SpecError
        Fewer GPUs than one replica and one rollout need, or more than the cluster has.
    FlopcastError
        None of the ways is possible: why the last of them is not.
    """
    require_positive(gpus=num_gpus)
    plan, cluster = scenario.plan, scenario.cluster
    replica = plan.num_gpus // plan.dp
    if num_gpus > cluster.num_gpus:
        nodes = -(-num_gpus // cluster.node.gpus_per_node)
        raise SpecError(
            f"{num_gpus:,} GPUs are more than the {cluster.num_gpus:,} of cluster {cluster.name!r}; take at most as "
            f"many, or set cluster.num_nodes to {nodes:,}"
        )
    largest = (num_gpus - 1) // replica
    if largest < 1:
        raise SpecError(
            f"{num_gpus:,} GPUs leave none for rollouts beside one replica (the plan's tp · cp · pp = {replica}). Take "
            f"at least {replica + 1:,}, or a plan that cuts the model into fewer parts"
        )
    found: dict[int, RlStep] = {}
    why: list[FlopcastError] = []

    def attempt(dp: int) -> None:
        rest = num_gpus - dp * replica
        rest -= rest % cluster.node.gpus_per_node if rest >= cluster.node.gpus_per_node else 0
        if dp in found or rest < 1:
            return
        try:
            trained = with_replicas(scenario, dp)
            work = trainer_work(trained, samples, recipe)
            work.answer.require_fit()
            found[dp] = split_of(trained, samples, rest, work, inference, exchange, asynchrony)
        except FlopcastError as error:
            why.append(error)

    apart = max(1, -(-largest // most))
    for dp in {1, *range(apart, largest + 1, apart)}:
        attempt(dp)
    if found and apart > 1:
        best = min(found, key=lambda dp: found[dp].step_time_s)
        for dp in range(max(1, best - apart + 1), min(largest, best + apart - 1) + 1, max(1, apart // 4)):
            attempt(dp)
    if not found:
        raise why[-1]
    return tuple(found[dp] for dp in sorted(found))
