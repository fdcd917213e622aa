"""`calibrate matters`: which numbers of the hardware and the profile a step depends on most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from flopcast_calibration.commands.shared import console
from sim.errors import FlopcastError
from sim.specs import Scenario
from sim.specs.base import Spec, file_name, unit_of
from sim.units import UNIT_NAMES, show, show_time


def matters(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    *,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    top: Annotated[int, typer.Option(min=1, help="Numbers shown.")] = 12,
) -> None:
    """Which numbers of the GPU, the node, the network and the profile move the step most: each 10 % less in turn."""
    from sim import load_scenario
    from sim.commands.progress import spinner
    from sim.table import columns_table

    with spinner("estimating") as say:
        found = effects(
            load_scenario(scenario, overrides, profile),
            lambda override: load_scenario(scenario, (*overrides, override), profile),
            say,
        )
    shown = found[:top]
    print_ = console().print
    print_(
        columns_table(
            {
                "number": [each.path for each in shown],
                "value": [
                    show_time(x) if unit == "s" else show(x, unit) if unit else f"{x:.4g}" for _, x, unit, _ in shown
                ],
                "step, with 10 % less": [f"{each.change:+.1%}" for each in shown],
            }
        )
    )
    print_("Each number is changed alone, and the plan stays. Try another value with -s NUMBER=VALUE.")


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
    from sim.estimate import estimate

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
