"""The best plan of every schedule, each over the whole space of layouts, in the order of what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sim.errors import InfeasiblePlan, SpecError
from sim.schedules.registry import schedules
from sim.search.best_first import Found, best_first
from sim.search.bounded import BoundedPlans, searchable, spaces_under
from sim.search.candidate import Candidate, ScheduleBest
from sim.search.confirm import nothing_fits
from sim.search.fields import Fields
from sim.search.result import SearchResult
from sim.units import show

MOST_RUNS = 400
"""Plans of a schedule that the exact engine runs at most, if not told otherwise."""
MOST_PLANS = 4_000_000
"""Plans of a schedule up to which it is searched: they are bounded all at once, which takes 900 bytes a plan."""
ALL = "all"
"""All registered schedules but the asynchronous ones, which train another way."""


def schedules_named(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names of schedules in `all`, `zb_v,zb_h1` or a sequence of such; each once.

    Raises ScheduleError, SpecError: there is no such schedule, none that can be searched, or no name.
    """
    said = words.split(",") if isinstance(words, str) else list(words)
    names: list[str] = []
    for name in (each.strip() for each in said):
        if not name:
            raise SpecError("--schedules takes names with commas between, such as zb_v,zb_h1, or all")
        all_of_them = [each.name for each in schedules() if not each.asynchronous] if name == ALL else []
        names += all_of_them or [searchable(name).name]
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
        As `zb_v,zb_h1`, or `all`.
    most_runs : int
        Plans of a schedule that the exact engine runs at most.
    progress : callable, optional
        Called with (schedules done, schedules in all, what is being done).

    Returns
    -------
    SearchResult
        With `schedules`, and the best over all in `best`, but for schedules that the framework does not have.

    Raises
    ------
    ScheduleError, SpecError
        No such schedule.
    InfeasiblePlan
        The result has no plan that fits, nor have these schedules.
    """
    if most_runs < 1:
        raise SpecError(f"most_runs = {most_runs} must be at least 1")
    wanted, bests, candidates = schedules_named(names), list[ScheduleBest](), list(result.best)
    for number, name in enumerate(wanted):
        if progress is not None:
            progress(number, len(wanted), name)
        best, ran = search_under(result, name, {}, most_runs)
        bests.append(best)
        candidates += ran if result.space.has_schedule(name) else ()
    if not candidates:
        raise InfeasiblePlan(f"{nothing_fits(result)}; nor was a plan found that fits under {', '.join(wanted)}")
    ordered = tuple(sorted(bests, key=lambda each: each.best.worth(result.objective) if each.best else np.inf))
    # Each plan once, and of equals first those that need least memory.
    ranked = sorted(candidates, key=lambda each: (round(each.worth(result.objective), 9), each.memory_bytes))
    once = dict[object, Candidate]()
    for each in ranked:
        once.setdefault((each.scenario.plan, each.scenario.stack), each)
    return replace(result, schedules=ordered, best=tuple(once.values())[: result.top])


def search_under(
    result: SearchResult, schedule: str, named: Fields, most_runs: int = MOST_RUNS
) -> tuple[ScheduleBest, Sequence[Candidate]]:
    """The best plan of a schedule among those with some fields, and all that were run and fit.

    Raises ScheduleError: no such schedule.
    """
    spaces = spaces_under(replace(result.space, fixed={**result.space.fixed, **named}), schedule)
    plans, limit = sum(each.num_plans for each in spaces), show(result.memory_limit_bytes, "B")
    if plans > MOST_PLANS:
        too_many = (
            f"not searched: its {plans:,} plans are more than {MOST_PLANS:,}, which are bounded at once; ask "
            "for fewer (--gpus, -s plan.tp=[…])"
        )
        return ScheduleBest(schedule, Found(plans=plans, bound=0.0), too_many), ()
    parts = [BoundedPlans(each, result.objective, result.memory_limit_bytes) for each in spaces]
    nodes = (node for number, part in enumerate(parts) for node in part.nodes(number))
    found, reason = best_first(nodes, Found[Candidate](most=most_runs, plans=plans)), None
    if not plans:
        reason = "no plan of the space keeps its rules"
    elif not found.proven:
        reason = f"none of the {found.runs} plans that were run fits in {limit}"
    elif not found.ran:
        leanest = show(min(float(part.nbytes.min()) for part in parts), "B")
        reason = f"none of its {plans:,} plans fits in {limit}; the leanest needs {leanest} or more"
    return ScheduleBest(schedule, found.with_best(), None if found.ran else reason), found.best
