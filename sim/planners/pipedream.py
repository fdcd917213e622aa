"""PipeDream's planner: which layers each stage holds and on how many workers it is replicated, by dynamic programme.

Of a machine's innermost level, layers i..j on m workers take per micro-batch, at the best,

    A(i..j, m) = min( T(i..j, m),  min over k, m' of  max( A(i..k, m − m'),  2 a_k / B,  T(k..j, m') ) )

where a stage on m workers, which reduce their gradients once they all have a micro-batch's, takes

    T(i..j, m) = max( forward + backward of i..j,  reduction of the gradients of i..j over m ) / m

and a_k is what goes over the cut before layer k, forward and back. The next level out is the same over servers, with A
of the level below in place of forward + backward [1]_. The workers are all used.

.. [1] Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN training", SOSP, section 3.1;
   arXiv:1806.03377. Read in the released planner (github.com/msr-fiddle/pipedream, optimizer/), which adds compute and
   reduction up where the paper takes the larger, and leaves sends out by default; the paper's own text was not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import InfeasiblePlan, SpecError
from sim.planners.layers import LayerProfile
from sim.planners.pipeline_plan import Level, PipelinePlan, PlannedStage, noam
from sim.units import show


def ring_share(m: int) -> float:
    """Share of a stage's gradients that a worker of m sends, and receives at the same time, in a ring all-reduce.

    For m micro-batches, one on each. The released planner counts what a worker sends and receives through one link,
    4 (m − 1) / m, and finds the same plans of VGG-16 and AlexNet on 16 V100.
    """
    return 2.0 * (m - 1) / m


MOST_WORK = 4e9
"""Cuts times replications that are tried at most: some tens of seconds."""


def plan_pipeline(
    profile: LayerProfile,
    levels: Sequence[Level],
    *,
    memory_bytes: float | None = None,
) -> PipelinePlan:
    """PipeDream's plan.

    levels : from the innermost out.
    memory_bytes : of a worker; on machines of one level. [bytes]
    """
    levels = tuple(levels)
    _check(profile, levels, memory_bytes)
    seconds = profile.before("forward_s") + profile.before("backward_s")
    times = _between(seconds)
    solved: list[_Solved] = []
    for number, level in enumerate(levels):
        top = number == len(levels) - 1
        solved.append(_solve(profile, times, level, memory_bytes, top))
        times = solved[-1].best[level.count]
    if not np.isfinite(times[0, -1]):
        assert memory_bytes is not None
        raise InfeasiblePlan(_too_large(profile, levels[0], memory_bytes))
    segments = _unfold(solved, len(levels) - 1, 0, len(profile))
    return _priced(profile, levels, segments)


def data_parallel(profile: LayerProfile, levels: Sequence[Level]) -> float:
    """Time per micro-batch if every worker holds all layers.  [s]"""
    whole = _Segment(0, len(profile), tuple(level.count for level in levels))
    return _period(profile, tuple(levels), whole)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Layers, and how often they are replicated on each level from the innermost out.

    outer : layers of the segments around it, from the level above its own out, which reduce together there.
    cut_level : of the cut behind it, the level on which the next stage lies; and how often the cut's sends go side by
        side: once a replica of what is around both.
    """

    first: int
    last: int
    replicas: tuple[int, ...]
    around: tuple[tuple[int, int], ...] = ()
    cut_level: int = 0
    side_by_side: int = 1


@dataclass(frozen=True, slots=True)
class _Solved:
    """Solution of one level: best[m][i, j] for layers i..j on m parts, and the last stage's first layer and parts
    (−1: one stage)."""

    best: list[FloatArray]
    cut: list[IntArray]
    parts: list[IntArray]
    count: int


def _check(profile: LayerProfile, levels: tuple[Level, ...], memory_bytes: float | None) -> None:
    if memory_bytes is not None and len(levels) > 1:
        raise SpecError(
            "how many micro-batches a stage keeps depends on the stages behind it, which servers are planned without; "
            "give one level (--workers 16), or leave the memory out"
        )
    size = len(profile) + 1
    work = sum(
        level.count**2 / 2 * size**2 * (1 if number == len(levels) - 1 else size) for number, level in enumerate(levels)
    )
    if work > MOST_WORK:
        raise SpecError(
            f"{len(profile)} layers on {' × '.join(str(level.count) for level in reversed(levels))} workers make "
            f"{work:.0e} cuts to try, more than {MOST_WORK:.0e}; give levels (--workers 64x8), or fewer workers"
        )


def _between(before: FloatArray) -> FloatArray:
    """Sums over layers i to j − 1 at (i, j), from the sums before each layer; infinite where there are no layers."""
    sums = before[np.newaxis, :] - before[:, np.newaxis]
    sums[np.tril_indices(len(before))] = np.inf
    return np.asarray(sums)


