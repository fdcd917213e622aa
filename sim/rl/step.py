"""One step of reinforcement learning: how long it takes with two pools or on the same GPUs, and what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sim.costs.collectives import Fabric
from sim.costs.inference import WIDTHS, Engine
from sim.errors import FlopcastError, InfeasiblePlan, SpecError, nearest, require_positive
from sim.network.placement import Group
from sim.rl.loop import Loop, Period, alternating, period_of
from sim.rl.rollout import MEMORY_SHARE, RUNNING, SHARED_MEMORY_SHARE, RolloutPool, steady_time
from sim.rl.samples import Samples
from sim.rl.trainer import Recipe, TrainerWork, trainer_work, with_replicas
from sim.rl.weight_sync import Exchange, reshard_time, switch_time, sync_time
from sim.specs import GpuSpec, Scenario
from sim.units import show_time

WORKSPACE_BYTES = 4e9
"""Of a GPU what an engine needs beside weights and cache: activations, CUDA graphs, NCCL. Assumed."""
ENGINES = 0.83
"""Of the rates predicted here what an engine reaches: the median of 77 printed ones (`validation.rl`)."""
PUBLISHED = (1.2, 3.6)
"""Published steps over predicted ones: the least and the most of ten of NeMo RL (`validation.rl`)."""
DEPTHS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Depths that are compared."""


