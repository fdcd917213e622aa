"""The best plan as a number of the scenario changes: another network, more memory, a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.search.among import FIELDS, best_among, column, confirmed_already, none_fits, with_fields
from sim.search.axes import SIZE, Axis, parse_axis
from sim.search.search import Candidate, SearchResult, search
from sim.search.space import base_plan
from sim.specs import Scenario
from sim.specs.fields import with_numbers

MOST = 400
"""Points of a whole sweep: each is a search."""
CONFIRM = 8
"""Plans of each point that the exact engine runs."""
_CLUSTER_SIZE = ("cluster.num_nodes", "cluster.node.gpus_per_node")


@dataclass(frozen=True, slots=True)
class Point:
    """The best plan where the axes have these values.

    best : None where there is none.
    infeasible : why there is none; None where there is one.
    """

    values: tuple[float, ...]
    best: Candidate | None
    infeasible: str | None
    plans_feasible: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """The best plan at every point of one or two axes; the last axis changes fastest."""

    scenario: Scenario
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    objective: str
    notes: tuple[str, ...]

    def winners(self) -> tuple[int | None, ...]:
        """Of every point which plan wins, numbered as they first appear; None where none does."""
        seen: dict[Any, int] = {}
        return tuple(
            None if each.best is None else seen.setdefault(each.best.scenario.plan, len(seen)) for each in self.points
        )

    def changes(self, number: int) -> tuple[str, ...]:
        """Fields in which the winner of a point differs from that of the feasible point before it on the last axis."""
        here = self.points[number].best
        length = len(self.axes[-1].values)
        before = [each.best for each in self.points[number - number % length : number] if each.best is not None]
        if here is None or not before:
            return ()
        old, new = before[-1].scenario.plan, here.scenario.plan
        return tuple(name for name in FIELDS if getattr(old, name) != getattr(new, name))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.scenario.name,
            "objective": self.objective,
            "axes": [
                {"path": each.path, "unit": each.unit, "spacing": each.spacing, "values": list(each.values)}
                for each in self.axes
            ],
            "points": [
                {
                    "values": list(each.values),
                    "plans_feasible": each.plans_feasible,
                    "infeasible": each.infeasible,
                    **_answer(each.best),
                }
                for each in self.points
            ],
            "notes": list(self.notes),
        }

    def to_frame(self) -> Any:
        """A pandas table, a row a point: the axes, the best plan's answer and fields, and why there is none."""
        import pandas as pd

        rows = []
        for point in self.points:
            answer = _answer(point.best)
            plan = answer.pop("plan") or {}
            axes = {axis.path: value for axis, value in zip(self.axes, point.values, strict=True)}
            fields = {name: plan.get(name) for name in FIELDS}
            rows.append({**axes, **answer, **fields, "infeasible": point.infeasible})
        return pd.DataFrame(rows)

    def plot(self) -> Any:
        """A matplotlib figure: lines over one axis, a map over two."""
        from sim.report.sweep_figures import draw_sweep

        return draw_sweep(self)


def _answer(best: Candidate | None) -> dict[str, Any]:
    if best is None:
        return dict.fromkeys(("step_time_s", "mfu", "num_gpus", "memory_bytes", "training_days", "plan"))
    answer = best.answer
    return {
        "step_time_s": answer.step_time_s,
        "mfu": answer.mfu,
        "num_gpus": answer.num_gpus,
        "memory_bytes": answer.largest.total,
        "training_days": None if answer.training_time_s is None else answer.training_time_s / 86400,
        "plan": answer.scenario.plan.model_dump(mode="json"),
    }


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
        With every point; where no plan can be run the reason stands in its place.

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
    for group in keys.values():
        result = _searched(scenario, parsed, group[0], gpus, objective, confirm, options, mistakes)
        for values in group:
            points[values] = _point(parsed, values, result, fixed, confirm)
            if progress is not None:
                progress(len(points), len(keys) * len(group))
    if len(mistakes) == len(keys):
        raise mistakes[0]
    ordered = tuple(points[values] for values in product(*(axis.values for axis in parsed)))
    return Sweep(scenario, parsed, ordered, objective, _notes(scenario, parsed, ordered, gpus, confirm))


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
    numbers = {axis.full_path: value for axis, value in zip(axes, values, strict=True) if axis.full_path}
    wanted = {"context": tuple(sorted({1, scenario.plan.cp})), **options}
    try:
        # The plan is what is searched; that of the scenario need not suit these numbers.
        here = with_numbers(scenario.replace(plan=base_plan(scenario)), numbers)
    except FlopcastError as error:
        mistakes.append(error)
        return f"no such scenario: {error}"
    size = gpus or (scenario.plan.num_gpus,) * 2
    for axis, value in zip(axes, values, strict=True):
        if axis.path == SIZE:
            size = (int(value),) * 2
        elif axis.path in _CLUSTER_SIZE and gpus is None:
            size = (here.cluster.num_gpus,) * 2
        elif axis.path == "plan.cp":
            wanted["context"] = tuple(int(each) for each in axis.values)
    try:
        return search(here, gpus=size, objective=objective, top=1, confirm=confirm, **wanted)
    except FlopcastError as error:
        return str(error)


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
    notes = [f"each point is a search of its own; the best {confirm} of its closed form were run on the exact engine"]
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
