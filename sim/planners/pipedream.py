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

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

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
    times = _between(profile.before("forward_s") + profile.before("backward_s"))
    solved: list[_Solved] = []
    for number, level in enumerate(levels):
        solved.append(_solve(profile, times, level, memory_bytes, top=number == len(levels) - 1))
        times = solved[-1].best[level.count]
    if not np.isfinite(times[0, -1]):
        assert memory_bytes is not None
        raise InfeasiblePlan(_too_large(profile, levels[0], memory_bytes))
    return whole_plan(profile, levels, _unfold(profile, levels, solved, 0, len(profile)))


def reduction(profile: LayerProfile, level: Level, first: int, last: int, m: int) -> float:
    """Time that m parts of a level take to reduce the gradients of some layers.  [s]"""
    gradients = profile.before("gradients_bytes")
    return ring_share(m) * float(gradients[last] - gradients[first]) / level.bandwidth_bytes_per_s


def data_parallel(profile: LayerProfile, levels: Sequence[Level]) -> float:
    """Time per micro-batch if every worker holds all layers.  [s]"""
    period = profile.seconds
    for level in levels:
        period = max(period, reduction(profile, level, 0, len(profile), level.count)) / level.count
    return period


class _Solved(NamedTuple):
    """Solution of one level: best[m][i, j] for layers i..j on m parts, and the last stage's first layer and parts
    (−1: one stage)."""

    best: list[FloatArray]
    cut: list[IntArray]
    parts: list[IntArray]


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
    return _Solved(best, cut, parts)


def _fitting(profile: LayerProfile, m: int, after: int, memory_bytes: float | None) -> Callable[[int], FloatArray]:
    """Whether layers first to end − 1 fit a last stage on `own` workers, `after` workers behind it: (first, end)."""
    if memory_bytes is None:
        everything = np.ones((len(profile) + 1,) * 2, dtype=bool)
        return lambda own: everything
    kept, state = (_between(profile.before(name)) for name in ("kept_bytes", "state_bytes"))
    kept = kept + _between(profile.before("weights_bytes"))
    return lambda own: np.asarray(ceil((after + own) / own) * kept + state <= memory_bytes)


def _unfold(
    profile: LayerProfile, levels: Sequence[Level], solved: Sequence[_Solved], first: int, last: int
) -> list[PlannedStage]:
    """The stages of layers on all parts of the outermost of some levels, by the plans that those below have of each."""
    *below, level = levels
    best, cut, parts = solved[len(below)]
    row, end, m = (0 if len(best[1]) == 1 else first), last, level.count
    own: list[tuple[int, int, int]] = []
    while cut[m][row, end] >= 0:
        begin, used = int(cut[m][row, end]), int(parts[m][row, end])
        own.append((begin, end, used))
        end, m = begin, m - used
    own.append((first, end, m))
    stages: list[PlannedStage] = []
    for begin, end, used in reversed(own):
        if not below:
            stages.append(one_stage(profile, level, begin, end, used))
            continue
        # What is planned below is replicated as a whole: its sends go side by side, but for the last over this level.
        reduced, send = reduction(profile, level, begin, end, used), _send_s(profile, level, end)
        inner = [
            replace(
                each,
                replicas=each.replicas * used,
                period_s=max(each.period_s, reduced) / used,
                send_period_s=each.send_period_s / used,
            )
            for each in _unfold(profile, below, solved, begin, end)
        ]
        stages += [*inner[:-1], replace(inner[-1], send_s=send, send_period_s=2.0 * send)]
    return stages


def _send_s(profile: LayerProfile, level: Level, last: int) -> float:
    """Time that the output of the layers before `last` takes over a level; none of the last one's.  [s]"""
    return float(profile.sent_bytes[last]) / level.bandwidth_bytes_per_s if last < len(profile) else 0.0


def one_stage(profile: LayerProfile, level: Level, first: int, last: int, workers: int) -> PlannedStage:
    """A stage on so many workers of the innermost level."""
    forward, backward = (float(np.ptp(profile.before(name)[[first, last]])) for name in ("forward_s", "backward_s"))
    period = max(forward + backward, reduction(profile, level, first, last, workers)) / workers
    send = _send_s(profile, level, last)
    return PlannedStage(first, last, workers, forward, backward, period, send, 2.0 * send)


def whole_plan(profile: LayerProfile, levels: Sequence[Level], stages: Sequence[PlannedStage]) -> PipelinePlan:
    """A plan of stages, with what each keeps in memory."""
    kept = profile.before("kept_bytes") + profile.before("weights_bytes")
    state = profile.before("state_bytes")
    full = []
    for stage, in_flight in zip(stages, noam([stage.replicas for stage in stages]), strict=True):
        of_one, once = (float(each[stage.last] - each[stage.first]) for each in (kept, state))
        full.append(replace(stage, in_flight=in_flight, memory_bytes=in_flight * of_one + once))
    return PipelinePlan(profile, tuple(levels), tuple(full), data_parallel(profile, levels))


def _too_large(profile: LayerProfile, level: Level, memory_bytes: float) -> str:
    """Why nothing fits, and what would help."""
    sizes = [float(profile.before(name)[-1]) for name in ("weights_bytes", "state_bytes", "kept_bytes")]
    least = sum(sizes) / level.count
    return (
        f"no plan of {len(profile)} layers on {level.count} workers fits in {show(memory_bytes, 'B')} each: the "
        f"average worker would keep {show(least, 'B')} with one micro-batch in flight. Smaller micro-batches, more "
        "workers or recomputation (a profile with less kept) would help"
    )
