"""One step of reinforcement learning: how long it takes with two pools or on the same GPUs, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sim.rl.rollout import Loop, Period, RolloutPool, period_of, steady_time
from sim.rl.samples import Samples
from sim.rl.trainer import TrainerWork
from sim.specs import Scenario
from sim.units import show_time

ENGINES = 0.85
"""Share of a predicted rate that an engine reaches: the median of 77 printed rates (`flopcast_validation.rl_runs`)."""
MEASURED = (0.82, 1.61)
"""Measured over predicted steps: nine tenths of 64 of NeMo RL, each source counting as much
(`flopcast_validation.rl_runs`)."""


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
        """Return the step of these pools at another depth."""
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
            "rollout_gpu": pool.gpu,
            "rollout_tp": pool.engine.tp,
            "rollout_replicas": pool.replicas,
            "rollout_running": pool.running(samples, self.colocated or self.loop.depth == 0),
            "depth": self.loop.depth,
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
        engine, samples = self.pool.engine, self.samples
        own = (
            f"nine in ten published steps of NeMo RL took {MEASURED[0]:g} to {MEASURED[1]:g} times the predicted time; "
            "the time between the phases is the median of theirs",
            f"engines reach {ENGINES:.0%} of ideal rates (median of TensorRT-LLM on H100 and H200), and nothing fails",
            f"decoding uses {engine.memory_share:.0%} of the memory's bandwidth in every kernel; prompts are read once "
            "per group; routing to experts is even",
            f"responses have {samples.lengths.mean:,.0f} tokens on average and at most {samples.lengths.longest:,.0f}; "
            "their lengths do not change as the policy learns",
            f"packed sequences are {self.work.recipe.packing:.0%} full; a reference model or critic fits in memory too",
        )
        return (*self.notes, *own)
