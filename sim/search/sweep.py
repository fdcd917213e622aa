"""The best plan as a number of the scenario changes: another network, more memory, a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.estimate import estimate
from sim.search.among import best_among, column, confirmed_already, none_fits, with_fields
from sim.search.axes import EXPERTS, SIZE, Axis, parse_axis
from sim.search.search import Candidate, SearchResult, search
from sim.search.space import OVERLAPS, base_plan
from sim.search.sweep_result import Point, Sweep
from sim.specs import Scenario
from sim.specs.fields import with_numbers

MOST = 400
"""Points of a whole sweep: each is a search."""
CONFIRM = 8
"""Plans of each point that the exact engine runs."""
INTERRUPTED = "interrupted before it was searched"
"""In the place of a reason where a point was not looked at."""
_CLUSTER_SIZE = ("cluster.num_nodes", "cluster.node.gpus_per_node")


def sweep(
    scenario: Scenario,
    axes: str | Sequence[str | Axis],
    *,
    gpus: tuple[int, int] | None = None,
    objective: str = "step_time",
    confirm: int = CONFIRM,
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
        Plans of each point that the exact engine runs.
    progress : callable, optional
        Called with (points done, points in all).
    **options
        Of `search`: max_gpus, memory_limit_bytes, context, overlaps.

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
    fixed = [index for index, axis in enumerate(parsed) if axis.path.startswith("plan.") and axis.path != EXPERTS]
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
        if len(mistakes) == len(keys):
            raise mistakes[0]
        _try_neighbours(scenario, parsed, points, gpus, objective, options)
    except KeyboardInterrupt:  # the points that were searched are an answer
        if all(point.best is None for point in points.values()):
            raise
        finished = False
    ordered = tuple(
        points.get(values, Point(values, None, INTERRUPTED, 0)) for values in product(*(axis.values for axis in parsed))
    )
    notes = _notes(scenario, parsed, ordered, gpus, confirm)
    return Sweep(scenario, parsed, ordered, objective, notes, finished)


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
    wanted = {"context": tuple(sorted({1, scenario.plan.cp})), **options}
    try:
        here = _scenario_at(scenario, axes, values)
    except FlopcastError as error:
        mistakes.append(error)
        return f"no such scenario: {error}"
    for axis in axes:
        if axis.path == "plan.cp":
            wanted["context"] = tuple(int(each) for each in axis.values)
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
    ep = int(numbers.pop(EXPERTS, scenario.plan.ep))
    return with_numbers(scenario.replace(plan=base_plan(scenario, ep)), numbers)


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


def _try_neighbours(
    scenario: Scenario,
    axes: tuple[Axis, ...],
    points: dict[tuple[float, ...], Point],
    gpus: tuple[int, int] | None,
    objective: str,
    options: dict[str, Any],
) -> None:
    """Run the winners of neighbouring points too, there and back along each axis, and keep what is better.

    The formula picks which plans the exact engine runs; where it flatters others, a plan that won next door would be
    missed, and a better machine come out slower.
    """
    for index, axis in [*enumerate(axes)] * len(axes):  # on a map what comes along one axis goes on along the other
        if axis.path.startswith("plan.") or axis.path == SIZE:
            continue  # a neighbour's plan is another one by definition
        for order in (axis.values, axis.values[::-1]):
            for before, after in pairwise(order):
                for values in [each for each in points if each[index] == after]:
                    near = points[(*values[:index], before, *values[index + 1 :])].best
                    here = points[values]
                    if near is None or here.best is None or near.scenario.plan == here.best.scenario.plan:
                        continue
                    there = _scenario_at(scenario, axes, values)
                    sizes = _size_at(scenario, there, axes, values, gpus)
                    better = _moved(near, there, sizes, options.get("memory_limit_bytes"))
                    if better is not None and better.worth(objective) < here.best.worth(objective):
                        points[values] = replace(here, best=better)


def _moved(
    winner: Candidate, there: Scenario, sizes: tuple[int, int], memory_limit_bytes: float | None
) -> Candidate | None:
    """A winner's plan on another point's scenario; None where it cannot be run there."""
    flags = {name: getattr(winner.scenario.stack, name) for name in OVERLAPS}
    limit = there.cluster.gpu.memory_bytes if memory_limit_bytes is None else memory_limit_bytes
    try:
        scenario = there.replace(plan=winner.scenario.plan, stack=there.stack.replace(**flags))
        answer, priced = estimate(scenario), estimate(scenario, "closed_form")
    except FlopcastError:
        return None
    needed = float(answer.largest.total)
    if needed > limit or not sizes[0] <= answer.num_gpus <= sizes[1]:
        return None
    return Candidate(scenario, priced.step_time_s, needed, answer)


def _point(
    axes: tuple[Axis, ...], values: tuple[float, ...], result: SearchResult | str, fixed: list[int], confirm: int
) -> Point:
    if isinstance(result, str):
        return Point(values, None, result, 0)
    if not fixed:
        return Point(values, result.best[0], None, result.plans_feasible)
    named = {axes[index].path.removeprefix("plan."): int(values[index]) for index in fixed}
    which = with_fields(result, named)
    ranking = result.ranking()
    best = best_among(result, which, confirmed_already(result), ranking, confirm)
    if best is not None:
        return Point(values, best, None, int(np.count_nonzero(which[ranking])))
    return Point(values, None, none_fits(result, which) if which.any() else _no_plan(result, named), 0)


def _no_plan(result: SearchResult, named: dict[str, int]) -> str:
    """Which of the values no plan has, and those there are."""
    for name, value in named.items():
        there = np.unique(column(result, name))
        if value not in there:
            return f"no plan has {name} {value}; the rules leave {', '.join(map(str, there))}"
    return f"no plan has {' and '.join(f'{name} {value}' for name, value in named.items())} at once"


def _notes(
    scenario: Scenario, axes: tuple[Axis, ...], points: tuple[Point, ...], gpus: tuple[int, int] | None, confirm: int
) -> tuple[str, ...]:
    """What the sweep took for granted, and what a reader may miss."""
    beside = ", and the winners of the points beside it"
    if all(axis.path.startswith("plan.") or axis.path == SIZE for axis in axes):
        beside = ""  # see _try_neighbours
    notes = [
        f"each point is a search of its own; the best {confirm} of its closed form were run on the exact engine{beside}"
    ]
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
