"""The scenario's own plan as some of its numbers change together: every combination, or the rule that it breaks.

A sweep (`sim.search.sweep`) looks for the best plan at every point; here the plan stays the scenario's own, but for
what is changed and what must follow: dp, so that the GPUs stay as many, and sequence parallelism, which needs tp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from sim.errors import FlopcastError, SpecError
from sim.estimate import Estimate, estimate
from sim.schedules import get_schedule
from sim.search.axes import Axis, parse_axis
from sim.search.plans.layouts import completed_plan
from sim.search.plans.space import base_plan
from sim.specs import ParallelPlan, Scenario
from sim.specs.fields import find_field, with_numbers
from sim.units import parse

BATCH, NETWORK = "training.global_batch_size", "cluster.inter_node_bandwidth"
POINTS, SLOW_POINTS = 280, 60
"""Combinations that `own_axes` chooses at most: a few seconds' worth; and under schedules that choose their order by
what things take, whose order is made anew for each."""
MOST = 1500
"""Combinations of a grid: a page holds half a kilobyte of each."""
LARGEST_NETWORK = 4096
"""GPUs up to which the network is changed unasked: which flows meet in switches is found anew for every bandwidth."""
REACH = 2
"""Doublings and halvings of the scenario's own values, at most."""


@dataclass(frozen=True, slots=True)
class GridAnswer:
    """What is kept of an estimate.

    step_time_interval_s : 90 % interval. [s]
    memory : of the fullest rank, by purpose. [bytes]
    overfull : what it needs of what there is, in words; empty where it fits.
    seconds : of the step, by cause. [s]
    """

    step_time_s: float
    step_time_interval_s: tuple[float, float]
    tokens_per_s: float
    total_flop_per_s: float
    mfu: float
    memory: Mapping[str, float]
    memory_bytes: float
    overfull: str
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, answer: Estimate) -> GridAnswer:
        """The answer without its timeline, which is large."""
        memory = answer.largest.to_dict()
        fits = memory["total"] <= answer.memory_available_bytes
        return cls(
            step_time_s=answer.step_time_s,
            step_time_interval_s=answer.step_time_interval_s,
            tokens_per_s=answer.tokens_per_s,
            total_flop_per_s=answer.total_flop_per_s,
            mfu=answer.mfu,
            memory_bytes=memory.pop("total"),
            memory=memory,
            overfull="" if fits else answer.need,
            seconds=answer.breakdown.seconds,
        )


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One combination.

    values : of the axes.
    follows : overrides, as `--set` takes them, that follow from those of the axes.
    answer : None where the combination cannot exist.
    ruled_out : the rule that it breaks; empty where it breaks none.
    """

    values: tuple[float, ...]
    follows: tuple[str, ...]
    answer: GridAnswer | None
    ruled_out: str = ""


@dataclass(frozen=True)
class Grid:
    """All combinations; the last axis changes fastest."""

    scenario: Scenario
    engine: str
    axes: tuple[Axis, ...]
    points: tuple[GridPoint, ...]

    @cached_property
    def own(self) -> tuple[int, ...]:
        """Where the scenario's own values stand on the axes."""
        return tuple(axis.values.index(own_value(self.scenario, axis)) for axis in self.axes)

    def at(self, places: Sequence[int]) -> GridPoint:
        """The point at these places of the axes."""
        number = 0
        for place, axis in zip(places, self.axes, strict=True):
            number = number * len(axis.values) + place
        return self.points[number]

    def along(self, number: int) -> list[GridPoint]:
        """The points of one axis, where all others have the scenario's own values."""
        own = self.own
        places = range(len(self.axes[number].values))
        return [self.at((*own[:number], place, *own[number + 1 :])) for place in places]

    def overrides(self, point: GridPoint) -> list[str]:
        """What `--set` takes to ask for a point."""
        pairs = zip(self.axes, point.values, strict=True)
        return [
            *(setting(axis, value) for axis, value in pairs if value != own_value(self.scenario, axis)),
            *point.follows,
        ]


