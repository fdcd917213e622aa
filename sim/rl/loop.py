"""The loop: rollouts and training as a pipeline whose buffer is bounded by how old samples may be.

A step trains on one batch and makes one version of the weights. Of depth k, responses may begin before version v is
made as long as at most (v + k + 1) batches have begun in all [1]_: with depth 0 a batch waits for the version that it
is to train, and both pools alternate; every batch more in flight lets them overlap.

.. [1] Fu et al. 2025, "AReaL: a large-scale asynchronous reinforcement learning system for language reasoning",
   arXiv:2505.24298: N_r ≤ (i + η + 1) B, its max_head_offpolicyness (the paper's section was not looked up).
.. [2] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import SpecError, require_not_negative, require_positive
from sim.rl.fluid import batch_time
from sim.rl.rollout import RolloutPool, steady_time
from sim.rl.samples import Samples

DEEPEST = 64
"""Versions by which samples may be behind at most; a larger number is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What the pools do in a step, besides writing responses.

    training_s : forward passes, gradients and updates on one batch. [s]
    sync_s : while rollouts take the new weights, and write nothing. [s]
    sync_held_s : of that, how long the training pool waits too. [s]
    reward_s : from a response's last token to its reward. [s]
    depth : versions by which samples may be behind; any number from 0.
    """

    training_s: float
    sync_s: float = 0.0
    sync_held_s: float = 0.0
    reward_s: float = 0.0
    depth: float = 0.0

    def __post_init__(self) -> None:
        require_positive(training_s=self.training_s)
        require_not_negative(sync_s=self.sync_s, sync_held_s=self.sync_held_s, reward_s=self.reward_s, depth=self.depth)
        if self.depth > DEEPEST:
            raise SpecError(
                f"depth = {self.depth:g}: samples that many versions behind are not simulated; give at most {DEEPEST}"
            )

    @property
    def trainer_s(self) -> float:
        """A step of the training pool when it waits for nothing. [s]"""
        return self.training_s + self.sync_held_s


@dataclass(frozen=True, slots=True)
class Period:
    """One step of the loop.

    seconds : from version to version. [s]
    rollout_s : what the rollout pool needs for a batch, to its last response. [s]
    trainer_s : what the training pool needs for it, and for the weights that it sends. [s]
    limit : rollouts, training, weights on their way, or the tail: waiting for long responses that more depth would
        hide. Where nothing overlaps, the longest of them.
    """

    seconds: float
    rollout_s: float
    trainer_s: float
    limit: str

    @property
    def trainer_waits_s(self) -> float:
        """Time that the training pool waits for samples. [s]"""
        return max(self.seconds - self.trainer_s, 0.0)


def alternating(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """Depth 0: a batch is written to its last response, trained on, and its weights are handed over."""
    written = _written_s(pool, samples, loop)
    seconds = written + loop.training_s + loop.sync_s
    parts = {"rollouts": written, "training": loop.training_s, "weights": loop.sync_s}
    return Period(seconds, written, loop.trainer_s, max(parts, key=lambda name: parts[name]))


def period_of(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """Depth k: the longest cycle of two stages with k + 1 batches between them.

    Batch i begins when version i − k is there, and is trained on when it is written and batch i − 1 was trained on.
    Such a system of maxima and sums goes round at its largest mean cycle [2]_. A batch takes G to its last response,
    and k of them run at once: (G + W)/k. One version off policy, measured steps are as long as a batch to its last
    response and the weights, also where these are exchanged under running responses (`flopcast_validation.rl_runs`).
    """
    if loop.depth == 0:
        return alternating(pool, samples, loop)
    written = _written_s(pool, samples, loop)
    flow = steady_time(pool, samples) + loop.sync_s
    bounds = {
        "rollouts": flow,
        "training": loop.trainer_s,
        "tail": max(
            (written + loop.sync_s) / max(loop.depth, 1.0),
            (written + loop.training_s + loop.sync_s) / (loop.depth + 1.0),
        ),
    }
    limit = max(bounds, key=lambda name: bounds[name])
    named = "weights" if loop.sync_s > 0.5 * bounds[limit] else limit
    return Period(bounds[limit], written, loop.trainer_s, named)


def _written_s(pool: RolloutPool, samples: Samples, loop: Loop) -> float:
    """Time from a batch's begin to the reward of its last response, with the wait for tools.  [s]"""
    return batch_time(pool, samples) + samples.turns * samples.tool_s + loop.reward_s
