"""What a description leaves open of a framework that is not known, and how far each such fact moves the step time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import FlopcastError
from sim.specs import Scenario
from sim.specs.loading import LEFT_OPEN
from sim.specs.yaml12 import load_yaml
from sim.units import show_time

TABLE = Path(__file__).parent / "presets" / "open_facts.yaml"
TELLING = 1.02
"""Factor between the step times of a fact's values from which on the fact is named."""


class OpenFact(NamedTuple):
    """A fact that is not stated, and the step times between which its values lie.

    ask : what to say, in a few words. field : where to say it.
    low, high : values with the shortest and the longest step; low_s, high_s : these steps. [s]
    """

    ask: str
    field: str
    low: str
    high: str
    low_s: float
    high_s: float

    def __str__(self) -> str:
        """What to say, and what the answer would be then."""
        ends = f"{show_time(self.low_s)} ({self.low}) to {show_time(self.high_s)} ({self.high})"
        return f"say {self.ask} ({self.field}): {ends}"


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = load_yaml(TABLE)
    return found


def open_facts(scenario: Scenario, step_time_s: float, time_of: Callable[[Scenario], float]) -> tuple[OpenFact, ...]:
    """Facts that a scenario's description leaves open, those first that move its step time most.

    Parameters
    ----------
    scenario : Scenario
    step_time_s : float
        As it is taken. [s]
    time_of : callable
        Step time of another scenario. [s]
    """
    line = next((each for each in scenario.assumed if each.startswith(LEFT_OPEN)), "")
    found = []
    for field in line.removeprefix(LEFT_OPEN).split(", ") if line else ():
        known = _table()[field]
        times: dict[str, float] = {}
        for value, changes in known["values"].items():
            seconds = _time_with(scenario, field.partition(".")[0], changes, step_time_s, time_of)
            times |= {} if seconds is None else {value: seconds}
        if not times:  # none of the values goes with what is stated
            continue
        low, high = min(times, key=lambda value: times[value]), max(times, key=lambda value: times[value])
        if times[high] > TELLING * times[low]:
            found.append(OpenFact(known["ask"], field, low, high, times[low], times[high]))
    return tuple(sorted(found, key=lambda fact: fact.low_s / fact.high_s))


def _time_with(
    scenario: Scenario,
    section: str,
    changes: Mapping[str, Any],
    step_time_s: float,
    time_of: Callable[[Scenario], float],
) -> float | None:
    """Step time under some fields of a section; None where they cannot be. [s]"""
    record: Any = getattr(scenario, section)
    if all(getattr(record, name) == value for name, value in changes.items()):
        return step_time_s
    try:
        return time_of(scenario.replace(**{section: record.replace(**changes)}))
    except FlopcastError:
        return None
