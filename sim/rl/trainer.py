"""What the training pool does with a batch: log-probabilities, gradient steps.

A gradient step is the scenario's step at the batch that its samples make when they are packed into its sequences;
forward passes alone run its forwards in the same pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from sim.engines.program import price_order
from sim.errors import SpecError, require_not_negative, require_positive
from sim.estimate import Estimate, estimate
from sim.pricing.cells import plans_of
from sim.rl.samples import Samples
from sim.schedules import get_schedule
from sim.specs import ParallelPlan, Scenario

PACKING = 0.95
"""Share of packed sequences that is samples, the rest padding. Assumed: first-fit packing of many short samples."""


PASS_S = 3.5
"""What a framework takes around each pass over a batch (log-probabilities, gradient steps) besides computing it:
samples are collected, padded, packed and sent. The median of fifteen steps that NeMo RL timed by phase. [s]"""


DEEPEST = 64
"""Versions by which samples may be behind at most; a larger number is taken for a mistake."""
REWARD_S = 5.0
"""What a step takes for rewards, advantages and logs: what is left of fifteen steps that NeMo RL timed by phase. [s]"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an algorithm does with a batch besides writing it, and how far rollouts run ahead.

    updates : gradient steps per batch (mini-batches).
    epochs : passes over each batch.
    reference : compute a reference model's log-probabilities, for a KL penalty.
    old_log_probs : the policy's log-probabilities before the first update come from the training engine, or from the
        rollout engine.
    depth : weight versions by which samples may be behind.
    reward_s : time from a batch's last token to its rewards and advantages. [s]
    """

    updates: int = 1
    epochs: int = 1
    reference: bool = False
    old_log_probs: bool = True
    depth: float = 1.0
    reward_s: float = REWARD_S

    def __post_init__(self) -> None:
        require_positive(updates=self.updates, epochs=self.epochs)
        require_not_negative(depth=self.depth, reward_s=self.reward_s)
        if self.depth > DEEPEST:
            raise SpecError(
                f"depth = {self.depth:g}: samples that many versions behind are not simulated; give at most {DEEPEST}"
            )


@dataclass(frozen=True, slots=True)
class TrainerWork:
    """The training pool's step. [s]

    answer : the estimate of one gradient step.
    forward_s : one forward pass over the batch.
    """

    recipe: Recipe
    answer: Estimate
    forward_s: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what is done. [s]"""
        recipe, steps = self.recipe, self.recipe.updates * self.recipe.epochs
        gradient = steps * self.answer.step_time_s
        parts = {
            "old log-probs": self.forward_s * recipe.old_log_probs,
            "reference": self.forward_s * recipe.reference,
            "gradient steps": gradient,
            "framework": PASS_S * (1 + recipe.old_log_probs + recipe.reference),
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    @property
    def seconds(self) -> float:
        """All of it. [s]"""
        return sum(self.parts.values())


def trainer_work(scenario: Scenario, samples: Samples, recipe: Recipe) -> TrainerWork:
    """What a batch takes of the scenario's plan."""
    training, plan = scenario.training, scenario.plan
    longest = ceil(samples.longest_tokens)
    if longest > training.sequence_length:
        raise SpecError(
            f"the longest sample, {samples.prompt_tokens:,.0f} tokens of prompt and {samples.lengths.longest:,.0f} of "
            f"response, does not fit into training.sequence_length = {training.sequence_length:,}; "
            f"add -s training.sequence_length={-(-longest // 1024) * 1024}, or lower the longest response"
        )
    sequences = samples.tokens / (PACKING * training.sequence_length)
    at_once = plan.dp * plan.microbatch_size  # every replica runs as many micro-batches
    step, forward = (
        replace_batch(scenario, at_once * _runnable(plan, ceil(share / at_once)), samples)
        for share in (sequences / recipe.updates, sequences)
    )
    needed = recipe.old_log_probs or recipe.reference
    return TrainerWork(recipe, estimate(step), forward_time(forward) if needed else 0.0)


def _runnable(plan: ParallelPlan, count: int) -> int:
    """The fewest micro-batches from `count` on that the plan's schedule takes; the rest are padding."""
    schedule = get_schedule(plan.schedule)
    for more in range(count, count + 2 * plan.pp + 1):
        if schedule.requirement(plan.pp, plan.num_chunks, more) is None:
            return more
    return count  # which the schedule refuses with its reason


def replace_batch(scenario: Scenario, sequences: int, samples: Samples) -> Scenario:
    """The scenario with so many sequences a step, packed with samples."""
    packed = min(scenario.training.sequence_length, max(1, round(samples.packed_length)))
    training = scenario.training.replace(global_batch_size=sequences, packed_length=packed)
    return scenario.replace(training=training)


def forward_time(scenario: Scenario) -> float:
    """Time of the forward pass of a step alone: log-probabilities or values of its samples.  [s]

    The busiest rank runs all micro-batches, and the first reaches it through the others' first chunks or leaves it
    through them: (m + (p − 1)/v) t_F of Narayanan et al. 2021, arXiv:2104.04473, section 2.2, for ranks that differ.
    """
    order, costs, _ = price_order(scenario, plans_of(scenario))
    seconds = costs.forward_s + (costs.send_forward_s if costs.p2p_blocks else 0.0)
    rank_of_stage = np.asarray(order.rank_of_stage)
    busy = np.bincount(rank_of_stage, weights=seconds, minlength=order.num_ranks) / order.copies
    slowest = int(busy.argmax())
    first = costs.forward_s[: order.num_ranks] + costs.send_forward_s[: order.num_ranks]
    fill = float(np.delete(first, slowest).sum()) if order.num_ranks > 1 else 0.0
    return float(scenario.num_microbatches * busy[slowest] + scenario.flushes * fill + costs.step_setup_s)


def with_replicas(scenario: Scenario, dp: int) -> Scenario:
    """The scenario with so many data-parallel replicas, and the least batch that they take."""
    plan, training = scenario.plan, scenario.training
    least = dp * plan.microbatch_size * _runnable(plan, 1)
    return scenario.replace(plan=plan.replace(dp=dp), training=training.replace(global_batch_size=least))