def own_value(scenario: Scenario, axis: Axis) -> float | None:
    """The scenario's own value on an axis."""
    if axis.path.startswith("plan."):
        return float(getattr(scenario.plan, axis.path.removeprefix("plan.")))
    return find_field(scenario, axis.path).value


def setting(axis: Axis, value: float) -> str:
    """An override that gives an axis a value: as a person writes it where that says it exactly."""
    if axis.unit is None:
        return f"{axis.path}={value:g}" if float(value).is_integer() and value < 1e6 else f"{axis.path}={value!r}"
    shown = axis.show(value)
    try:
        exact = parse(shown.replace(",", ""), axis.unit) == value
    except SpecError:
        exact = False
    return f"{axis.path}={shown.replace(',', '')}" if exact else f"{axis.full_path}={value!r}"


def own_axes(scenario: Scenario, most: int | None = None) -> tuple[Axis, ...]:
    """Numbers that people turn first, around the scenario's own: degrees, micro-batch, batch, network.

    Doublings and halvings, the nearest first, as many as make `most` combinations.
    """
    plan, cluster = scenario.plan, scenario.cluster
    if most is None:
        most = SLOW_POINTS if "times" in get_schedule(plan.schedule).options else POINTS
    limits: dict[str, int] = {
        "tp": min(max(plan.tp, cluster.nvlink_domain_gpus), plan.num_gpus),
        "pp": min(max(plan.pp, scenario.model.num_layers), plan.num_gpus),
        "microbatch_size": scenario.training.global_batch_size,
    }
    if plan.cp > 1:
        limits["cp"] = plan.num_gpus
    if scenario.model.num_experts:
        limits["ep"] = min(scenario.model.num_experts, plan.num_gpus)
    own: dict[str, float] = {f"plan.{name}": getattr(plan, name) for name in limits}
    largest: dict[str, float] = {f"plan.{name}": limit for name, limit in limits.items()}
    own[BATCH], largest[BATCH] = scenario.training.global_batch_size, float("inf")
    if cluster.nvlink_domain_gpus < plan.num_gpus <= LARGEST_NETWORK:
        own[NETWORK], largest[NETWORK] = cluster.inter_node_bandwidth_bytes_per_s, float("inf")
    chosen = {path: [value] for path, value in own.items()}
    combinations = 1
    for doublings in range(1, REACH + 1):
        for path, values in chosen.items():
            for value in (own[path] * 2**doublings, own[path] / 2**doublings):
                possible = value <= largest[path] and (path == NETWORK or (value >= 1 and value % 1 == 0))
                more = combinations // len(values) * (len(values) + 1)
                if possible and more <= most:
                    values.append(value)
                    combinations = more
    return tuple(_axis(scenario, path, sorted(values)) for path, values in chosen.items() if len(values) > 1)


def _axis(scenario: Scenario, path: str, values: Sequence[float]) -> Axis:
    if path.startswith("plan."):
        return Axis(path, "", None, tuple(int(value) for value in values), "listed")
    field = find_field(scenario, path)
    return Axis(
        path, field.full_path, field.unit, tuple(int(value) if field.whole else value for value in values), "listed"
    )


def read_axes(scenario: Scenario, texts: Sequence[str]) -> tuple[Axis, ...]:
    """Axes as `--slider` names them, with the scenario's own values among theirs.

    Raises
    ------
    SpecError
        No such number, values that cannot be read, or one axis twice.
    """
    axes = []
    for text in texts:
        try:
            axis = parse_axis(text, scenario)
        except SpecError as error:  # in the words of the option that was given
            raise SpecError(str(error).replace("--sweep", "--slider")) from None
        if axis.path == "gpus" or axis.path == "plan.dp":
            raise SpecError(f"{axis.path} follows from the degrees, as the GPUs stay as many; name plan.tp or plan.pp")
        own = own_value(scenario, axis)
        if own is None:
            raise SpecError(f"{axis.path} is not set in the scenario, so that no slider can begin there; set it first")
        values = tuple(sorted({*axis.values, own}))
        axes.append(Axis(axis.path, axis.full_path, axis.unit, values, axis.spacing))
    if len({axis.path for axis in axes}) < len(axes):
        raise SpecError("a slider's field is named twice; give all its values at once")
    return tuple(axes)