@dataclass(frozen=True, slots=True)
class Inference:
    """How rollouts are run.

    tp : GPUs of a replica; default: the fastest of 1, 2, 4, ... that has room.
    weights, cache : format of weights and of keys and values: bf16 or fp8.
    bandwidth_share : of the memory's peak that a step's kernels reach; default: the profile's, of large kernels.
    memory_share : of a GPU's memory what the engine takes; default: 0.9, and 0.6 where training shares the GPUs.
    most_running : sequences that a replica decodes at once at most.
    step_overhead_s : what the GPUs wait for the host in every step of decoding. [s]
    """

    tp: int | None = None
    weights: str = "bf16"
    cache: str = "bf16"
    bandwidth_share: float | None = None
    memory_share: float | None = None
    most_running: int = RUNNING
    step_overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("weights", self.weights), ("cache", self.cache)):
            if value not in WIDTHS:
                raise SpecError(f"rollouts have no {name} in {value!r}{nearest(value, WIDTHS)}")
        if self.tp is not None:
            require_positive(rollout_tp=self.tp)
        require_positive(most_running=self.most_running)
        for name, share in (("bandwidth_share", self.bandwidth_share), ("memory_share", self.memory_share)):
            if share is not None and not 0 < share <= 1:
                raise SpecError(f"{name} = {share:g} must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """How far rollouts may run ahead.

    depth : versions by which samples may be behind.
    in_flight : weights are exchanged under running responses; else batches are written to their end.
    reward_s : from a response's last token to its reward. [s]
    """

    depth: float = 1.0
    in_flight: bool = True
    reward_s: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class RlStep:
    """One step of the loop, and what it consists of.

    colocated : rollouts and training take turns on the same GPUs.
    sync_s : handing weights over. [s]
    switch_s : copies to the host and back, of GPUs that change sides. [s]
    """

    scenario: Scenario
    samples: Samples
    pool: RolloutPool
    work: TrainerWork
    loop: Loop
    period: Period
    sync_s: float
    switch_s: float = 0.0
    colocated: bool = False
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        """One line: the fields hold whole estimates."""
        return f"<RlStep {self.scenario.name}: {show_time(self.step_time_s)} a step, limited by {self.limit}>"

    @property
    def num_gpus(self) -> int:
        """Of both pools."""
        training = self.scenario.plan.num_gpus
        return training if self.colocated else training + self.pool.num_gpus

    @property
    def step_time_s(self) -> float:
        """From version to version of the weights. [s]"""
        return self.period.seconds

    @property
    def responses_per_s(self) -> float:
        """That are trained on. [1/s]"""
        return self.samples.responses / self.step_time_s

    @property
    def tokens_per_s(self) -> float:
        """That are trained on, prompts included. [tokens/s]"""
        return self.samples.tokens / self.step_time_s

    @property
    def written_tokens_per_s(self) -> float:
        """That a GPU of the rollout pool writes while it never runs empty. [tokens/s]"""
        flow = steady_time(self.pool, self.samples)
        return self.samples.written * self.samples.lengths.mean / flow / self.pool.num_gpus

    @property
    def limit(self) -> str:
        """What a shorter step would take: faster rollouts, faster training, or more depth for the tail."""
        return self.period.limit

    @property
    def trainer_parts(self) -> dict[str, float]:
        """The step of a training GPU; the parts sum to it. [s]"""
        parts = dict(self.work.parts)
        if self.colocated:
            return {"rollouts": self.period.rollout_s, **parts, **self._handing_over()}
        held = self.loop.sync_held_s
        parts["weight sync"] = held
        parts["waits for rollouts"] = max(self.step_time_s - self.work.seconds - held, 0.0)
        return {name: seconds for name, seconds in parts.items() if seconds}

    def _handing_over(self) -> dict[str, float]:
        return {name: value for name, value in (("weight sync", self.sync_s), ("switch", self.switch_s)) if value}

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
        if self.loop.depth == 0:
            waits = min(rest, self.work.seconds)
        elif self.limit == "training":
            waits = rest
        parts = {"writing": full, "weight sync": self.sync_s, "tail": rest - waits, "waits for training": waits}
        return {name: seconds for name, seconds in parts.items() if seconds > 1e-9 * self.step_time_s}

    def at_depth(self, depth: float) -> RlStep:
        """The same pools with another depth."""
        loop = replace(self.loop, depth=depth)
        return replace(self, loop=loop, period=period_of(self.pool, self.samples, loop))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON; the keys are in docs/reinforcement-learning.md."""
        pool, samples = self.pool, self.samples
        return {
            "scenario": self.scenario.name,
            "colocated": self.colocated,
            "num_gpus": self.num_gpus,
            "training_gpus": self.scenario.plan.num_gpus,
            "rollout_gpus": pool.num_gpus,
            "rollout_tp": pool.engine.tp,
            "rollout_replicas": pool.replicas,
            "rollout_running": pool.running(samples, self.colocated or self.loop.depth == 0),
            "depth": self.loop.depth,
            "step_time_s": self.step_time_s,
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
        engine, samples = self.pool.engine, self.samples
        own = (
            f"responses are log-normal or as given, {samples.lengths.mean:,.0f} tokens on average, cut off at "
            f"{samples.lengths.longest:,.0f}; the policy's lengths do not change as it learns",
            f"decoding reaches {engine.memory_share:.0%} of the memory's bandwidth in every kernel, the sums between "
            f"GPUs NCCL's latency, prompts are read once a group, routing to experts is even",
            f"{self.work.recipe.packing:.0%} of packed sequences is samples; a reference model or critic fits besides",
            "nothing fails, and no tools or environments are waited for beyond the reward's time",
            f"engines reach {ENGINES:.0%} of such rates (TensorRT-LLM on H100 and H200, in the median), and what a "
            f"framework does between the phases is not counted: published steps (NeMo RL) took {PUBLISHED[0]:g} to "
            f"{PUBLISHED[1]:g} times as long",
        )
        return (*self.notes, *own)


def engine_of(scenario: Scenario, inference: Inference, tp: int) -> Engine:
    """A replica of `tp` GPUs of the scenario's cluster."""
    cluster, profile, gpu = scenario.cluster, scenario.profile, scenario.cluster.gpu
    share = profile.memory.efficiency if inference.bandwidth_share is None else inference.bandwidth_share
    return Engine(
        model=scenario.model,
        tp=tp,
        weight_format=inference.weights,
        cache_format=inference.cache,
        peak_flop_per_s=gpu.peak(_matrix_units(gpu, inference.weights)),
        bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        memory_share=share,
        gemm=profile.gemm,
        fabric=Fabric.of(cluster, profile),
        group=Group(tp, min(tp, cluster.nvlink_domain_gpus), tp > cluster.nvlink_domain_gpus),
        step_overhead_s=inference.step_overhead_s,
    )


def _matrix_units(gpu: GpuSpec, weights: str) -> str:
    """Units that multiply weights of a format: where they know no 8 bits they multiply in 16."""
    return next((name for name in (weights, "bf16", "fp16") if name in gpu.peak_flop_per_s), "fp32")


def pool_of(scenario: Scenario, inference: Inference, num_gpus: int, tp: int, colocated: bool) -> RolloutPool:
    """A pool of `num_gpus` as replicas of `tp`."""
    engine = engine_of(scenario, inference, tp)
    share = inference.memory_share or (SHARED_MEMORY_SHARE if colocated else MEMORY_SHARE)
    free = share * scenario.cluster.gpu.memory_bytes - engine.weight_bytes - WORKSPACE_BYTES
    return RolloutPool(engine, num_gpus // tp, free, inference.most_running)


def _degrees(scenario: Scenario, inference: Inference, num_gpus: int) -> Iterator[int]:
    """Rollout tensor-parallel degrees that may be tried, those inside an NVLink domain first."""
    if inference.tp is not None:
        if num_gpus % inference.tp:
            raise SpecError(
                f"rollout tp {inference.tp} does not divide the {num_gpus} rollout GPUs; take "
                f"{max(1, num_gpus // inference.tp) * inference.tp} GPUs, or another tp"
            )
        yield inference.tp
        return
    tp = 1
    while tp <= num_gpus:
        if num_gpus % tp == 0 and scenario.model.num_heads % tp == 0:
            yield tp
        tp *= 2


def _best(steps: Iterable[RlStep]) -> RlStep:
    """The fastest; of those within a hundredth of it the one whose rollouts are."""
    found = list(steps)
    least = min(step.step_time_s for step in found)
    return min((step for step in found if step.step_time_s <= 1.01 * least), key=lambda step: step.period.rollout_s)


def _tried(
    scenario: Scenario, samples: Samples, inference: Inference, num_gpus: int, colocated: bool
) -> list[RolloutPool]:
    """Pools of every degree that has room; over more than a domain only where none inside one has.

    Raises
    ------
    InfeasiblePlan
        None has.
    """
    found: list[RolloutPool] = []
    why: InfeasiblePlan | None = None
    for tp in _degrees(scenario, inference, num_gpus):
        if found and tp > scenario.cluster.nvlink_domain_gpus:
            break
        pool = pool_of(scenario, inference, num_gpus, tp, colocated)
        try:
            pool.require_cache(samples)
        except InfeasiblePlan as error:
            why = error
            continue
        found.append(pool)
    if not found:
        assert why is not None
        raise why
    return found


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

    Parameters
    ----------
    scenario : Scenario
        Its batch is set to what the samples make.
    samples : Samples
    rollout_gpus : int
    recipe : Recipe, optional
    inference : Inference, optional
    exchange : Exchange, optional
    asynchrony : Asynchrony, optional

    Returns
    -------
    RlStep
        With the fastest tensor-parallel degree of rollouts, if `inference` names none.

    Raises
    ------
    SpecError
        More GPUs than the cluster has, or samples that do not fit into the scenario's sequences.
    InfeasiblePlan
        A rollout replica whose weights and longest sequence do not fit.
    """
    _require_room(scenario, rollout_gpus)
    return split_of(
        scenario, samples, rollout_gpus, trainer_work(scenario, samples, recipe), inference, exchange, asynchrony
    )


def _require_room(scenario: Scenario, rollout_gpus: int) -> None:
    require_positive(rollout_gpus=rollout_gpus)
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
        loop = Loop(work.seconds, sync, held, asynchrony.reward_s, asynchrony.depth, asynchrony.in_flight)
        return RlStep(scenario, samples, pool, work, loop, period_of(pool, samples, loop), sync)

    return _best(map(step, _tried(scenario, samples, inference, rollout_gpus, colocated=False)))


def colocated_step(
    scenario: Scenario,
    samples: Samples,
    *,
    recipe: Recipe | None = None,
    inference: Inference | None = None,
    reward_s: float = 0.0,
) -> RlStep:
    """A step in which the scenario's GPUs write, then train: on policy, with a switch between.

    The training job's weights and optimizer wait in the host's memory while the GPUs write.

    Raises
    ------
    SpecError, InfeasiblePlan
        As of `split_step`; or a node that does not say how fast its host is.
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

    return _best(map(step, _tried(scenario, samples, inference, scenario.plan.num_gpus, colocated=True)))


def same_gpus_colocated(step: RlStep, inference: Inference | None = None, reward_s: float = 0.0) -> RlStep | None:
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
