"""The best plan as a number of the scenario changes: another network, more memory, a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.search.answers.among import column, confirmed_already, none_fits, with_fields
from sim.search.answers.axes import SIZE, Axis, parse_axis
from sim.search.answers.sweep_result import Point, Sweep
from sim.search.confirm import MOST_RUNS, run_best
from sim.search.plans.layouts import context_degrees
from sim.search.plans.space import base_plan
from sim.search.result import SearchResult
from sim.search.search import search
from sim.specs import Scenario
from sim.specs.fields import with_numbers

MOST = 400
"""Points of a whole sweep: each is a search."""
DEGREES = {"plan.cp": "context", "plan.ep": "experts"}
"""Axes over degrees that a search is told, and its words for them."""
INTERRUPTED = "interrupted before it was searched"
"""In the place of a reason where a point was not looked at."""
_CLUSTER_SIZE = ("cluster.num_nodes", "cluster.node.gpus_per_node")


def sweep(
    scenario: Scenario,
    axes: str | Sequence[str | Axis],
    *,
    gpus: tuple[int, int] | None = None,
    objective: str = "step_time",
    confirm: int = MOST_RUNS,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Sweep:
    """Search the best plan at every value of a number of the scenario, or of two.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how many GPUs where `gpus` does not; a sweep over the size of the cluster uses all of it.
    axes : str or Axis, or one or two of them
        As `parse_axis` reads them: "cluster.inter_node_bandwidth=25..800 Gbit/s".
    confirm : int
        Plans of each point that the exact engine runs at most; fewer where the best is proven before.
    progress : callable, optional
        Called with (points done, points in all).
    **options
        Of `search`: max_gpus, memory_limit_bytes, context, experts, overlaps.

    Returns
    -------
    Sweep
        With every point; where no plan can be run the reason stands in its place. Interrupted (KeyboardInterrupt), what
        was searched so far.

    Raises
    ------
    SpecError
        An axis that does not exist or cannot be read, or values none of which makes a scenario.
    """
    given = [axes] if isinstance(axes, str | Axis) else list(axes)
    parsed = tuple(parse_axis(each, scenario) if isinstance(each, str) else each for each in given)
    _check(parsed, gpus)
    keys: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
    fixed = [index for index, axis in enumerate(parsed) if axis.path.startswith("plan.")]
    for values in product(*(axis.values for axis in parsed)):
        keys.setdefault(tuple(v for index, v in enumerate(values) if index not in fixed), []).append(values)
    points: dict[tuple[float, ...], Point] = {}
    mistakes: list[FlopcastError] = []
    finished = True
    try:
        for group in keys.values():
            result = _searched(scenario, parsed, group[0], gpus, objective, confirm, options, mistakes)
            for values in group:
                points[values] = _point(parsed, values, result, fixed, confirm)
                if progress is not None:
                    progress(len(points), len(keys) * len(group))
    except KeyboardInterrupt:  # the points that were searched are an answer
        if all(point.best is None for point in points.values()):
            raise
        finished = False
    if len(mistakes) == len(keys):
        raise mistakes[0]
    ordered = tuple(
        points.get(values, Point(values, None, INTERRUPTED, 0)) for values in product(*(axis.values for axis in parsed))
    )
    return Sweep(scenario, parsed, ordered, objective, _notes(scenario, parsed, ordered, gpus), finished)


def _searched(
    scenario: Scenario,
    axes: tuple[Axis, ...],
    values: tuple[float, ...],
    gpus: tuple[int, int] | None,
    objective: str,
    confirm: int,
    options: dict[str, Any],
    mistakes: list[FlopcastError],
) -> SearchResult | str:
    """The search at some values, or why there is none; values that make no scenario are also noted as mistakes."""
    try:
        here = _scenario_at(scenario, axes, values)
    except FlopcastError as error:
        mistakes.append(error)
        return f"no such scenario: {error}"
    wanted = {"context": context_degrees(here.training.sequence_length, scenario.plan.cp), **options}
    for axis in axes:
        if axis.path in DEGREES:
            wanted[DEGREES[axis.path]] = tuple(int(each) for each in axis.values)
    try:
        result = search(
            here,
            gpus=_size_at(scenario, here, axes, values, gpus),
            objective=objective,
            top=1,
            confirm=confirm,
            **wanted,
        )
    except FlopcastError as error:
        return str(error)
    if not result.finished:
        raise KeyboardInterrupt  # half a space may lack the best plan, and the points after it were asked for no more
    return result


def _scenario_at(scenario: Scenario, axes: tuple[Axis, ...], values: tuple[float, ...]) -> Scenario:
    """The scenario with these values; its plan is what is searched, and need not suit them."""
    numbers = {axis.full_path: value for axis, value in zip(axes, values, strict=True) if axis.full_path}
    return with_numbers(scenario.replace(plan=base_plan(scenario)), numbers)


def _size_at(
    scenario: Scenario,
    here: Scenario,
    axes: tuple[Axis, ...],
    values: tuple[float, ...],
    gpus: tuple[int, int] | None,
) -> tuple[int, int]:
    """Fewest and most GPUs at a point: what is swept or given, all of a cluster whose size is swept, or the plan's."""
    sizes = {axis.path: int(value) for axis, value in zip(axes, values, strict=True) if axis.path == SIZE}
    if sizes:
        return (sizes[SIZE],) * 2
    whole = any(axis.path in _CLUSTER_SIZE for axis in axes)
    return gpus or (here.cluster.num_gpus if whole else scenario.plan.num_gpus,) * 2


