"""A 90 % interval around a step time, from how far predictions were from published runs of the same kind.

Conformal over lineages (framework and organisation): the quantile of the absolute log errors, a lineage of many runs
counting as the square root of their number, since what differs between lineages is what a user's own run differs by. A
kind of few lineages is drawn to the broader one. Of frameworks that are not known the errors are those of known ones
taken for unknown. The table is written by `flopcast validate --runs FILE --update-intervals`.
"""

from __future__ import annotations

from functools import cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from sim.specs import Scenario, StackSpec
from sim.specs.yaml12 import load_yaml

TABLE = Path(__file__).parent / "presets" / "intervals.yaml"
UNKNOWN, RELATIVE = "pytorch", "another framework"
"""The framework that stands for unknown ones, and the name of a stack that stands for a framework without runs."""
OFF_RANGE = 1.5
"""Widening where something was extrapolated beyond what a profile was fitted on: assumed, no run measures it."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_yaml(TABLE)
    return table


def is_unknown(stack: StackSpec) -> bool:
    """Whether nothing but its time is known of the framework, or no run of it: another one's stack stands for it."""
    return stack.framework == UNKNOWN or stack.name == RELATIVE


def kind_of(scenario: Scenario) -> tuple[str, ...]:
    """What the errors depend on, from the most to the least particular.

    Of a known framework GPU and stack, GPU and sharding, GPU, precision; of an unknown one GPU and precision, then
    precision: there the framework decides, and how far known ones come out when they are taken for unknown.
    """
    family = scenario.profile.gpu.lower()
    precision = "fp8" if scenario.training.precision == "fp8" else "16-bit"
    precision += " experts" if scenario.model.num_experts else ""
    if is_unknown(scenario.stack):
        return f"unknown framework, {family}, {precision}", f"unknown framework, {precision}", "unknown framework"
    sharded = "fsdp" if scenario.plan.zero_stage == 3 else "pipeline or tensor"
    return (
        f"{family}, {scenario.stack.name}, {sharded}, {precision}",
        f"{family}, {sharded}, {precision}",
        f"{family}, {precision}",
        f"{precision}",
    )


def interval_factors(scenario: Scenario, off_range: bool = False) -> tuple[float, float]:
    """Factors on the step time that bound 90 % of left-out runs.

    Parameters
    ----------
    scenario : Scenario
    off_range : bool
        Something was extrapolated beyond what the profile was fitted on.
    """
    width = record_of(scenario).width * (OFF_RANGE if off_range else 1.0)
    return exp(-width), exp(width)


def basis_of(scenario: Scenario, off_range: bool = False) -> str:
    """What a scenario's interval rests on, and what would narrow it, in a sentence or two."""
    record = record_of(scenario)
    if not record.runs:
        return "The interval is a guess: no published run of this kind was predicted."
    runs = f"{record.runs:,} published run{'s' if record.runs != 1 else ''}"
    lineages = f"{record.lineages} {'lineage' if record.lineages == 1 else 'lineages'}"
    said = f"The interval comes from how far predictions missed {runs} of {lineages} of the kind “{record.kind}”"
    if is_unknown(scenario.stack):
        said += (
            ", frameworks of which were taken for unknown; naming a known framework (stack.framework) would narrow it"
        )
    return f"{said}.{' It is half as wide again because something was extrapolated.' if off_range else ''}"


class Record(NamedTuple):
    """Published runs that an interval comes from.

    kind : what they share: GPU, stack, sharding, precision; empty where no run is of any such kind.
    width : half-width of the interval, as a logarithm.
    """

    kind: str
    width: float
    lineages: int
    runs: int


def record_of(scenario: Scenario) -> Record:
    """The most particular kind of published runs that this scenario is of."""
    kinds = _table()["kinds"]
    for kind in kind_of(scenario):
        if kind in kinds:
            found = kinds[kind]
            return Record(kind, float(found["width"]), int(found["lineages"]), int(found["runs"]))
    return Record("", float(_table()["unknown"]), 0, 0)