def price_grid(
    scenario: Scenario,
    axes: Sequence[Axis],
    engine: str = "dag",
    progress: Callable[[int, int], None] | None = None,
) -> Grid:
    """Estimate every combination of some numbers.

    Parameters
    ----------
    axes : sequence of Axis
        Fields of the plan, and numbers of the scenario; the scenario's own values stand on them.
    engine : str
        As of `estimate`.
    progress : callable, optional
        Called with (combinations done, combinations in all).

    Returns
    -------
    Grid
        Whether or not combinations fit; those that cannot exist have the rule.

    Raises
    ------
    SpecError
        More than MOST combinations.
    """
    size = prod(len(axis.values) for axis in axes)
    if size > MOST:
        raise SpecError(f"{size:,} combinations are more than {MOST:,}; name fewer values, or fewer fields")
    bases = _Bases(scenario, axes)
    points = []
    everywhere = list(product(*(axis.values for axis in axes)))
    for values in everywhere:
        named = {axis.path: value for axis, value in zip(axes, values, strict=True)}
        fields = {path.removeprefix("plan."): int(value) for path, value in named.items() if path.startswith("plan.")}
        points.append(_point(scenario, bases.at(values), values, fields, engine))
        if progress is not None:
            progress(len(points), len(everywhere))
    return Grid(scenario, engine, tuple(axes), tuple(points))


class _Bases:
    """The scenario with other numbers and a plan that suits any; each made once, with clusters that are equal the same.

    What flows share in a cluster's switches is kept by the cluster's identity.
    """

    def __init__(self, scenario: Scenario, axes: Sequence[Axis]) -> None:
        self._scenario, self._clusters = scenario, [scenario.cluster]
        self._places = [(place, axis.full_path) for place, axis in enumerate(axes) if not axis.path.startswith("plan.")]
        own = tuple(own_value(scenario, axes[place]) for place, _ in self._places)
        self._made: dict[tuple[float | None, ...], Scenario | FlopcastError] = {own: scenario}

    def at(self, values: tuple[float, ...]) -> Scenario | FlopcastError:
        """The scenario of a point, or the error that says why there is none."""
        own = tuple(values[place] for place, _ in self._places)
        if own not in self._made:
            try:
                self._made[own] = self._make({path: values[place] for place, path in self._places})
            except FlopcastError as error:
                self._made[own] = error
        return self._made[own]

    def _make(self, numbers: Mapping[str, float]) -> Scenario:
        # The plan comes later, and need not suit the numbers before that.
        found = with_numbers(self._scenario.replace(plan=base_plan(self._scenario)), numbers)
        same = next((each for each in self._clusters if each == found.cluster), None)
        if same is None:
            self._clusters.append(found.cluster)
            return found
        return found.replace(cluster=same)


def _point(
    scenario: Scenario,
    base: Scenario | FlopcastError,
    values: tuple[float, ...],
    fields: Mapping[str, Any],
    engine: str,
) -> GridPoint:
    if isinstance(base, FlopcastError):
        return GridPoint(values, (), None, _rule(base))
    old = scenario.plan
    changed = {name: value for name, value in fields.items() if value != getattr(old, name)}
    try:
        plan = completed_plan(old, scenario.model.num_layers, changed) if changed else old
        answer = GridAnswer.of(estimate(base.replace(plan=plan), engine))
    except FlopcastError as error:
        return GridPoint(values, (), None, _rule(error))
    return GridPoint(values, _follows(old, plan, changed), answer)


def _follows(old: ParallelPlan, new: ParallelPlan, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that changed without being named, as overrides."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return tuple(
        f"plan.{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in after.items()
        if value != before[name] and name not in named
    )


def _rule(error: FlopcastError) -> str:
    """A mistake without the name of the record that found it."""
    return str(error).removeprefix("Scenario: ").removeprefix("ParallelPlan: ").removeprefix("plan: ")
