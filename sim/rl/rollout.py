"""The rollout pool: how long replicas of an inference engine take to write a batch of responses.

What memory it has room for, how many sequences decode at once, what it gives where it never runs empty, and how long a
batch takes to its longest response.

Responses that begin within the same cell of tokens are a cohort: of n that began together n S(age) still run. What runs
on a replica and how long its sequences are sets the time of a step of decoding; what ends makes room for what waits.
Numbers of responses are means and need not be whole, so that a few hundred cells tell what thousands of responses do.

A step trains on one batch and makes one version of the weights. Of depth k, responses may begin before version v is
made as long as at most (v + k + 1) batches have begun in all [1]_: with depth 0 a batch waits for the version that it
is to train, and both pools alternate; every batch more in flight lets them overlap.

.. [1] Fu et al. 2025, "AReaL: a large-scale asynchronous reinforcement learning system for language reasoning",
   arXiv:2505.24298: N_r ≤ (i + η + 1) B, its max_head_offpolicyness (the paper's section was not looked up).
.. [2] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, sqrt
from statistics import NormalDist

import numpy as np

from sim.errors import InfeasiblePlan, SpecError
from sim.rl.inference import Inference, RolloutPool
from sim.rl.samples import Samples
from sim.specs import Scenario


def pools_with_room(
    scenario: Scenario, samples: Samples, inference: Inference, num_gpus: int, colocated: bool
) -> list[RolloutPool]:
    """Pools of every tensor-parallel degree that has room; over more than an NVLink domain only if none inside has."""
    if inference.tp is not None and num_gpus % inference.tp:
        raise SpecError(
            f"rollout tp {inference.tp} does not divide the {num_gpus} rollout GPUs; take "
            f"{max(1, num_gpus // inference.tp) * inference.tp} GPUs, or another tp"
        )
    powers, shared = (1 << power for power in range(num_gpus.bit_length())), gcd(num_gpus, scenario.model.num_heads)
    degrees = [tp for tp in powers if shared % tp == 0] if inference.tp is None else [inference.tp]
    found: list[RolloutPool] = []
    for tp in degrees:
        if found and tp > scenario.cluster.nvlink_domain_gpus:
            break
        pool = RolloutPool(scenario, inference, num_gpus, tp, colocated)
        try:
            pool.require_cache(samples)
            found.append(pool)
        except InfeasiblePlan:
            if not found and tp == degrees[-1]:
                raise
    return found


def steady_time(pool: RolloutPool, samples: Samples) -> float:
    """What a batch takes of a pool that never runs empty: tokens over throughput, and the reading of prompts.  [s]"""
    pool.require_cache(samples)
    slots = pool.running(samples, together=False)
    share = samples.responses / pool.replicas
    context = samples.prompt_tokens + samples.lengths.mean_age
    step = float(pool.decode_s(max(slots, 1.0), context))
    return share * samples.lengths.mean * step / slots + pool.prefill_s(samples)


EULER_GAMMA = 0.5772156649015329
LAST = float(np.exp(-EULER_GAMMA))
"""Groups that are not done on average when the last one will be: where lengths fall off exponentially, the largest of n
is at ln n + γ on average, and n exp(−(ln n + γ)) are beyond it (Gumbel)."""
WAVES = 4.0
"""Times that a batch fills the slots beyond which cells grow with them."""
LEAST_CELLS, COARSEST = 32, 8
"""Cells at least; and where a batch fills the slots so often (MANY) that a cell is a small part of it all the same."""
MANY = 64.0


def tabulated(pool: RolloutPool, samples: Samples, slots: float) -> Callable[[float, float], float]:
    """Seconds of a step of decoding by sequences and their tokens, between the points of a table."""
    numbers = np.unique(np.concatenate([[1.0], np.geomspace(1.0, max(slots, 2.0), 40)]))
    contexts = np.linspace(0.0, samples.longest_tokens, 33)
    table = pool.decode_s(numbers[:, None], contexts[None, :]).T

    def step_s(running: float, context: float) -> float:
        place = min(context / samples.longest_tokens, 1.0) * 32
        low = min(int(place), 31)
        return float(np.interp(running, numbers, table[low] + (place - low) * (table[low + 1] - table[low])))

    return step_s


def batch_time(pool: RolloutPool, samples: Samples) -> float:
    """How long the pool takes for one batch, from its first token to its last, all begun with the same weights.  [s]

    The slowest replica sets the pace, with at least one response running: by luck it has more to write than the others,
    as the largest of so many sums of random lengths (the mean of the largest of n normal numbers by Blom 1958).
    """
    pool.require_cache(samples)
    lengths, share, slots = samples.lengths, samples.responses / pool.replicas, pool.running(samples, together=True)
    deviation = sqrt(max(lengths.mean_square / lengths.mean**2 - 1.0, 0.0) / share)
    luck = 1.0 + deviation * NormalDist().inv_cdf((pool.replicas - 0.375) / (pool.replicas + 0.25))
    wanted, waiting = luck * (1.0 - LAST / samples.prompts), share * luck
    cells = _cells(samples, share, slots)
    cell = lengths.longest / cells
    edges = lengths.beyond(np.arange(cells + 1, dtype=float) * cell)
    surviving, middles = 0.5 * (edges[:-1] + edges[1:]), (np.arange(cells) + 0.5) * cell
    # Of a cohort of each age, the oldest first: the mean that still runs in a cell, its tokens, what is left behind
    # the cell, and the groups that are done; and what goes on running in the next cell.
    contexts = samples.prompt_tokens + middles
    by_age = [surviving, surviving * contexts, edges[1:], (1.0 - edges[1:]) ** samples.group]
    cached = surviving * pool.cache_bytes(contexts)
    after, going_on = np.stack(by_age)[:, ::-1].copy(), np.append(surviving[1:], 0.0)[::-1].copy()
    keeps_on = np.append(cached[1:], 0.0)[::-1].copy()
    step_s, prefill_s = tabulated(pool, samples, slots), pool.prefill_s(samples) / share
    begun, old, now, ready = np.zeros(cells), 0.0, 0.0, 0.0
    while True:
        # A slot that becomes free within the cell is taken within it: the mean number over the cell fills the slots, as
        # long as the cache has room. Slots are those of a cohort; of mixed ages fewer fit.
        free, room = slots - float(begun @ going_on), pool.room_bytes - float(begun @ keeps_on)
        begin = min(waiting, max(free, 0.0) / float(surviving[0]), max(room, 0.0) / float(cached[0]))
        waiting, old = waiting - begin, old + float(begun[0])
        begun = np.append(begun[1:], begin)
        running, tokens, left, done = (after @ begun).tolist()
        seconds = cell * step_s(running, tokens / max(running, 1e-12)) + begin * prefill_s
        before, ready, now = ready, (old + done) / share, now + seconds
        if ready >= wanted or (waiting < 1e-9 and left < 1e-9):
            break
    part = min(max((wanted - before) / (ready - before), 0.0), 1.0) if ready > before else 1.0
    return now - (1.0 - part) * seconds


def _cells(samples: Samples, share: float, slots: float) -> int:
    """Pieces into which the longest response is cut: fewer where a batch fills the slots many times."""
    lengths = samples.lengths
    waves = share * lengths.mean / (min(slots, share) * lengths.longest)
    least = int(max(COARSEST, LEAST_CELLS * min(1.0, MANY / waves)))
    return max(least, int(len(lengths.survival) / max(1.0, waves * lengths.longest / lengths.mean / WAVES)))


@dataclass(frozen=True, slots=True)
class Period:
    """One step of the loop.

    seconds : from version to version. [s]
    rollout_s : what the rollout pool needs for a batch, to its last response. [s]
    limit : rollouts, training, weights on their way, or the tail: waiting for long responses that more depth would
        hide. Where nothing overlaps, the longest of them.
    """

    seconds: float
    rollout_s: float
    limit: str


def period_of(
    pool: RolloutPool,
    samples: Samples,
    training_s: float,
    sync_s: float = 0.0,
    reward_s: float = 0.0,
    depth: float = 0.0,
) -> Period:
    """The period of a loop in which samples may be `depth` versions behind.

    training_s : forward passes, gradients and updates on one batch. [s]
    sync_s : while rollouts take the new weights and write nothing; training waits too. [s]
    reward_s : from a response's last token to its reward. [s]
    depth : any number from 0.

    At depth 0 a batch is written to its last response, trained on, and its weights are handed over. At depth k the
    period is the longest cycle of two stages with k + 1 batches between them. Batch i begins when version i − k is
    there, and is trained on when it is written and batch i − 1 was trained on. Such a system of maxima and sums goes
    round at its largest mean cycle [2]_. A batch takes G to its last response, and k of them run at once: (G + W)/k.
    One version off policy, measured steps are as long as a batch to its last response and the weights, also where these
    are exchanged under running responses (`flopcast_validation.rl_runs`).
    """
    written = batch_time(pool, samples) + samples.turns * samples.tool_s + reward_s
    if depth == 0:
        parts = {"rollouts": written, "training": training_s, "weights": sync_s}
        return Period(sum(parts.values()), written, max(parts, key=lambda name: parts[name]))
    bounds = {
        "rollouts": steady_time(pool, samples) + sync_s,
        "training": training_s + sync_s,
        "tail": max((written + sync_s) / max(depth, 1.0), (written + training_s + sync_s) / (depth + 1.0)),
    }
    limit = max(bounds, key=lambda name: bounds[name])
    return Period(bounds[limit], written, "weights" if sync_s > 0.5 * bounds[limit] else limit)