def _solve(
    profile: LayerProfile,
    times: FloatArray,
    level: Level,
    memory_bytes: float | None,
    top: bool,
) -> _Solved:
    """The dynamic programme of one level; of the outermost, of all layers from the first on alone."""
    rate, count, size = level.bandwidth_bytes_per_s, level.count, len(times)
    gradients = profile.before("gradients_bytes")
    reduced = gradients[np.newaxis, :] - gradients[:, np.newaxis]
    send = 2.0 * profile.sent_bytes / rate
    stage = [np.full_like(times, np.inf)]
    for m in range(1, count + 1):
        stage.append(np.maximum(times, ring_share(m) * reduced / rate) / m)
    behind = [np.maximum(send[:, np.newaxis], each) for each in stage]
    rows = 1 if top else size
    best, cut, parts = [stage[0][:rows]], [np.full((rows, size), -1)], [np.full((rows, size), -1)]
    for m in range(1, count + 1):
        fits = _fitting(profile, m, count - m, memory_bytes)
        found = np.where(fits(m)[:rows], stage[m][:rows], np.inf)
        where, used = np.full((rows, size), -1), np.full((rows, size), -1)
        for own in range(1, m):
            last = np.where(fits(own), behind[own], np.inf)
            for row in range(rows):
                ways = np.maximum(best[m - own][row][:, np.newaxis], last)
                first = ways.argmin(axis=0)
                least = ways[first, np.arange(size)]
                better = least < found[row] * (1 - 1e-12)
                found[row, better], where[row, better], used[row, better] = least[better], first[better], own
        best.append(found)
        cut.append(where)
        parts.append(used)
    return _Solved(best, cut, parts, count)


def _fitting(profile: LayerProfile, m: int, after: int, memory_bytes: float | None) -> Callable[[int], FloatArray]:
    """Whether layers first to end − 1 fit a last stage on `own` workers, `after` workers behind it: (first, end)."""
    if memory_bytes is None:
        everything = np.ones((len(profile) + 1,) * 2, dtype=bool)
        return lambda own: everything
    kept, state = (_between(profile.before(name)) for name in ("kept_bytes", "state_bytes"))
    kept = kept + _between(profile.before("weights_bytes"))
    return lambda own: np.asarray(ceil((after + own) / own) * kept + state <= memory_bytes)


def _unfold(solved: Sequence[_Solved], number: int, first: int, last: int) -> list[_Segment]:
    """The stages of layers on all parts of a level, by the plans that the levels below have of each."""
    level = solved[number]
    row, end, m = (0 if len(level.best[1]) == 1 else first), last, level.count
    own: list[tuple[int, int, int]] = []
    while level.cut[m][row, end] >= 0:
        begin, used = int(level.cut[m][row, end]), int(level.parts[m][row, end])
        own.append((begin, end, used))
        end, m = begin, m - used
    own.append((first, end, m))
    segments: list[_Segment] = []
    for begin, end, used in reversed(own):
        if number == 0:
            segments.append(_Segment(begin, end, (used,), (), number))
            continue
        inner = _unfold(solved, number - 1, begin, end)
        for at, each in enumerate(inner):
            is_last = at == len(inner) - 1
            segments.append(
                _Segment(
                    each.first,
                    each.last,
                    (*each.replicas, used),
                    (*each.around, (begin, end)),
                    number if is_last else each.cut_level,
                    1 if is_last else each.side_by_side * used,
                )
            )
    return segments


def _period(profile: LayerProfile, levels: tuple[Level, ...], segment: _Segment) -> float:
    """Time per micro-batch of a stage: its compute, and on each level the reduction of replicated weights.  [s]"""
    seconds = profile.before("forward_s") + profile.before("backward_s")
    gradients = profile.before("gradients_bytes")
    period = float(seconds[segment.last] - seconds[segment.first])
    ranges = ((segment.first, segment.last), *segment.around)
    for number, (level, m) in enumerate(zip(levels, segment.replicas, strict=False)):
        first, last = ranges[number] if number < len(ranges) else ranges[-1]
        reduction = ring_share(m) * float(gradients[last] - gradients[first]) / level.bandwidth_bytes_per_s
        period = max(period, reduction) / m
    return period


def _priced(profile: LayerProfile, levels: tuple[Level, ...], segments: Iterable[_Segment]) -> PipelinePlan:
    """Seconds and bytes of every stage."""
    segments = list(segments)
    replicas = [int(np.prod(each.replicas)) for each in segments]
    forward, backward = profile.before("forward_s"), profile.before("backward_s")
    kept, weights, state = (profile.before(name) for name in ("kept_bytes", "weights_bytes", "state_bytes"))
    stages = []
    for segment, own, in_flight in zip(segments, replicas, noam(replicas), strict=True):
        first, last = segment.first, segment.last
        rate = levels[segment.cut_level].bandwidth_bytes_per_s
        send = float(profile.sent_bytes[last]) / rate if last < len(profile) else 0.0
        of_one = (kept[last] - kept[first]) + (weights[last] - weights[first])
        stages.append(
            PlannedStage(
                first,
                last,
                own,
                float(forward[last] - forward[first]),
                float(backward[last] - backward[first]),
                _period(profile, levels, segment),
                send,
                2.0 * send / segment.side_by_side,
                in_flight,
                float(in_flight * of_one + state[last] - state[first]),
            )
        )
    alone = data_parallel(profile, levels)
    return PipelinePlan(profile, levels, tuple(stages), profile.seconds, alone)


def _too_large(profile: LayerProfile, level: Level, memory_bytes: float) -> str:
    """Why nothing fits, and what would help."""
    sizes = [float(profile.before(name)[-1]) for name in ("weights_bytes", "state_bytes", "kept_bytes")]
    least = sum(sizes) / level.count
    return (
        f"no plan of {len(profile)} layers on {level.count} workers fits in {show(memory_bytes, 'B')} each: the "
        f"average worker would keep {show(least, 'B')} with one micro-batch in flight. Smaller micro-batches, more "
        "workers or recomputation (a profile with less kept) would help"
    )
