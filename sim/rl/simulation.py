"""The loop played response by response: what the formulas of `loop` are checked against.

The events know nothing of the formulas. Every replica is a process that decodes all its running responses together, a
few tokens at a time; responses begin in order as far as the depth allows; the trainer waits for as many finished groups
as a batch has, trains, and hands its weights over while the replicas pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from sim.rl.fluid import tabulated
from sim.rl.loop import Loop
from sim.rl.rollout import RolloutPool
from sim.rl.samples import Samples

TOKENS = 256
"""Pieces of the longest response after which a replica takes new responses in."""


def simulate_periods(pool: RolloutPool, samples: Samples, loop: Loop, steps: int = 12, seed: int = 0) -> float:
    """Mean time from version to version over the later two thirds of `steps` steps.  [s]

    Parameters
    ----------
    pool : RolloutPool
    samples : Samples
    loop : Loop
    steps : int
        Steps of the loop to play.
    seed : int
        The same seed draws the same lengths.
    """
    played = _Played(pool, samples, loop, steps, seed)
    played.environment.run(until=played.trained)
    ends = played.versions
    first = steps // 3
    return (ends[-1] - ends[first]) / (len(ends) - 1 - first)


class _Played:
    """The state of a loop that is played.

    next : response that begins next; they begin in order, each on the replica with the fewest.
    load : responses of every replica, those that wait for a slot included.
    """

    def __init__(self, pool: RolloutPool, samples: Samples, loop: Loop, steps: int, seed: int) -> None:
        self.pool, self.samples, self.loop = pool, samples, loop
        self.environment = simpy.Environment()
        self.groups = round(samples.written_groups)
        self.lengths = samples.lengths.drawn(int(self.groups * samples.group * (steps + loop.depth + 2)), seed)
        together = loop.depth == 0 or not loop.in_flight
        self.slots = max(1, int(pool.running(samples, together)))
        self.step_s = tabulated(pool, samples, self.slots)
        self.prefill_s = float(pool.engine.prefill_s(samples.prompt_tokens)) / samples.group
        self.version = 0
        self.next = 0
        self.queues: list[deque[int]] = [deque() for _ in range(pool.replicas)]
        self.of_group: dict[int, int] = {}
        self.ready: list[float] = []
        self.paused_until = 0.0
        self.load = [0] * pool.replicas
        self.wake = self.environment.event()
        self.changed = self.environment.event()
        self.versions: list[float] = [0.0]
        self.done = 0
        for replica in range(pool.replicas):
            self.environment.process(self._replica(replica))
        self.trained = self.environment.process(self._trainer(steps))
        self._admit()

    def _admit(self) -> None:
        """Responses that may begin with the version there is."""
        batch = self.groups * self.samples.group
        limit = round((self.version + self.loop.depth + 1) * batch)
        if not self.loop.in_flight:  # the next batch when the last one has been written
            limit = min(limit, (self.done // batch + 1) * batch)
        while self.next < min(limit, len(self.lengths)):
            least = min(range(len(self.load)), key=self.load.__getitem__)
            self.queues[least].append(self.next)
            self.load[least] += 1
            self.next += 1
        self.wake.succeed()
        self.wake = self.environment.event()

    def _replica(self, replica: int) -> Generator[Any, Any, None]:
        environment, lengths, queue = self.environment, self.lengths, self.queues[replica]
        piece = self.samples.lengths.longest / TOKENS
        numbers, left = np.empty(0, dtype=int), np.empty(0)
        while True:
            if environment.now < self.paused_until:
                yield environment.timeout(self.paused_until - environment.now)
                continue
            room = min(len(queue), self.slots - len(numbers))
            if room:
                taken = np.array([queue.popleft() for _ in range(room)])
                numbers, left = np.append(numbers, taken), np.append(left, lengths[taken])
                yield environment.timeout(room * self.prefill_s)
            if not len(numbers):
                yield self.wake
                continue
            tokens = max(min(piece, float(left.min())), 1e-6)
            context = self.samples.prompt_tokens + float((lengths[numbers] - left).mean()) + tokens / 2
            yield environment.timeout(tokens * self.step_s(float(len(numbers)), context))
            left -= tokens
            ended = left <= 1e-9
            for number in numbers[ended].tolist():
                self._ended(number, replica)
            numbers, left = numbers[~ended], left[~ended]

    def _ended(self, number: int, replica: int) -> None:
        self.load[replica] -= 1
        self.done += 1
        group = number // self.samples.group
        self.of_group[group] = self.of_group.get(group, 0) + 1
        if self.of_group[group] == self.samples.group:
            self.environment.process(self._rewarded())
        if not self.loop.in_flight:
            self._admit()

    def _rewarded(self) -> Generator[Any, Any, None]:
        yield self.environment.timeout(self.loop.reward_s)
        self.ready.append(self.environment.now)
        self.changed.succeed()
        self.changed = self.environment.event()

    def _trainer(self, steps: int) -> Generator[Any, Any, None]:
        environment, loop = self.environment, self.loop
        for _ in range(steps):
            while len(self.ready) < self.groups:
                yield self.changed
            del self.ready[: self.groups]
            yield environment.timeout(loop.training_s)
            self.version += 1
            self.paused_until = environment.now + loop.sync_s
            self.versions.append(environment.now + loop.sync_held_s)
            self._admit()
            yield environment.timeout(loop.sync_held_s)
