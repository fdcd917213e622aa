"""One step of reinforcement learning: with two pools of GPUs, the best split of them, or in turns on the same GPUs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sim.costs.block import Host
from sim.costs.collectives import Fabric
from sim.errors import FlopcastError, SpecError, require_positive
from sim.rl.inference import ACTIVATION_WIDTH, WIDTHS, Inference, RolloutPool, inference_params
from sim.rl.rollout import Period, period_of, pools_with_room, steady_time
from sim.rl.samples import Samples
from sim.rl.trainer import PACKING, Recipe, TrainerWork, trainer_work, with_replicas
from sim.specs import Scenario
from sim.units import show_time
from sim.work.operations import adapters_of
from sim.work.sums import model_layers, params

ENGINES = 0.85
"""Share of a predicted rate that an engine reaches: the median of 77 printed rates (`flopcast_validation.rl_runs`)."""
MEASURED = (0.82, 1.6)
"""Measured over predicted steps: nine tenths of 64 of NeMo RL, each source counting as much
(`flopcast_validation.rl_runs`)."""

REFIT_S = 5.0
"""What a framework takes for new weights besides sending them: they are named as the engine has them, caches are
emptied and captured anew. Set on fifteen steps that NeMo RL timed by phase. [s]"""
REFIT_BYTES_PER_S = 50e9
"""Weights of a whole model that go from training to the engine on the same GPUs, tensor by tensor; from the same runs.
[bytes/s]"""


def synced_bytes(scenario: Scenario, pool: RolloutPool) -> float:
    """Weights of the model in the rollouts' format; of a frozen model its adapters in 16 bits. [bytes]"""
    adapters = adapters_of(scenario.training)
    if adapters is None:
        return WIDTHS[pool.how.weights] * inference_params(pool.model)
    layers = model_layers(scenario.model, adapters=adapters)
    return ACTIVATION_WIDTH * sum(count * float(params(layer, adapters=True)) for count, _, layer in layers)


