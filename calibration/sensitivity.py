"""What single numbers of the hardware and the profile do to a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.specs import Scenario
from sim.specs.base import Spec, file_name, unit_of
from sim.units import UNIT_NAMES


class Effect(NamedTuple):
    """What one number of the hardware or the profile does to a step.

    path : as `--set` takes it.
    value : in `unit`, if it has one.
    change : of the step time, as a share, where the number is LESS of it.
    """

    path: str
    value: float
    unit: str
    change: float


LESS = 0.9
"""What every number is multiplied by in turn: less is possible for shares too, of which more than all is not."""


def effects(
    scenario: Scenario, changed: Callable[[str], Scenario], say: Callable[[str], None] = lambda words: None
) -> list[Effect]:
    """Return how every number of the GPU, node, network and profile moves the step time, the largest effect first.

    `changed` makes the scenario of an override ("cluster.gpu_spread=0.02"); `say` is told which number is tried.
    """
    step_time_s = estimate(scenario).step_time_s
    sections = {"cluster": scenario.cluster, **{f"profile.{name}": getattr(scenario.profile, name) for name in _PARTS}}
    found = []
    for section, record in sections.items():
        for path, value in _numbers(record, section):
            names = path.split(".")
            short = ".".join(map(file_name, names))
            unit = next((UNIT_NAMES[unit] for name in reversed(names) if (unit := unit_of(name))), "")
            say(f"trying {short}")
            try:
                time_s = estimate(changed(f"{short}={LESS * value!r} {unit}".strip())).step_time_s
            except FlopcastError:
                continue  # a number that may not be less, given the others
            found.append(Effect(short, value, unit, time_s / step_time_s - 1.0))
    return sorted(found, key=lambda each: -abs(each.change))


_PARTS = ("gemm", "attention", "memory", "nvlink", "network", "host")


def _numbers(record: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every positive number below a record that is no count and follows from no other, by its path."""
    if isinstance(record, Spec):
        follow = record.FOLLOWS.keys() - record.model_fields_set
        record = {name: getattr(record, name) for name in type(record).model_fields if name not in follow}
    if isinstance(record, Mapping):
        for name, value in record.items():
            yield from _numbers(value, f"{path}.{name}")
    elif isinstance(record, float) and record > 0.0:
        yield path, record
