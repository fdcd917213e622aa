"""The loop: rollouts and training as a pipeline whose buffer is bounded by how old samples may be.

A step trains on one batch and makes one version of the weights. Of depth k, responses may begin before version v is
made as long as at most (v + k + 1) batches have begun in all [1]_: with depth 0 a batch waits for the version that it
is to train, and both pools alternate; every batch more in flight lets them overlap.

.. [1] Fu et al. 2025, "AReaL: a large-scale asynchronous reinforcement learning system for language reasoning",
   arXiv:2505.24298: N_r ≤ (i + η + 1) B, its max_head_offpolicyness (the paper's section was not looked up).
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import SpecError, require_not_negative, require_positive
from sim.rl.fluid import batch_time, played_period
from sim.rl.rollout import RolloutPool, steady_time
from sim.rl.samples import Samples

DEEPEST = 64
"""Versions by which samples may be behind at most: what is played grows with them."""
TAIL = 1.03
"""Times the least period, beyond which it is long responses that are waited for."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What the pools do in a step, besides writing responses.

    training_s : forward passes, gradients and updates on one batch. [s]
    sync_s : while rollouts take the new weights, and write nothing. [s]
    sync_held_s : of that, how long the training pool waits too. [s]
    reward_s : from a response's last token to its reward. [s]
    depth : versions by which samples may be behind; any number from 0.
    in_flight : weights are exchanged under responses that go on with them (in-flight updates); else every batch is
        written to its end before the next begins.
    """

    training_s: float
    sync_s: float = 0.0
    sync_held_s: float = 0.0
    reward_s: float = 0.0
    depth: float = 0.0
    in_flight: bool = True

    def __post_init__(self) -> None:
        require_positive(training_s=self.training_s)
        require_not_negative(sync_s=self.sync_s, sync_held_s=self.sync_held_s, reward_s=self.reward_s, depth=self.depth)
        if self.depth > DEEPEST:
            raise SpecError(
                f"depth = {self.depth:g}: samples that many versions behind are not simulated; give at most {DEEPEST}"
            )
        if not self.in_flight and self.depth != int(self.depth):
            raise SpecError(
                f"depth = {self.depth:g}: batches that are written to their end are whole; give a whole number, or "
                "update weights in flight"
            )

    @property
    def trainer_s(self) -> float:
        """A step of the training pool when it waits for nothing. [s]"""
        return self.training_s + self.sync_held_s


@dataclass(frozen=True, slots=True)
class Period:
    """One step of the loop.

    seconds : from version to version. [s]
    rollout_s : what the rollout pool needs for a batch; a whole one, to its last response, where it waits for it. [s]
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
        """Of the training pool, for samples. [s]"""
        return max(self.seconds - self.trainer_s, 0.0)


def alternating(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """Depth 0: a batch is written to its last response, trained on, and its weights are handed over."""
    written = batch_time(pool, samples) + loop.reward_s
    seconds = written + loop.training_s + loop.sync_s
    parts = {"rollouts": written, "training": loop.training_s, "weights": loop.sync_s}
    return Period(seconds, written, loop.trainer_s, max(parts, key=lambda name: parts[name]))


def overlapping_batches(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """Depth k with whole batches: the longest cycle of two stages with k + 1 batches between them.

    Batch i begins when batch i − 1 is written and version i − k is there; it is trained on when it is written and batch
    i − 1 was trained on. Such a system of maxima and sums goes round at its largest mean cycle [1]_:
    max(G + W, T, (G + T + W) / (k + 1)).

    .. [1] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", section 3.2.
    """
    if loop.depth < 1:
        return alternating(pool, samples, loop)
    written = batch_time(pool, samples) + loop.reward_s
    bounds = {
        "rollouts": written + loop.sync_s,
        "training": loop.trainer_s,
        "tail": (written + loop.training_s + loop.sync_s) / (loop.depth + 1.0),
    }
    limit = max(bounds, key=lambda name: bounds[name])
    return Period(bounds[limit], written, loop.trainer_s, _or_weights(limit, bounds[limit], loop))


def in_flight_updates(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """Depth k with weights that are exchanged under running responses, and a trainer that takes groups as they end.

    In steady state a batch begins with every version, and the next step trains once a batch's worth of groups is
    ready: w after the version, in a period of w + T. Of the batches that began 0, 1, 2, ... periods before, the share
    S(w + aP) is not ready; all that have begun less those is one batch more than was trained on when

        Σ_a S(w + a P) ≤ k,

    S the share of groups whose longest response takes longer (own derivation). The least such w is the wait: with k = 0
    the longest response of all, with k = 1 none if that takes no longer than a step of training. How long a response
    takes depends on how many run beside it, so that the number of them is followed through the periods until they
    repeat (`sim.rl.fluid`). No period is less than what the pool's throughput or the trainer needs.
    """
    if loop.depth == 0:
        return alternating(pool, samples, loop)
    flow = steady_time(pool, samples, (loop.depth + 1.0) * samples.written)
    bounds = {"rollouts": flow + loop.sync_s, "training": loop.trainer_s}
    limit = max(bounds, key=lambda name: bounds[name])
    least = bounds[limit]
    played = played_period(pool, samples, loop.depth, loop.training_s, loop.sync_s, loop.sync_held_s, loop.reward_s)
    seconds = max(least, min(played, alternating(pool, samples, loop).seconds))
    limit = "tail" if seconds > TAIL * least else limit
    return Period(seconds, flow, loop.trainer_s, _or_weights(limit, seconds, loop))


def _or_weights(limit: str, seconds: float, loop: Loop) -> str:
    """The limit, or weights where they are on their way for more than half of the period."""
    return "weights" if loop.sync_s > 0.5 * seconds else limit


def period_of(pool: RolloutPool, samples: Samples, loop: Loop) -> Period:
    """One step of the loop with two pools."""
    return (in_flight_updates if loop.in_flight else overlapping_batches)(pool, samples, loop)