def _point(
    axes: tuple[Axis, ...], values: tuple[float, ...], result: SearchResult | str, fixed: list[int], confirm: int
) -> Point:
    if isinstance(result, str):
        return Point(values, None, result, 0)
    if not fixed:
        return Point(values, result.best[0], None, result.plans_feasible, result.gap or 0.0)
    named = {axes[index].path.removeprefix("plan."): int(values[index]) for index in fixed}
    which = with_fields(result, named)
    ranking = result.ranking()
    found = run_best(result, ranking[which[ranking]], 1, confirm, confirmed_already(result))
    if found.best:
        return Point(values, found.best[0], None, int(np.count_nonzero(which[ranking])), found.gap(result))
    return Point(values, None, none_fits(result, which) if which.any() else _no_plan(result, named), 0)


def _no_plan(result: SearchResult, named: dict[str, int]) -> str:
    """Which of the values no plan has, and those there are."""
    experts = result.space.scenario.model.num_experts
    for name, value in named.items():
        there = np.unique(column(result, name))
        if name == "ep" and value not in there:  # of the others only the swept degrees were searched
            return f"no plan has ep {value}: it must divide the {experts} experts and tp · cp · dp"
        if value not in there:
            return f"no plan has {name} {value}; the rules leave {', '.join(map(str, there))}"
    return f"no plan has {' and '.join(f'{name} {value}' for name, value in named.items())} at once"


def _notes(
    scenario: Scenario, axes: tuple[Axis, ...], points: tuple[Point, ...], gpus: tuple[int, int] | None
) -> tuple[str, ...]:
    """What the sweep took for granted, and what a reader may miss."""
    gap = max((each.gap for each in points if each.best is not None), default=0.0)
    sure = "no other plan can be better" if gap == 0.0 else f"another plan may be better by {gap:.2%} at most"
    searches = "each point is a search of its own"
    if all(axis.path.startswith("plan.") for axis in axes):
        searches = "all points are parts of one search"
    notes = [f"{searches}, and the best plan of each is the exact engine's: {sure}"]
    for axis in axes:
        if axis.spacing != "listed":
            equal = "factors" if axis.spacing == "geometric" else "steps"
            notes.append(f"{axis.path} goes in equal {equal}; write {axis.path}=a,b,c or a..b:N for other values")
    if gpus is None and any(axis.path in _CLUSTER_SIZE for axis in axes):
        notes.append("every point uses all GPUs of its cluster; --gpus fixes their number instead")
    times = {round(each.best.answer.step_time_s, 9) for each in points if each.best is not None}
    if len(times) == 1 and sum(each.best is not None for each in points) > 1:
        names = " and ".join(axis.path for axis in axes)
        reason = "nothing that the best plan needs depends on it"
        if any(axis.path.endswith(("nic_bandwidth", "nics_per_node")) for axis in axes):
            reason = "the cluster states its inter_node_bandwidth, which is what counts"
        notes.append(f"{names} has no effect here: {reason}")
    return tuple(notes)


def _check(axes: tuple[Axis, ...], gpus: tuple[int, int] | None) -> None:
    if not 1 <= len(axes) <= 2:
        raise SpecError(f"a sweep has one or two axes, not {len(axes)}; give --sweep once or twice")
    if len({axis.path for axis in axes}) < len(axes):
        raise SpecError(f"{axes[0].path} is swept twice; name another field in one --sweep")
    if gpus is not None and any(axis.path == SIZE for axis in axes):
        raise SpecError("gpus is swept and given at once; leave --gpus out")
    size = int(np.prod([len(axis.values) for axis in axes]))
    if size > MOST:
        raise SpecError(f"{size:,} points are {size:,} searches, more than {MOST}; write fewer, such as a..b:10")