@dataclass(frozen=True, repr=False)
class RlStep:
    """One step of the loop, and what it consists of.

    depth : weight versions by which samples may be behind.
    colocated : rollouts and training take turns on the same GPUs.
    """

    scenario: Scenario
    samples: Samples
    pool: RolloutPool
    work: TrainerWork
    depth: float
    colocated: bool = False

    @cached_property
    def sync_s(self) -> float:
        """Time from the update to the last replica with new weights.  [s]

        On the same GPUs they go from training shards to rollout shards. Else every training GPU sends its shards by
        its own card, and every rollout GPU takes its part by its own (slime, over RDMA; NeMo RL takes as long).
        """
        scenario, pool, nbytes = self.scenario, self.pool, synced_bytes(self.scenario, self.pool)
        if self.colocated:
            return REFIT_S + nbytes / REFIT_BYTES_PER_S
        network = (fabric := Fabric.of(scenario.cluster, scenario.profile)).network
        moved = max(pool.replicas * nbytes / scenario.plan.num_gpus, nbytes / pool.tp)
        start = network.base_latency_s + network.hop_latency_s
        return REFIT_S + float(start + moved / (network.in_training() * fabric.network_bytes_per_s))

    @cached_property
    def switch_s(self) -> float:
        """Copies of the training job's weights and optimizer to the host before rollouts, and back behind them.  [s]

        Gradients and activations are freed, not copied.
        """
        if not self.colocated:
            return 0.0
        host, largest = Host.of(self.scenario.cluster.node, self.scenario.profile), self.work.answer.largest
        nbytes = float(largest.weights + largest.optimizer)
        return float(host.out_s(nbytes) + host.back_s(nbytes))

    @cached_property
    def period(self) -> Period:
        """The loop from one version of the weights to the next."""
        handed_over, work = self.sync_s + self.switch_s, self.work
        return period_of(self.pool, self.samples, work.seconds, handed_over, work.recipe.reward_s, self.depth)

    def __repr__(self) -> str:
        """One line: the fields hold whole estimates."""
        return f"<RlStep {self.scenario.name}: {show_time(self.step_time_s)} a step, limited by {self.limit}>"

    @property
    def num_gpus(self) -> int:
        """GPUs of both pools."""
        training = self.scenario.plan.num_gpus
        return training if self.colocated else training + self.pool.num_gpus

    @property
    def step_time_s(self) -> float:
        """Time from one version of the weights to the next. [s]"""
        return self.period.seconds

    @property
    def responses_per_s(self) -> float:
        """Rate of responses that are trained on. [1/s]"""
        return self.samples.responses / self.step_time_s

    @property
    def tokens_per_s(self) -> float:
        """Rate of tokens that are trained on, prompts included. [tokens/s]"""
        return self.samples.tokens / self.step_time_s

    @property
    def written_tokens_per_s(self) -> float:
        """Rate at which a GPU of the rollout pool writes while it never runs empty. [tokens/s]"""
        flow = steady_time(self.pool, self.samples)
        return self.samples.responses * self.samples.lengths.mean / flow / self.pool.num_gpus

    @property
    def limit(self) -> str:
        """What a shorter step would take: faster rollouts, faster training, or more depth for the tail."""
        return self.period.limit

    @property
    def trainer_parts(self) -> dict[str, float]:
        """The step of a training GPU; the parts sum to it. [s]"""
        parts = dict(self.work.parts)
        if self.colocated:
            handing_over = {"weight sync": self.sync_s, "switch": self.switch_s}
            given = {name: seconds for name, seconds in handing_over.items() if seconds}
            return {"rollouts": self.period.rollout_s, **parts, **given}
        parts["weight sync"] = self.sync_s
        parts["waits for rollouts"] = max(self.step_time_s - self.work.seconds - self.sync_s, 0.0)
        return {name: seconds for name, seconds in parts.items() if seconds > 1e-9 * self.step_time_s}

    @property
    def rollout_parts(self) -> dict[str, float]:
        """The step of a rollout GPU; the parts sum to it. [s]

        Writing is what the pool takes for a batch while it never runs empty; where a batch is waited for to its end the
        rest of its time is the tail.
        """
        if self.colocated:
            return {}
        full = min(steady_time(self.pool, self.samples), self.step_time_s - self.sync_s)
        rest = max(self.step_time_s - full - self.sync_s, 0.0)
        waits = 0.0
        if self.depth == 0:
            waits = min(rest, self.work.seconds)
        elif self.limit == "training":
            waits = rest
        parts = {"writing": full, "weight sync": self.sync_s, "tail": rest - waits, "waits for training": waits}
        return {name: seconds for name, seconds in parts.items() if seconds > 1e-9 * self.step_time_s}

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON; the keys are in docs/reinforcement-learning.md."""
        pool, samples = self.pool, self.samples
        return {
            "scenario": self.scenario.name,
            "colocated": self.colocated,
            "num_gpus": self.num_gpus,
            "training_gpus": self.scenario.plan.num_gpus,
            "rollout_gpus": pool.num_gpus,
            "rollout_gpu": self.scenario.cluster.gpu.name,
            "rollout_tp": pool.tp,
            "rollout_replicas": pool.replicas,
            "rollout_running": pool.running(samples, self.colocated or self.depth == 0),
            "depth": self.depth,
            "step_time_s": self.step_time_s,
            "step_time_interval_s": [factor * self.step_time_s for factor in MEASURED],
            "limit": self.limit,
            "responses_per_s": self.responses_per_s,
            "tokens_per_s": self.tokens_per_s,
            "written_tokens_per_s_per_gpu": self.written_tokens_per_s,
            "rollout_s": self.period.rollout_s,
            "training_s": self.work.seconds,
            "weight_sync_s": self.sync_s,
            "switch_s": self.switch_s,
            "training_pool": self.trainer_parts,
            "rollout_pool": self.rollout_parts,
            "gradient_step_s": self.work.answer.step_time_s,
            "sequences_per_gradient_step": self.work.answer.scenario.training.global_batch_size,
            "mean_response_tokens": samples.lengths.mean,
            "longest_response_tokens": samples.lengths.longest,
            "fits": self.work.answer.fits,
            "assumptions": list(self.assumptions),
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the answer takes for granted."""
        memory, samples = self.scenario.profile.memory, self.samples
        own = (
            f"nine in ten published steps of NeMo RL took {MEASURED[0]:g} to {MEASURED[1]:g} times the predicted time; "
            "the time between the phases is the median of theirs",
            f"engines reach {ENGINES:.0%} of ideal rates (median of TensorRT-LLM on H100 and H200), and nothing fails",
            f"decoding uses {memory.efficiency:.0%} of the memory's bandwidth in every kernel; prompts "
            "are read once per group; routing to experts is even",
            f"responses have {samples.lengths.mean:,.0f} tokens on average and at most {samples.lengths.longest:,.0f}; "
            "their lengths do not change as the policy learns",
            f"packed sequences are {PACKING:.0%} full; a reference model fits in memory too",
        )
        waits = "the training job's weights and optimizer are in the host's memory while rollouts run"
        return (waits, *own) if self.colocated else own


