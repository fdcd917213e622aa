"""A 90 % interval around a step time, from how far predictions were from runs whose family was left out of the fits.

Conformal: the quantile of the absolute log error over left-out runs of the same kind. The table is written by
`flopcast validate --runs FILE --update-intervals`.
"""

from __future__ import annotations

from functools import cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from sim.specs import Scenario
from sim.specs.yaml12 import load_yaml

TABLE = Path(__file__).parent / "presets" / "intervals.yaml"
OFF_RANGE = 1.5
"""Widening where something was extrapolated beyond what a profile was fitted on: assumed, no run measures it."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_yaml(TABLE)
    return table


def kind_of(scenario: Scenario) -> tuple[str, ...]:
    """What the errors depend on, from the most to the least particular: GPU and stack, GPU and sharding, GPU, any."""
    family = scenario.profile.gpu.lower()
    precision = "fp8" if scenario.training.precision == "fp8" else "16-bit"
    precision += " experts" if scenario.model.num_experts else ""
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


class Record(NamedTuple):
    """Published runs that an interval comes from.

    kind : what they share: GPU, stack, sharding, precision; empty where no run is of any such kind.
    width : half-width of the interval, as a logarithm.
    """

    kind: str
    width: float
    families: int
    runs: int


def record_of(scenario: Scenario) -> Record:
    """The most particular kind of published runs that this scenario is of."""
    kinds = _table()["kinds"]
    for kind in kind_of(scenario):
        if kind in kinds:
            found = kinds[kind]
            return Record(kind, float(found["width"]), int(found["families"]), int(found["runs"]))
    return Record("", float(_table()["unknown"]), 0, 0)
