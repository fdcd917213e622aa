"""The fastest step with two pools of GPUs, how they are split, and with one whose GPUs take turns in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sim.errors import FlopcastError, SpecError, require_positive
from sim.rl.pools import Inference, pools_with_room
from sim.rl.rollout import Loop, RolloutPool, alternating, period_of
from sim.rl.samples import Samples
from sim.rl.step import RlStep
from sim.rl.trainer import (
    Exchange,
    Recipe,
    TrainerWork,
    reshard_time,
    switch_time,
    sync_time,
    trainer_work,
    with_replicas,
)
from sim.specs import ClusterSpec, Scenario

DEPTHS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Depths that are compared."""


REWARD_S = 5.0
"""What a step takes for rewards, advantages and logs: what is left of fifteen steps that NeMo RL timed by phase. [s]"""


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """How far rollouts may run ahead.

    depth : weight versions by which samples may be behind.
    reward_s : time from a batch's last token to its rewards and advantages. [s]
    """

    depth: float = 1.0
    reward_s: float = REWARD_S


def _best(steps: Iterable[RlStep]) -> RlStep:
    """The fastest; of those within a hundredth of it the one whose rollouts are."""
    found = list(steps)
    least = min(step.step_time_s for step in found)
    return min((step for step in found if step.step_time_s <= 1.01 * least), key=lambda step: step.period.rollout_s)


def split_step(
    scenario: Scenario,
    samples: Samples,
    rollout_gpus: int,
    *,
    recipe: Recipe | None = None,
    inference: Inference | None = None,
    exchange: Exchange | None = None,
    asynchrony: Asynchrony | None = None,
) -> RlStep:
    """A step with two pools: the scenario's plan trains, `rollout_gpus` more of its cluster write.

    scenario : its batch is set to what the samples make.

    It has the fastest tensor-parallel degree of rollouts, if `inference` names none.
    """
    _require_room(scenario, rollout_gpus, None if inference is None else inference.cluster)
    return split_of(
        scenario, samples, rollout_gpus, trainer_work(scenario, samples, recipe), inference, exchange, asynchrony
    )


def _require_room(scenario: Scenario, rollout_gpus: int, apart: ClusterSpec | None) -> None:
    require_positive(rollout_gpus=rollout_gpus)
    if apart is not None:
        if rollout_gpus > apart.num_gpus:
            raise SpecError(
                f"{rollout_gpus:,} rollout GPUs are more than the {apart.num_gpus:,} of cluster {apart.name!r}"
            )
        return
    trained, there = scenario.plan.num_gpus, scenario.cluster.num_gpus
    if trained + rollout_gpus > there:
        nodes = -(-(trained + rollout_gpus) // scenario.cluster.node.gpus_per_node)
        raise SpecError(
            f"{rollout_gpus:,} rollout GPUs and {trained:,} of the plan are more than the {there:,} of cluster "
            f"{scenario.cluster.name!r}; take at most {max(there - trained, 0):,}, or set cluster.num_nodes to "
            f"{nodes:,}"
        )


def split_of(
    scenario: Scenario,
    samples: Samples,
    rollout_gpus: int,
    work: TrainerWork,
    inference: Inference | None,
    exchange: Exchange | None,
    asynchrony: Asynchrony | None,
) -> RlStep:
    """The step of two pools whose training is known."""
    inference, exchange = inference or Inference(), exchange or Exchange()
    asynchrony = asynchrony or Asynchrony()

    def step(pool: RolloutPool) -> RlStep:
        sync = sync_time(scenario, pool, exchange)
        held = 0.0 if exchange.overlap else sync
        loop = Loop(work.seconds, sync, held, asynchrony.reward_s, asynchrony.depth)
        return RlStep(scenario, samples, pool, work, loop, period_of(pool, samples, loop), sync)

    return _best(map(step, pools_with_room(scenario, samples, inference, rollout_gpus, colocated=False)))


def colocated_step(
    scenario: Scenario,
    samples: Samples,
    *,
    recipe: Recipe | None = None,
    inference: Inference | None = None,
    reward_s: float = REWARD_S,
) -> RlStep:
    """A step in which the scenario's GPUs write, then train: on policy, with a switch between.

    The training job's weights and optimizer wait in the host's memory while the GPUs write.
    """
    inference = inference or Inference()
    work = trainer_work(scenario, samples, recipe)
    switch = switch_time(scenario, work.answer)
    notes = ("the training job's weights and optimizer are in the host's memory while rollouts run",)

    def step(pool: RolloutPool) -> RlStep:
        sync = reshard_time(scenario, pool)
        loop = Loop(work.seconds, sync + switch, 0.0, reward_s, 0.0)
        period = alternating(pool, samples, loop)
        return RlStep(scenario, samples, pool, work, loop, period, sync, switch, True, notes)

    return _best(map(step, pools_with_room(scenario, samples, inference, scenario.plan.num_gpus, colocated=True)))


def same_gpus_colocated(step: RlStep, inference: Inference | None = None, reward_s: float = REWARD_S) -> RlStep | None:
    """The step on the GPUs of both pools, taking turns; None where the plan's replicas do not fill them, or where
    memory or the host forbid it."""
    plan = step.scenario.plan
    dp, left = divmod(step.num_gpus, plan.num_gpus // plan.dp)
    if left:
        return None
    try:
        return colocated_step(
            with_replicas(step.scenario, dp), step.samples, recipe=step.work.recipe, inference=inference,
            reward_s=reward_s,
        )  # fmt: skip
    except FlopcastError:
        return None


def _most_replicas(scenario: Scenario, num_gpus: int) -> int:
    """Replicas that leave at least one GPU for rollouts; refuse numbers of GPUs that leave none."""
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
    return largest


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
    """
    cluster, replica = scenario.cluster, scenario.plan.num_gpus // scenario.plan.dp
    largest = _most_replicas(scenario, num_gpus)
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