DEPTHS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Depths that are compared."""


def split_step(
    scenario: Scenario,
    samples: Samples,
    rollout_gpus: int,
    recipe: Recipe | None = None,
    inference: Inference | None = None,
) -> RlStep:
    """A step with two pools: the scenario's plan trains, `rollout_gpus` more of its cluster write.

    scenario : its batch is set to what the samples make.

    It has the fastest tensor-parallel degree of rollouts, if `inference` names none.
    """
    require_positive(rollout_gpus=rollout_gpus)
    trained = scenario.plan.num_gpus
    words = f"{rollout_gpus:,} rollout GPUs and {trained:,} of the plan"
    _require_gpus(scenario, words, trained + rollout_gpus, trained)
    return _fastest(scenario, samples, rollout_gpus, recipe, inference, colocated=False)


def colocated_step(
    scenario: Scenario, samples: Samples, recipe: Recipe | None = None, inference: Inference | None = None
) -> RlStep:
    """A step in which the scenario's GPUs write, then train: on policy, with a switch between.

    The training job's weights and optimizer wait in the host's memory while the GPUs write.
    """
    return _fastest(scenario, samples, scenario.plan.num_gpus, recipe, inference, colocated=True)


def _fastest(
    scenario: Scenario,
    samples: Samples,
    rollout_gpus: int,
    recipe: Recipe | None,
    inference: Inference | None,
    colocated: bool,
) -> RlStep:
    """The fastest step of all degrees of rollouts; of those within a hundredth of it the one whose rollouts are."""
    work = trainer_work(scenario, samples, recipe or Recipe())
    pools = pools_with_room(scenario, samples, inference or Inference(), rollout_gpus, colocated)
    depth = 0.0 if colocated else work.recipe.depth
    steps = [RlStep(scenario, samples, pool, work, depth, colocated) for pool in pools]
    least = min(step.step_time_s for step in steps)
    return min((step for step in steps if step.step_time_s <= 1.01 * least), key=lambda step: step.period.rollout_s)


def same_gpus_colocated(step: RlStep, inference: Inference | None = None) -> RlStep | None:
    """The step on the GPUs of both pools, taking turns; None where the plan's replicas do not fill them, or where
    memory or the host forbid it."""
    plan = step.scenario.plan
    dp, left = divmod(step.num_gpus, plan.num_gpus // plan.dp)
    if left:
        return None
    with suppress(FlopcastError):
        return colocated_step(with_replicas(step.scenario, dp), step.samples, step.work.recipe, inference)
    return None


def _require_gpus(scenario: Scenario, words: str, num_gpus: int, trained: int = 0) -> None:
    """Refuse more GPUs than the cluster has, of which so many train."""
    cluster = scenario.cluster
    if num_gpus > cluster.num_gpus:
        raise SpecError(
            f"{words} are more than the {cluster.num_gpus:,} of cluster {cluster.name!r}; take at most "
            f"{max(cluster.num_gpus - trained, 0):,}, or set cluster.num_nodes to "
            f"{-(-num_gpus // cluster.node.gpus_per_node):,}"
        )


def _most_replicas(scenario: Scenario, num_gpus: int) -> int:
    """Replicas that leave at least one GPU for rollouts; refuse numbers of GPUs that leave none."""
    require_positive(gpus=num_gpus)
    replica = scenario.plan.num_gpus // scenario.plan.dp
    _require_gpus(scenario, f"{num_gpus:,} GPUs", num_gpus)
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
    recipe: Recipe | None = None,
    inference: Inference | None = None,
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
            step = split_step(with_replicas(scenario, dp), samples, rest, recipe, inference)
            step.work.answer.require_fit()
            found[dp] = step
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
