"""A question small enough to be played under every schedule in milliseconds."""

import pytest

from sim import load_scenario, schedule_names
from sim.report.gantt import step_view
from sim.report.schedules import plan_changes

SMALL = [
    "plan.tp=8", "plan.pp=4", "plan.dp=2", "training.global_batch_size=16", "model.num_layers=16",
    "cluster.num_nodes=8",
]  # fmt: skip
SCHEDULES = schedule_names()


@pytest.fixture(scope="session")
def small(scenarios):
    """The function (schedule, settings) -> scenario on 4 pipeline ranks with 8 micro-batches."""

    def make(schedule="1f1b", *settings):
        scenario = load_scenario(scenarios / "gpt3-175b-1024-a100.yaml", [*SMALL, *settings])
        changes = plan_changes(scenario, schedule)
        return scenario.replace(plan=scenario.plan.replace(schedule=schedule, **changes))

    return make


@pytest.fixture(scope="session")
def view_of(small):
    """The function (schedule, settings) -> StepView."""
    return lambda schedule="1f1b", *settings: step_view(small(schedule, *settings))
