"""The best plan of every schedule, each over the whole space of layouts, in the order of what bounds them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan, ScheduleError, SpecError
from sim.estimate import estimate
from sim.schedules import get_schedule
from sim.schedules.registry import schedules
from sim.search.candidate import Candidate, ScheduleBest, gap_of
from sim.search.confirm import Found, Run, best_first
from sim.search.result import SearchResult
from sim.search.schedules.bounded import BoundedPlans, spaces_under
from sim.units import show


def by_bound(parts: Sequence[BoundedPlans], found: Found[Candidate]) -> Iterator[tuple[float, Run[Candidate] | None]]:
    """Yield the plans that fit, the lowest bound first, for `best_first`, which fills `found`.

    Memory in an order is looked at when no other plan or order has a lower bound.
    """
    heap = [(score, 0.0, number, order, -1) for number, part in enumerate(parts) for score, order in part.orders()]
    heapq.heapify(heap)
    while heap:
        bound, _, number, order, plan = heapq.heappop(heap)
        part = parts[number]
        if plan >= 0:
            yield bound, partial(_run, part, plan)
            continue
        if found.reaches(bound):
            yield bound, None
            return
        fits = part.weigh(order)
        for score, nbytes, each in zip(part.score(fits), part.nbytes[fits], fits, strict=True):
            heapq.heappush(heap, (float(score), float(nbytes), number, order, int(each)))


def _run(part: BoundedPlans, plan: int) -> tuple[float, Candidate] | None:
    scenario = part.scenario_of(plan)
    try:
        answer = estimate(scenario)
    except ScheduleError:  # too many actions to be played
        return None
    if answer.largest.total > part.limit:
        return None
    candidate = Candidate(scenario, float(part.seconds[plan]), float(part.nbytes[plan]), answer)
    return candidate.worth(part.objective), candidate


MOST_RUNS = 400
"""Plans of a schedule that the exact engine runs at most, if not told otherwise."""
MOST_PLANS = 4_000_000
"""Plans of a schedule up to which it is searched: they are bounded all at once, which takes 900 bytes a plan."""
ALL = "all"
"""All registered schedules but the asynchronous ones, which train another way."""


def schedules_named(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names of schedules in `all`, `zb_v,zb_h1` or a sequence of such; each once.

    Raises ScheduleError, SpecError: there is no such schedule, or no name.
    """
    said = words.split(",") if isinstance(words, str) else list(words)
    names: list[str] = []
    for name in (each.strip() for each in said):
        if not name:
            raise SpecError("--schedules takes names with commas between, such as zb_v,zb_h1, or all")
        if name == ALL:
            names += [each.name for each in schedules() if not each.asynchronous]
        else:
            names.append(get_schedule(name).name)
    return tuple(dict.fromkeys(names))


def search_schedules(
    result: SearchResult,
    names: str | Sequence[str] = ALL,
    *,
    most_runs: int = MOST_RUNS,
    progress: Callable[[int, int, str], None] | None = None,
) -> SearchResult:
    """Search the space of a result under each of some schedules.

    Plans are run on the exact engine in the order of a step time that they cannot go below, until none that is left can
    be better than the best found: then that is the best of its schedule.

    Parameters
    ----------
    result : SearchResult
        Its layouts, categories, objective and memory limit count.
    names : str or sequence of str
        As `zb_v,zb_h1`, or `all`; asynchronous schedules only by name. A name may be that of a file with a grid.
    most_runs : int
        Plans of a schedule that the exact engine runs at most.
    progress : callable, optional
        Called with (schedules done, schedules in all, what is being done).

    Returns
    -------
    SearchResult
        With `schedules`, and the best over all in `best` (but for asynchronous schedules, and those that the
        framework does not have). Where it is interrupted
        (KeyboardInterrupt), with what was found so far: schedules whose plans may be the best are searched first.

    Raises
    ------
    ScheduleError, SpecError
        No such schedule.
    InfeasiblePlan
        The result has no plan that fits, nor have these schedules.
    """
    if most_runs < 1:
        raise SpecError(f"most_runs = {most_runs} must be at least 1")
    wanted = schedules_named(names)
    bests: list[ScheduleBest] = []
    if progress is not None and len(wanted) > 1:
        progress(0, len(wanted), "what no plan can go below")
    try:
        bests = [each for each in (_too_large(result, name) for name in wanted) if each is not None]
        searched, bounded = _bound(result, [name for name in wanted if name not in {b.schedule for b in bests}])
    except KeyboardInterrupt:
        if not result.best:
            raise
        return replace(result, schedules=tuple(_not_begun(each) for each in schedules_named(names)))
    candidates = list(result.best)
    interrupted = False
    for number, name in enumerate(searched):
        found = Found[Candidate](most=most_runs)
        parts: list[BoundedPlans] = []

        def tell(runs: int, name: str = name, number: int = number) -> None:
            if progress is not None:
                progress(number, len(searched), f"{name}, {runs} plans run" if runs else name)

        try:
            tell(0)
            parts = bounded.pop(name, []) or list(_parts(result, name))
            best_first(by_bound(parts, found), found, tell)
        except KeyboardInterrupt:
            interrupted = True
        bests.append(_summed_up(result, name, parts, found, interrupted))
        if not bests[-1].asynchronous and result.space.has_schedule(name):
            candidates += found.best
        if interrupted:
            bests += [_not_begun(each) for each in searched[number + 1 :]]
            break
    if progress is not None:
        progress(len(searched), len(searched), "schedules searched")

    if not candidates:
        if interrupted:
            raise KeyboardInterrupt
        raise InfeasiblePlan(f"{result.nothing_fits()}; nor was a plan found that fits under {', '.join(wanted)}")

    def place(each: ScheduleBest) -> float:
        return np.inf if each.best is None else each.best.worth(result.objective)

    ordered = tuple(sorted(bests, key=place))
    return replace(result, schedules=ordered, best=_best(candidates, result.objective, result.top))


