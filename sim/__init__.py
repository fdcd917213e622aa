"""flopcast: predict how fast a large language model trains on a GPU cluster, and why.

>>> from sim import estimate, load_scenario
>>> answer = estimate(load_scenario("scenarios/gpt-1t-3072-a100.yaml"))
>>> answer.total_flop_per_s > 4e17
True
"""

from collections.abc import Mapping

from sim.engines import ENGINES
from sim.errors import FlopcastError, InfeasiblePlan, ProfileError, ScheduleError, SpecError
from sim.estimate import Estimate, estimate
from sim.schedules import build_order, schedule, schedule_names
from sim.shown import View, provide
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


def _views() -> Mapping[str, View]:
    """How answers show themselves; loaded when the first one is looked at."""
    from sim.report.html.notebook import VIEWS

    return VIEWS


provide(_views)

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
    "simulate",
]
