"""The best plan at every value of an axis: of numbers of the scenario (`sweep`), such as its network, memory or batch,
and of fields of the plan, whose values are compared with those of the best plan of all (`sensitivity`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import log2, prod
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError
from sim.notebook import NotebookDisplay
from sim.search.by_schedule import search_under
from sim.search.candidate import SHOWN_FIELDS, Candidate, facts_of, shown
from sim.search.explain import Why, why_not
from sim.search.fields import FIELDS, RECOMPUTES, SCHEDULES, base_plan
from sim.search.result import SearchResult
from sim.search.search import search
from sim.specs import Scenario
from sim.specs.writing import overridden
from sim.units import count_factor, number_and_unit

GEOMETRIC = 4.0
"""A range is cut into equal factors where its ends differ by more than this, into equal steps otherwise."""
POINTS = {True: 9, False: 5}
"""Points of a range in equal factors, and in equal steps, that does not say how many."""
DOUBLINGS = 12
"""A range is cut into doublings, up to so many, if its ends differ by a power of two. Whole numbers, which layouts and
batches must divide, are cut so from two doublings on."""
SIZE = "gpus"
"""The axis that is no field: how many GPUs the plan uses."""
_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^:]+)(?::(?P<count>.*))?$")


@dataclass(frozen=True, slots=True)
class Axis:
    """What is swept, over which values.

    path : as overrides write it, or SIZE.
    unit : of all values, as it was written; empty for pure numbers.
    spacing : listed, linear or geometric.
    """

    path: str
    unit: str
    values: tuple[float, ...] = ()
    spacing: str = "listed"

    def show(self, value: float) -> str:
        """A value as a person writes it."""
        number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        return f"{number} {self.unit}".strip()

    def override(self, value: float) -> str:
        """The word that sets a value."""
        return f"{self.path}={f'{value!r} {self.unit}'.strip()}"


def parse_axis(text: str) -> Axis:
    """What is swept: a path of the scenario, `=`, and values with their unit.

    `a..b` is a range. Where b is more than four times a it is cut into doublings if they lead there, else 9 equal
    factors; where it is less, into 5 equal steps. Whole numbers double from four times a on. `a..b:N` has N values,
    `a,b,c` are these. A unit after the last value counts for all.

    Raises SpecError: values that cannot be read, or a field of the plan, which a search varies itself.
    """
    path, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said:
        raise SpecError(f"--sweep {text!r} must look like cluster.inter_node_bandwidth=25..800Gbit/s")
    if path.startswith("plan."):
        raise SpecError(f"{path} is what a search varies; --sensitivity shows the best plan with each of its values")
    match = _RANGE.match(said)
    read, unit = _read(said.split(",") if match is None else [match["first"], match["last"]], path)
    whole = not unit and all(value.is_integer() for value in read)
    values, spacing = (read, "listed") if match is None else _spread(read, match["count"], path, said, whole)
    for value in values:
        if values.count(value) > 1:
            raise SpecError(f"--sweep {path}: {value:g} stands there twice")
    if path == SIZE and not (whole and min(values) >= 1):
        raise SpecError(f"--sweep {path}: {said} must be whole numbers of 1 or more")
    return Axis(path, unit, tuple(map(int, values) if whole else values), spacing)


def _read(parts: Sequence[str], path: str) -> tuple[list[float], str]:
    """Values as they were written, and the unit of all; letters of counts, such as the k of lengths, are counted in."""
    pairs = [number_and_unit(part.strip()) for part in parts]
    unit = (pairs[-1] or ("", ""))[1]
    values = []
    for part, pair in zip(parts, pairs, strict=True):
        if pair is None:
            raise SpecError(f"--sweep {path}: {part.strip()!r} is not a number; write a..b, a..b:N or a,b,c")
        number, factor = float(pair[0]), count_factor(pair[1] or unit, path)
        if not np.isfinite(number):
            raise SpecError(f"--sweep {path}: {part.strip()} is larger than any number")
        if factor is None and pair[1] not in ("", unit):
            raise SpecError(f"--sweep {path}: {part.strip()!r} has another unit than {parts[-1].strip()!r}; write one")
        values.append(number * (factor or 1.0))
    return values, unit if count_factor(unit, path) is None else ""


def _spread(ends: Sequence[float], many: str | None, path: str, said: str, whole: bool) -> tuple[list[float], str]:
    """The values of a range, and how they are spaced.

    many : how many there are, as it was written; None where it was not.
    whole : they count something.
    """
    first, last = ends
    if first >= last:
        raise SpecError(f"--sweep {path}: {said!r} must go from a smaller to a larger value")
    if many is not None and not (many.strip().isdecimal() and int(many) > 1):
        raise SpecError(f"--sweep {path}: {many!r} values; after the colon stands a whole number of two or more")
    geometric, doublings = first > 0 and last / first > GEOMETRIC, log2(last / first) if first > 0 else 0.0
    count = POINTS[geometric] if many is None else int(many)
    wide = geometric or (whole and doublings > 1.5)
    if many is None and wide and abs(doublings - round(doublings)) < 1e-9 and doublings < DOUBLINGS + 0.5:
        geometric, count = True, round(doublings) + 1
    values = np.geomspace(first, last, count) if geometric else np.linspace(first, last, count)
    # Rounding of the spacing leaves 99.99999999999999 where 100 is meant.
    tidy = [float(f"{value:.12g}") for value in (np.unique(values.round()) if whole else values).tolist()]
    return tidy, "geometric" if geometric else "linear"


MOST = 400
"""Points of a whole sweep: each is a search."""
_FACTS = ("step_time_s", "mfu", "num_gpus", "memory_bytes", "training_days", "plan")
_CLUSTER_SIZE = ("cluster.num_nodes", "cluster.node.gpus_per_node")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The best plan where the axes have these values.

    best : None where there is none.
    infeasible : why there is none; None where there is one.
    plans_feasible : how many plans there fit in memory.
    gap : by what share at most another plan could be better; 0: by none.
    """

    values: tuple[float, ...]
    best: Candidate | None
    infeasible: str | None
    plans_feasible: int
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Sweep(NotebookDisplay):
    """The best plan at every point of one or two axes; the last axis changes fastest."""

    scenario: Scenario
    axes: tuple[Axis, ...]
    points: tuple[SweepPoint, ...]
    objective: str
    notes: tuple[str, ...]

    def changes(self, number: int) -> tuple[str, ...]:
        """Fields in which the winner of a point differs from that of the feasible point before it on the last axis."""
        here = self.points[number].best
        length = len(self.axes[-1].values)
        before = [each.best for each in self.points[number - number % length : number] if each.best is not None]
        if here is None or not before:
            return ()
        old, new = before[-1].scenario.plan, here.scenario.plan
        return tuple(name for name in SHOWN_FIELDS if shown(old, name) != shown(new, name))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.scenario.name,
            "objective": self.objective,
            "axes": [
                {"path": each.path, "unit": each.unit or None, "spacing": each.spacing, "values": list(each.values)}
                for each in self.axes
            ],
            "points": [
                {
                    "values": list(each.values),
                    "plans_feasible": each.plans_feasible,
                    "infeasible": each.infeasible,
                    "gap": each.gap,
                    **facts_of(each.best, *_FACTS),
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
            answer = facts_of(point.best, *_FACTS)
            plan = answer.pop("plan") or {}
            axes = {axis.path: value for axis, value in zip(self.axes, point.values, strict=True)}
            fields = {name: plan.get(name) for name in FIELDS}
            rows.append({**axes, **answer, **fields, "infeasible": point.infeasible})
        return pd.DataFrame(rows)


def sweep(
    scenario: Scenario,
    axes: str | Axis | Sequence[str | Axis],
    *,
    gpus: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Sweep:
    """Search the best plan at every value of a number of the scenario, or of two.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how many GPUs where `gpus` does not; a sweep over the size of the cluster uses all of it.
    axes : str or Axis, or one or two of them
        As `parse_axis` reads them: "cluster.inter_node_bandwidth=25..800 Gbit/s".
    progress : callable, optional
        Called with (points done, points in all).
    executor : Executor, optional
        Of `concurrent.futures`: searches of different points run on it.
    **options
        Of `search`: objective, confirm, memory_limit_bytes, fixed.

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
    parsed = tuple(parse_axis(each) if isinstance(each, str) else each for each in given)
    question = _Question(scenario, parsed, gpus, options)
    everywhere = list(product(*(axis.values for axis in parsed)))
    points, mistakes = list[SweepPoint](), list[FlopcastError]()
    for point, mistake in (map if executor is None else executor.map)(question.point, everywhere):
        mistakes += [] if mistake is None else [mistake]
        points.append(point)
        if progress is not None:
            progress(len(points), len(everywhere))
    if len(mistakes) == len(everywhere):
        raise mistakes[0]
    return Sweep(scenario, parsed, tuple(points), options.get("objective", "step_time"), tuple(question.notes(points)))


@dataclass(frozen=True, slots=True)
class _Question:
    """What a sweep asks at every point; the fields are arguments of `sweep`."""

    scenario: Scenario
    axes: tuple[Axis, ...]
    gpus: tuple[int, int] | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        axes = self.axes
        if not 1 <= len(axes) <= 2:
            raise SpecError(f"a sweep has one or two axes, not {len(axes)}; give --sweep once or twice")
        if len({axis.path for axis in axes}) < len(axes):
            raise SpecError(f"{axes[0].path} is swept twice; name another field in one --sweep")
        if self.gpus is not None and any(axis.path == SIZE for axis in axes):
            raise SpecError("gpus is swept and given at once; leave --gpus out")
        size = prod(len(axis.values) for axis in axes)
        if size > MOST:
            raise SpecError(f"{size:,} points are {size:,} searches, more than {MOST}; write fewer, such as a..b:10")

    def point(self, values: tuple[float, ...]) -> tuple[SweepPoint, FlopcastError | None]:
        """The best plan at a point; and the mistake where its values make no scenario."""
        named = dict(zip(self.axes, values, strict=True))
        words = [axis.override(value) for axis, value in named.items() if axis.path != SIZE]
        try:  # its plan is what is searched, and need not suit the values
            here = overridden(self.scenario.replace(plan=base_plan(self.scenario)), words)
        except FlopcastError as error:
            return SweepPoint(values, None, f"no such scenario: {error}", 0), error
        with suppress(FlopcastError):  # its own context-parallel degree is searched too, where that suits the values
            here = here.replace(plan=here.plan.replace(cp=self.scenario.plan.cp))
        own = here.cluster.num_gpus if self._whole_cluster() else self.scenario.plan.num_gpus
        swept = [int(value) for axis, value in named.items() if axis.path == SIZE]
        gpus = self.gpus or (swept[0] if swept else own,) * 2
        try:
            result = search(here, gpus=gpus, **{"layouts": False, **self.options, "top": 1})
        except FlopcastError as error:
            return SweepPoint(values, None, str(error), 0), None
        return SweepPoint(values, result.best[0], None, result.plans_feasible, result.gap or 0.0), None

    def notes(self, points: Sequence[SweepPoint]) -> Iterator[str]:
        """Yield what the sweep took for granted, and what a reader may miss."""
        found = [each for each in points if each.best is not None]
        gap = max((each.gap for each in found), default=0.0)
        even = "" if self.options.get("layouts") else " with layers dealt evenly"
        sure = f"no other{even} can be better" if gap == 0.0 else f"another{even} may be better by {gap:.2%} at most"
        yield f"each point is a search of its own, and its best plan is run on the exact engine; {sure}"
        if even:
            yield "layouts that balance layers over stages are left out; --layouts searches them too"
        for axis in self.axes:
            if axis.spacing != "listed":
                equal = "factors" if axis.spacing == "geometric" else "steps"
                yield f"{axis.path} goes in equal {equal}; write {axis.path}=a,b,c or a..b:N for other values"
        if self.gpus is None and self._whole_cluster():
            yield "every point uses all GPUs of its cluster; --gpus fixes their number instead"
        if len(found) > 1 and len({round(each.best.answer.step_time_s, 9) for each in found if each.best}) == 1:
            reason = "nothing that the best plan needs depends on it"
            if any(axis.path.endswith(("nic_bandwidth", "nics_per_node")) for axis in self.axes):
                reason = "the cluster states its inter_node_bandwidth, which is what counts"
            yield f"{' and '.join(axis.path for axis in self.axes)} has no effect here: {reason}"

    def _whole_cluster(self) -> bool:
        return any(axis.path in _CLUSTER_SIZE for axis in self.axes)


AXES = (
    "num_gpus", "tp", "cp", "pp", "ep", "microbatch_size", "num_chunks", "schedule", "recompute", "sequence_parallel",
    "zero_stage",
)  # fmt: skip
"""Axes that are looked at; dp follows from the others."""
FEW_RUNS = 8
"""Plans of each value that the exact engine runs at most under a schedule that is not priced."""


@dataclass(frozen=True, slots=True)
class ValueCost:
    """One value of an axis.

    why : the best plan that has it, and what that loses against the best of all; or why none fits.
    is_best : whether the best plan of all has it.
    """

    axis: str
    value: Any
    why: Why
    is_best: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "axis": self.axis,
            "value": self.value,
            "is_best": self.is_best,
            **facts_of(self.why.answer, "step_time_s"),
            "loss": self.why.loss,
            "losses_s": dict(self.why.losses),
            **facts_of(self.why.answer, "plan"),
            "ruled_out": self.why.ruled_out,
        }


def sensitivity(result: SearchResult) -> tuple[ValueCost, ...]:
    """The best plan with each value of each axis that has several, against the best of all."""
    best, found = result.best[0].scenario, dict[tuple[str, Any], Why]()
    for each in result.schedules:
        found["schedule", each.schedule] = Why.of_best(result, each.best, each.reason)
    for axis, values in result.values(AXES).items():
        for value in sorted(values, key=RECOMPUTES.index) if axis == "recompute" else values:
            if len(values) > 1 and (axis, value) not in found:
                found[axis, value] = _why(result, axis, value)
    own = best.plan, best.stack
    ran = {at: why.answer and (why.answer.scenario.plan, why.answer.scenario.stack) for at, why in found.items()}
    costs = [ValueCost(*at, why, ran[at] == own) for at, why in found.items()]
    return tuple(sorted(costs, key=lambda each: AXES.index(each.axis)))


def _why(result: SearchResult, axis: str, value: Any) -> Why:
    """Why not the best plan that has a value.

    The best plan's own schedule may be one that is not priced: then its other plans are looked for too.
    """
    best = result.best[0]
    if getattr(best.scenario.plan, axis) == value:
        return Why.of(result, best.answer, steps=False)
    why, schedule = why_not(result, {axis: value}, steps=False), best.scenario.plan.schedule
    if schedule in SCHEDULES or axis == "schedule":
        return why
    other = Why.of_best(result, search_under(result, schedule, {axis: value}, FEW_RUNS)[0].best)
    there = [each for each in (why, other) if each.answer is not None]
    return min(there, key=lambda each: each.loss or 0.0, default=why)
