"""The best plan as a number of the scenario changes: another network, more memory, a larger batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import product
from math import log2, prod
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError, nearest
from sim.notebook import NotebookDisplay
from sim.parallel import map_over
from sim.search.candidate import SHOWN_FIELDS, Candidate, facts_of, shown
from sim.search.confirm import MOST_RUNS
from sim.search.plans.layouts import CHOICES, FIELDS, NUMBERS, context_degrees
from sim.search.plans.space import base_plan
from sim.search.search import search
from sim.specs import Scenario
from sim.specs.base import Spec, file_name, number_kind, unit_of
from sim.specs.loading import build_scenario
from sim.units import EXAMPLES, count_factor, parse, show, show_time, significant

_SECTIONS = ("model", "cluster", "training", "stack", "profile")
_ABOUT_THE_FIT = {"residuals", "unseen", "provenance"}
"""Parts of a profile that say how good it is; no answer depends on them."""


@dataclass(frozen=True, slots=True)
class NumericField:
    """A number of a scenario.

    path : as files and overrides write it, such as cluster.inter_node_bandwidth.
    full_path : with the units in the names, where bare SI numbers are accepted.
    unit : its dimension, as in `sim.units`; None for pure numbers.
    whole : it counts something.
    value : the scenario's own; None where it is left open. [SI]
    """

    path: str
    full_path: str
    unit: str | None
    whole: bool
    value: float | None


def numeric_fields(scenario: Scenario) -> dict[str, NumericField]:
    """Every number of a scenario outside its plan, by path."""
    found = (field for section in _SECTIONS for field in _walk(getattr(scenario, section), section, section))
    return {field.path: field for field in found}


def find_field(scenario: Scenario, path: str) -> NumericField:
    """The number at a path, whichever of its names the path is made of.

    Raises SpecError: no such number; the message has the nearest.
    """
    fields = numeric_fields(scenario)
    plain = ".".join(file_name(part) for part in path.split("."))
    if plain in fields:
        return fields[plain]
    # Whoever writes cluster.gpu.memory means cluster.node.gpu.memory: what a path ends in says most.
    last = plain.rpartition(".")[2]
    ending = [known for known in fields if known.rpartition(".")[2] == last]
    if 0 < len(ending) <= 5:
        raise SpecError(f"the scenario has no number {path!r}; did you mean {' or '.join(map(repr, ending))}?")
    section = [known for known in fields if known.startswith(f"{plain}.")]
    if section:
        raise SpecError(f"{path!r} is a section; its numbers are {', '.join(section)}")
    hint = nearest(plain, fields)
    raise SpecError(
        f"the scenario has no number {path!r}{hint if len(hint) < 300 else '; flopcast fields lists them all'}"
    )


def with_numbers(scenario: Scenario, numbers: Mapping[str, float]) -> Scenario:
    """The scenario with other numbers, by full path; what followed from the old ones follows from the new.

    Raises SpecError: the numbers break a rule of the scenario.
    """
    data = scenario.model_dump(exclude_unset=True, exclude={"assumed"})
    # What the framework's rules set is among the data; they are not asked again.
    ruled_by = {name: data["stack"].pop(name) for name in ("framework", "version") if name in data["stack"]}
    overrides = [f"{path}={value!r}" for path, value in numbers.items()]
    found = build_scenario(data, overrides, scenario.name)
    return found.replace(assumed=scenario.assumed, stack=found.stack.replace(**ruled_by))


def _walk(spec: Spec, path: str, full_path: str) -> Iterator[NumericField]:
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        places = [(value, f"{path}.{file_name(name)}", f"{full_path}.{name}")]
        if isinstance(value, Mapping):
            places = [(item, f"{short}.{key}", f"{full}.{key}") for _, short, full in places
                      for key, item in value.items()]  # fmt: skip
        for item, short, full in places:
            if name in _ABOUT_THE_FIT:
                continue
            if isinstance(item, Spec):
                yield from _walk(item, short, full)
                continue
            kind = number_kind(info.annotation) if item is None else type(item)
            if kind in (int, float):
                whole = number_kind(info.annotation) is int
                yield NumericField(short, full, unit_of(name), whole, item)


GEOMETRIC = 4.0
"""A range is cut into equal factors where its ends differ by more than this, into equal steps otherwise."""
POINTS = {"geometric": 9, "linear": 5}
"""Points of a range that does not say how many."""
DOUBLINGS = 12
"""A range is cut into doublings, up to so many, if its ends differ by a power of two. Whole numbers, which layouts and
batches must divide, are cut so from two doublings on."""
LARGEST = 1e15
"""Largest pure number of a range: no count, rate or share of a scenario is larger."""
SIZE = "gpus"
"""The axis that is no field: how many GPUs the plan uses."""
PLAN_NUMBERS = (*NUMBERS, "zero_stage")
"""Fields of the plan that are numbers; an axis over one fixes what the search else varies."""

_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^:]+)(?::(?P<count>.*))?$")
_NUMBER = re.compile(r"\s*(?P<number>[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>.*?)\s*$")
_NETWORK = ("inter_node_bandwidth", "nic_bandwidth")
"""Bandwidths that are sold in bits a second."""
_LETTERS = {"bytes": "B", "bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "flop": "FLOP", "w": "W"}


@dataclass(frozen=True, slots=True)
class Axis:
    """What is swept, over which values.

    path : as files write it; `gpus`, or plan.tp and the like, fix what a search else varies.
    full_path : where the scenario holds it; empty for what a search varies, `gpus` and the plan's fields.
    unit : its dimension, as in `sim.units`; None for pure numbers.
    spacing : listed, linear or geometric.
    """

    path: str
    full_path: str
    unit: str | None
    values: tuple[float, ...]
    spacing: str

    def show(self, value: float) -> str:
        """A value as a person writes it."""
        if self.unit is None:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        if self.unit == "bytes_per_s" and self.path.endswith(_NETWORK):
            return _short(show(8 * value, "bit/s"))
        return _short(show_time(value) if self.unit == "s" else show(value, _LETTERS[self.unit]))


def _short(shown: str) -> str:
    """`25 Gbit/s` for `25.0 Gbit/s`."""
    return re.sub(r"(\.\d*?)0+(?=\s)", r"\1", shown).replace(". ", " ")


def parse_axis(text: str, scenario: Scenario) -> Axis:
    """What is swept: a path of the scenario, `=`, and values with their unit.

    `a..b` is a range. Where b is more than four times a it is cut into doublings if they lead there, else 9 equal
    factors; where it is less, into 5 equal steps. Whole numbers double from four times a on. `a..b:N` has N values,
    `a,b,c` are these. A unit after the last value counts for all.

    Raises SpecError: no such number, or values that cannot be read.
    """
    path, equals, said = text.partition("=")
    path = path.strip()
    if not equals or not said.strip():
        raise SpecError(f"--sweep {text!r} must look like cluster.inter_node_bandwidth=25..800Gbit/s")
    if path == SIZE or path.startswith("plan."):
        full, unit, whole, path = "", None, True, _plan_field(path, scenario)
    else:
        field = find_field(scenario, path)
        full, unit, whole, path = field.full_path, field.unit, field.whole, field.path
    values, spacing = _values(said, unit, whole, path)
    least = 0 if path == "plan.zero_stage" else 1
    if (path == SIZE or path.startswith("plan.")) and min(values) < least:
        raise SpecError(f"--sweep {path}: {min(values):g} must be {least} or more")
    return Axis(path, full, unit, values, spacing)


def _plan_field(path: str, scenario: Scenario) -> str:
    name = path.removeprefix("plan.")
    if name == "ep" and not scenario.model.num_experts:
        raise SpecError(f"--sweep {path}: model {scenario.model.name!r} has no experts to deal")
    if path == SIZE or name in PLAN_NUMBERS:
        return path
    if name in ("schedule", *CHOICES):
        raise SpecError(f"{path} is a choice, not a number; --sensitivity shows what each of them costs")
    raise SpecError(f"a search does not vary {path!r}{nearest(name, PLAN_NUMBERS)}")


def _values(said: str, unit: str | None, whole: bool, path: str) -> tuple[tuple[float, ...], str]:
    match = _RANGE.match(said.strip())
    if match is None:
        parts = said.split(",")
        last = _NUMBER.match(parts[-1])
        trailing = last["unit"] if last else ""
        return _distinct([_read(part, trailing, unit, path) for part in parts], whole, path), "listed"
    ending = _NUMBER.match(match["last"])
    trailing = ending["unit"] if ending else ""
    first, last_value = (_read(match[name], trailing, unit, path) for name in ("first", "last"))
    if first >= last_value:
        raise SpecError(f"--sweep {path}: {said.strip()!r} must go from a smaller to a larger value")
    geometric = first > 0 and last_value / first > GEOMETRIC
    count = _count(match["count"], path)
    if count is None:
        count = POINTS["geometric" if geometric else "linear"]
        doublings = log2(last_value / first) if first > 0 else 0.0
        wide = geometric or (whole and doublings > 1.5)
        if wide and abs(doublings - round(doublings)) < 1e-9 and doublings < DOUBLINGS + 0.5:
            geometric, count = True, round(doublings) + 1
    values = np.geomspace(first, last_value, count) if geometric else np.linspace(first, last_value, count)
    if whole:
        values = np.unique(values.round())
    # Rounding of the spacing leaves 99.99999999999999 where 100 is meant.
    tidy = [float(f"{value:.12g}") for value in values.tolist()]
    return _distinct(tidy, whole, path), "geometric" if geometric else "linear"


def _count(text: str | None, path: str) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 2:
        raise SpecError(f"--sweep {path}: {text!r} values; after the colon stands a whole number of two or more")
    return int(text)


def _read(text: str, trailing: str, unit: str | None, path: str) -> float:
    """One value in SI; a value without a unit has the one that stands at the end."""
    match = _NUMBER.match(text)
    if match is None:
        example = f"a..b, a..b:N or a,b,c with {EXAMPLES[unit]}" if unit else "a..b, a..b:N or a,b,c"
        raise SpecError(f"--sweep {path}: {text.strip()!r} is not a number; write {example}")
    if unit is not None:
        return parse(f"{match['number']} {match['unit'] or trailing}", unit)
    letter = match["unit"] or trailing
    factor = count_factor(letter, path) if letter else 1.0
    if factor is None:
        raise SpecError(f"--sweep {path}: {text.strip()!r} has a unit, but {path} is a pure number")
    value = float(match["number"].replace("_", "")) * factor
    if abs(value) > LARGEST:
        raise SpecError(f"--sweep {path}: {text.strip()} is larger than any number here, {LARGEST:g}")
    return value


def _distinct(values: list[float], whole: bool, path: str) -> tuple[float, ...]:
    for value in values:
        if whole and not float(value).is_integer():
            raise SpecError(f"--sweep {path}: {significant(value)} must be a whole number")
        if values.count(value) > 1:
            raise SpecError(f"--sweep {path}: {value:g} stands there twice")
    return tuple(int(value) if whole else value for value in values)


MOST = 400
"""Points of a whole sweep: each is a search."""
DEGREES = {"cp": "context", "ep": "experts"}
"""Degrees that a search is told, and its words for them."""
PLAN_AXES = tuple(f"plan.{name}" for name in PLAN_NUMBERS)
"""Axes over fields of the plan, which a point's search keeps."""
INTERRUPTED = "interrupted before it was searched"
"""The reason that a point shows if it was not searched."""
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

    @property
    def finished(self) -> bool:
        """Whether every point was searched, and none was left out by an interrupt."""
        return all(point.infeasible != INTERRUPTED for point in self.points)

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
            "finished": self.finished,
            "axes": [
                {"path": each.path, "unit": each.unit, "spacing": each.spacing, "values": list(each.values)}
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
    axes: str | Sequence[str | Axis],
    *,
    gpus: tuple[int, int] | None = None,
    objective: str = "step_time",
    confirm: int = MOST_RUNS,
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
    confirm : int
        Plans of each point that the exact engine runs at most; fewer where the best is proven before.
    progress : callable, optional
        Called with (points done, points in all).
    executor : Executor, optional
        Of `concurrent.futures`: searches of different points run on it (`sim.parallel`).
    **options
        Of `search`: memory_limit_bytes, context, experts.

    Returns
    -------
    Sweep
        With every point; where no plan can be run the reason stands in its place. Interrupted (KeyboardInterrupt), a
        point that was not searched says so.

    Raises
    ------
    SpecError
        An axis that does not exist or cannot be read, or values none of which makes a scenario.
    """
    given = [axes] if isinstance(axes, str | Axis) else list(axes)
    parsed = tuple(parse_axis(each, scenario) if isinstance(each, str) else each for each in given)
    question = _Question(scenario, parsed, gpus, objective, confirm, options)
    everywhere = list(product(*(axis.values for axis in parsed)))
    points, mistakes = dict[tuple[float, ...], SweepPoint](), list[FlopcastError]()
    try:
        for point, mistake in map_over(question.point, everywhere, executor):
            mistakes += [] if mistake is None else [mistake]
            points[point.values] = point
            if progress is not None:
                progress(len(points), len(everywhere))
    except KeyboardInterrupt:  # the points that were searched are an answer
        if all(point.best is None for point in points.values()):
            raise
    if len(mistakes) == len(everywhere):
        raise mistakes[0]
    ordered = tuple(points.get(values, SweepPoint(values, None, INTERRUPTED, 0)) for values in everywhere)
    return Sweep(scenario, parsed, ordered, objective, question.notes(ordered))


@dataclass(frozen=True, slots=True)
class _Question:
    """What a sweep asks at every point; the fields are arguments of `sweep`."""

    scenario: Scenario
    axes: tuple[Axis, ...]
    gpus: tuple[int, int] | None
    objective: str
    confirm: int
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
        numbers = {axis.full_path: value for axis, value in named.items() if axis.full_path}
        try:  # its plan is what is searched, and need not suit the values
            here = with_numbers(self.scenario.replace(plan=base_plan(self.scenario)), numbers)
        except FlopcastError as error:
            return SweepPoint(values, None, f"no such scenario: {error}", 0), error
        context = context_degrees(here.training.sequence_length, self.scenario.plan.cp)
        wanted = {"layouts": False, "context": context, **self.options}
        fixed = {axis.path.removeprefix("plan."): int(each) for axis, each in named.items() if axis.path in PLAN_AXES}
        wanted |= {DEGREES[name]: (value,) for name, value in fixed.items() if name in DEGREES}
        wanted["fixed"] = {**(wanted.get("fixed") or {}), **fixed}
        size = self._num_gpus(here, values)
        try:
            result = search(here, gpus=size, objective=self.objective, top=1, confirm=self.confirm, **wanted)
        except FlopcastError as error:
            return SweepPoint(values, None, str(error), 0), None
        return SweepPoint(values, result.best[0], None, result.plans_feasible, result.gap or 0.0), None

    def notes(self, points: Sequence[SweepPoint]) -> tuple[str, ...]:
        """What the sweep took for granted, and what a reader may miss."""
        found = [each for each in points if each.best is not None]
        gap = max((each.gap for each in found), default=0.0)
        even = "" if self.options.get("layouts") else " with layers dealt evenly"
        sure = f"no other{even} can be better" if gap == 0.0 else f"another{even} may be better by {gap:.2%} at most"
        notes = [f"each point is a search of its own, and its best plan is run on the exact engine; {sure}"]
        notes += ["layouts that balance layers over stages are left out; --layouts searches them too"] if even else []
        for axis in self.axes:
            if axis.spacing != "listed":
                equal = "factors" if axis.spacing == "geometric" else "steps"
                notes.append(f"{axis.path} goes in equal {equal}; write {axis.path}=a,b,c or a..b:N for other values")
        if self.gpus is None and self._whole_cluster():
            notes.append("every point uses all GPUs of its cluster; --gpus fixes their number instead")
        if len(found) > 1 and len({round(each.best.answer.step_time_s, 9) for each in found if each.best}) == 1:
            reason = "nothing that the best plan needs depends on it"
            if any(axis.path.endswith(("nic_bandwidth", "nics_per_node")) for axis in self.axes):
                reason = "the cluster states its inter_node_bandwidth, which is what counts"
            notes.append(f"{' and '.join(axis.path for axis in self.axes)} has no effect here: {reason}")
        return tuple(notes)

    def _num_gpus(self, here: Scenario, values: tuple[float, ...]) -> tuple[int, int]:
        """Fewest and most GPUs at a point: those swept or given, all of a cluster that is swept, or the plan's."""
        for axis, value in zip(self.axes, values, strict=True):
            if axis.path == SIZE:
                return int(value), int(value)
        return self.gpus or (here.cluster.num_gpus if self._whole_cluster() else self.scenario.plan.num_gpus,) * 2

    def _whole_cluster(self) -> bool:
        return any(axis.path in _CLUSTER_SIZE for axis in self.axes)
