"""A pipeline as a planner deals it: stages, their layers and replicas, and what each allows.

Replicas of a stage take turns in PipeDream's order, 1F1B round robin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, lcm

import numpy as np

from sim.errors import ScheduleError, SpecError, require_positive
from sim.planners.layers import LayerProfile
from sim.schedules import Order, make_order
from sim.schedules.actions import B, F, Row, U, in_turns, run
from sim.schedules.build import MOST_ACTIONS, STEADY, STREAM, folded
from sim.units import parse, show


def noam(replicas: Sequence[int]) -> tuple[int, ...]:
    """Micro-batches that a worker of each stage has in flight: the workers from its stage on, over the stage's own.

    Of the first stage that is PipeDream's NOAM, ceil(workers / replicas of the input stage) (Narayanan et al. 2019,
    section 3.2); of a straight pipeline p − s, as of 1F1B. Where a stage's workers do not divide those behind it, it
    may be one too few for the slowest stage never to wait (`sim.planners.answers.covering`).
    """
    return tuple(ceil(sum(replicas[at:]) / own) for at, own in enumerate(replicas))


def round_robin(replicas: Sequence[int], in_flight: Sequence[int], total: int) -> list[Row]:
    """PipeDream's 1F1B-RR: of the `replicas[s]` workers of stage s, micro-batch k is worker k mod replicas[s]'s.

    Narayanan et al. 2019 (SOSP), section 3.2. So each micro-batch takes one of lcm(replicas) ways through the workers,
    a straight pipeline each: stage s of way q is virtual stage q · stages + s, as of several copies of a model
    (`Order.copies`). A worker begins so many micro-batches, and then does one forward and one backward in turn. It
    updates after every backward; what its reduction with the stage's others takes is a matter of costs.

    replicas : workers of each stage; those of a stage stand together.
    in_flight : micro-batches that a worker of each stage has begun and not finished, at most (`noam`).
    total : micro-batches.
    """
    stages, ways = len(replicas), lcm(*replicas)
    rows = []
    for stage, own in enumerate(replicas):
        for worker in range(own):
            mine = np.arange(worker, total, own)
            place = mine % ways * stages + stage
            forward, backward, update = (run(kind, place, mine) for kind in (F, B, U))
            rows.append(in_turns((forward, 1 - in_flight[stage]), (backward, 0), (update, 0)))
    return rows


def build_replicated(
    replicas: Sequence[int],
    in_flight: Sequence[int] | None = None,
    keep: int | None = None,
    *,
    fold: bool = False,
    rounds: int = STREAM,
) -> Order:
    """PipeDream's order where stages are replicated, 1F1B round robin (`round_robin`): a step is one round of them all.

    replicas : workers of each stage.
    in_flight : micro-batches that a worker of each stage has begun and not finished, at most. Default: PipeDream's
        (`noam`).
    keep : micro-batches, about, in the arrays of a folded order.
    fold : as of `build_order`; then a step is one round of the steady state.
    rounds : that are in the order otherwise.
    """
    if not replicas or min(replicas) < 1:
        raise ScheduleError(f"every stage has one worker or more, not {list(replicas)}")
    copies = lcm(*replicas)
    most = noam(replicas) if in_flight is None else in_flight
    if 2 * copies * len(replicas) * STEADY * sum(replicas) > MOST_ACTIONS:
        raise ScheduleError(
            f"the workers' turns repeat after {copies:,} micro-batches, the least common multiple of the "
            "stages' numbers of workers: too many to be played; give stages numbers with common divisors"
        )

    def rows(microbatches: int) -> list[Row]:
        return round_robin(replicas, most, microbatches)

    def make(microbatches: int) -> Order:
        return make_order("pipedream", rows(microbatches), len(replicas) * copies, microbatches, copies=copies)

    if not fold:
        return make(copies * rounds)
    again = partial(build_replicated, replicas, in_flight, fold=True, rounds=rounds)
    return folded(make, rows, copies, copies, keep or copies * (rounds + 1), again, endless=True)


MOST_WORKERS = 10**9


@dataclass(frozen=True, slots=True)
class Level:
    """Level of a machine: a number of alike parts, such as workers of a server or servers of a cluster.

    bandwidth_bytes_per_s : of one part to the others, per direction. [bytes/s]
    """

    count: int
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"{self.count} at {show(self.bandwidth_bytes_per_s, 'B/s')}"


def read_levels(workers: str, bandwidths: str) -> tuple[Level, ...]:
    """Levels from the innermost out, of words from the outermost in: "4x4" and "10 Gbit/s, 12 GB/s"."""
    words = workers.lower().replace("×", "x").split("x")
    try:
        counts = [int(word) for word in words]
    except ValueError:
        counts = [0]
    if not 1 <= min(counts) <= max(counts) <= MOST_WORKERS:
        raise SpecError(
            f"--workers {workers!r} must be a number of workers such as 16, or servers × workers such as 4x4"
        )
    rates = [parse(rate, "bytes_per_s") for rate in bandwidths.split(",")]
    if len(rates) != len(counts):
        raise SpecError(
            f"--bandwidths {bandwidths!r} has {len(rates)} values, and --workers {workers!r} has {len(counts)} levels; "
            "give one a level, from the outermost in, such as '10 Gbit/s, 12 GB/s' for 4x4"
        )
    require_positive(bandwidths=rates)
    return tuple(Level(count, rate) for count, rate in zip(reversed(counts), reversed(rates), strict=True))


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Layers first to last − 1, on so many workers, which take the micro-batches in turn.

    forward_s, backward_s : of one micro-batch on one worker. [s]
    period_s : per micro-batch of all its workers, reduction of gradients included. [s]
    send_s : of one micro-batch's output to the next stage, one way; 0 after the last. [s]
    send_period_s : what the sends over that cut, both ways, allow per micro-batch. [s]
    in_flight : micro-batches that each worker has begun and not finished, at most.
    memory_bytes : of one worker: what it keeps of those, as many versions of its weights, its state. [bytes]
    """

    first: int
    last: int
    replicas: int
    forward_s: float
    backward_s: float
    period_s: float
    send_s: float
    send_period_s: float
    in_flight: int = 1
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages, and how long they take.

    data_parallel_s : per micro-batch where all workers hold all layers. [s]
    """

    profile: LayerProfile
    levels: tuple[Level, ...]
    stages: tuple[PlannedStage, ...]
    data_parallel_s: float

    @property
    def period_s(self) -> float:
        """Time from micro-batch to micro-batch in the steady state: that of the slowest stage or send. [s]"""
        return max(max(stage.period_s, stage.send_period_s) for stage in self.stages)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Workers of each stage."""
        return tuple(stage.replicas for stage in self.stages)

    @property
    def config(self) -> str:
        """Workers of each stage as PipeDream's papers write them: 15-1."""
        return "-".join(map(str, self.replicas))

    @property
    def num_workers(self) -> int:
        """Workers of all stages together."""
        return sum(self.replicas)

    @property
    def active_minibatches(self) -> int:
        """NOAM: micro-batches that each worker of the first stage lets in before the first comes back."""
        return noam(self.replicas)[0]

    @property
    def bottleneck(self) -> str:
        """What the period is the time of."""
        worst = max(
            range(len(self.stages)), key=lambda at: max(self.stages[at].period_s, self.stages[at].send_period_s)
        )
        stage = self.stages[worst]
        if stage.send_period_s > stage.period_s:
            return f"sends after stage {worst}"
        computes = (stage.forward_s + stage.backward_s) / stage.replicas
        return f"{'compute' if stage.period_s <= computes * (1 + 1e-9) else 'reduction'} of stage {worst}"

    def to_dict(self) -> dict[str, object]:
        """Plain data with stable keys, for JSON; the keys are in docs/schedules.md."""
        layers = self.profile.layers
        return {
            "profile": self.profile.name,
            "workers": self.num_workers,
            "config": self.config,
            "period_s": self.period_s,
            "samples_per_s": self.profile.microbatch_size / self.period_s,
            "bottleneck": self.bottleneck,
            "active_minibatches": self.active_minibatches,
            "speedup": self.profile.seconds / self.period_s,
            "over_data_parallel": self.data_parallel_s / self.period_s,
            "data_parallel_s": self.data_parallel_s,
            "stages": [
                {
                    "first_layer": stage.first,
                    "last_layer": stage.last - 1,
                    "layers": [layers[stage.first].name, layers[stage.last - 1].name],
                    "replicas": stage.replicas,
                    "forward_s": stage.forward_s,
                    "backward_s": stage.backward_s,
                    "period_s": stage.period_s,
                    "send_s": stage.send_s,
                    "in_flight": stage.in_flight,
                    "memory_bytes": stage.memory_bytes,
                }
                for stage in self.stages
            ],
        }
