"""flopcast: predict how fast a large language model trains on a GPU cluster, and why.

>>> from sim import estimate, load_scenario
>>> answer = estimate(load_scenario("scenarios/gpt-1t-3072-a100.yaml"))
>>> answer.total_flop_per_s > 4e17
True

A name is loaded when it is first asked for, so that what needs few of them, as the command line does, starts at once.
This file imports nothing that takes time: it runs before the command line can answer for an interrupt.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sim.engines import ENGINES
    from sim.errors import FlopcastError, InfeasiblePlan, ProfileError, ScheduleError, SpecError
    from sim.estimate import Estimate, estimate
    from sim.schedules import build_order, schedule, schedule_names
    from sim.search import SearchResult, search
    from sim.simulate import Simulation, simulate
    from sim.specs import (
        ClusterSpec,
        GpuSpec,
        ModelSpec,
        NodeSpec,
        ParallelPlan,
        Profile,
        Scenario,
        StackSpec,
        TrainingSpec,
        build_scenario,
        load_scenario,
        preset_names,
    )

__version__ = "0.1.0"

__all__ = [
    "ENGINES",
    "ClusterSpec",
    "Estimate",
    "FlopcastError",
    "GpuSpec",
    "InfeasiblePlan",
    "ModelSpec",
    "NodeSpec",
    "ParallelPlan",
    "Profile",
    "ProfileError",
    "Scenario",
    "ScheduleError",
    "SearchResult",
    "Simulation",
    "SpecError",
    "StackSpec",
    "TrainingSpec",
    "build_order",
    "build_scenario",
    "estimate",
    "load_scenario",
    "preset_names",
    "schedule",
    "schedule_names",
    "search",
    "simulate",
]

_HOMES = ("sim.errors", "sim.specs", "sim.schedules", "sim.engines", "sim.estimate", "sim.simulate", "sim.search")
"""Where the names live, from the lowest floor up: what lies above a name's home is not loaded for it."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                globals()[name] = found = getattr(home, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Front(type(sys)):  # type: ignore[misc]
    """Some functions are named as their modules (`estimate`): importing such a module leaves the function there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, type(sys))):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def notebook_views() -> Mapping[str, Any]:
    """Load how answers show themselves in a notebook, by the name of their type."""
    from sim.report.html.notebook import VIEWS

    return VIEWS


def further_model(name: str) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
    """Load the model of the hub, or of a `config.json`, that is no preset, and what of it is not counted."""
    from sim.foreign.importers.huggingface.hub_models import further_model

    return further_model(name)
