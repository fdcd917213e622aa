"""The best plan as a number of the scenario changes: another network, more memory, a larger batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from sim.errors import FlopcastError, SpecError
from sim.notebook import NotebookDisplay
from sim.search.axes import SIZE, Axis, parse_axis
from sim.search.candidate import SHOWN_FIELDS, Candidate, facts_of, shown
from sim.search.fields import FIELDS, base_plan
from sim.search.search import search
from sim.specs import Scenario
from sim.specs.writing import overridden

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