def best_under(
    result: SearchResult, schedule: str, named: Mapping[str, Any], most_runs: int = MOST_RUNS
) -> ScheduleBest:
    """The best plan of a schedule among those with some fields.

    Raises ScheduleError: no such schedule.
    """
    found = Found[Candidate](most=most_runs)
    parts = list(_parts(result, schedule, named))
    best_first(by_bound(parts, found), found)
    return _summed_up(result, schedule, parts, found)


def _parts(result: SearchResult, schedule: str, named: Mapping[str, Any] | None = None) -> Iterator[BoundedPlans]:
    """All plans of a schedule with some fields, by slices: who drops one before the next needs memory for one."""
    for each in spaces_under(result.space, schedule):
        space = each.having(named or {})
        if space is not None:
            yield BoundedPlans(space, result.objective, result.memory_limit_bytes)


def _bound(result: SearchResult, names: Sequence[str]) -> tuple[list[str], dict[str, list[BoundedPlans]]]:
    """Schedules by the least that any of their plans cannot go below, so that an interrupt leaves out the others; and
    the plans of as many of them as are bounded at once."""
    least, kept, room = dict[str, float](), dict[str, list[BoundedPlans]](), MOST_PLANS
    for name in names:
        parts = list(_parts(result, name))
        least[name] = min((float(part.score().min(initial=np.inf)) for part in parts), default=np.inf)
        room -= sum(part.num_plans for part in parts)
        kept |= {name: parts} if room >= 0 else {}
    return sorted(names, key=lambda name: least[name]), kept


def _best(candidates: Sequence[Candidate], objective: str, most: int) -> tuple[Candidate, ...]:
    """The first of some candidates, each plan once; of equals those that need least memory."""
    ranked = sorted(candidates, key=lambda each: (round(each.worth(objective), 9), each.memory_bytes))
    once: dict[Any, Candidate] = {}
    for each in ranked:
        once.setdefault((each.scenario.plan, each.scenario.stack), each)
    return tuple(list(once.values())[:most])


def _summed_up(
    result: SearchResult, name: str, parts: Sequence[BoundedPlans], found: Found[Candidate], interrupted: bool = False
) -> ScheduleBest:
    best, plans = next(iter(found.best), None), sum(part.num_plans for part in parts)
    proven, limit = found.proven and not interrupted, show(result.memory_limit_bytes, "B")
    gap, reason = 0.0 if proven else 1.0, None
    if best is not None:
        gap = 0.0 if proven else gap_of(best.worth(result.objective), found.bound)
    elif interrupted:
        reason = "interrupted before a plan was run"
    elif not plans:
        reason = "no plan of the space keeps its rules"
    elif not proven:
        reason = f"none of the {found.runs} plans that were run fits in {limit}"
    else:
        leanest = show(min(float(part.leanest) for part in parts), "B")
        reason = f"none of its {plans:,} plans fits in {limit}; the leanest needs {leanest} or more"
    return ScheduleBest(name, best, plans, found.runs, proven, gap, reason, interrupted)


def _too_large(result: SearchResult, name: str) -> ScheduleBest | None:
    """A schedule with more plans than are bounded at once, and what to do; None where it is searched."""
    plans = sum(len(each.plans[0]) for each in spaces_under(result.space, name))
    if plans <= MOST_PLANS:
        return None
    return ScheduleBest(
        name,
        reason=f"not searched: its {plans:,} plans are more than {MOST_PLANS:,}, which are bounded at once; ask for "
        "fewer (--gpus, --cp, --ep)",
    )


def _not_begun(name: str) -> ScheduleBest:
    return ScheduleBest(name, reason="interrupted before it was begun", interrupted=True)
