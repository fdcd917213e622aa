"""`calibrate matters`: which numbers of the hardware and the profile a step depends on most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flopcast_calibration.commands.shared import console


def matters(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    *,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    top: Annotated[int, typer.Option(min=1, help="Numbers shown.")] = 12,
) -> None:
    """Which numbers of the GPU, the node, the network and the profile move the step most: each 10 % less in turn."""
    from flopcast_calibration.sensitivity import effects
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
                "value": [_shown(each.value, each.unit) for each in shown],
                "step, with 10 % less": [f"{each.change:+.1%}" for each in shown],
            }
        )
    )
    print_("Each number is changed alone, and the plan stays. Try another value with -s NUMBER=VALUE.")


def _shown(value: float, unit: str) -> str:
    from sim.units import show, show_time

    return show_time(value) if unit == "s" else show(value, unit) if unit else f"{value:.4g}"
