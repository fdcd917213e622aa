"""Steps of very many actions: quick where that can be, refused at once where not."""

import pytest

from sim import estimate, load_scenario
from sim.engines import des
from sim.errors import ScheduleError
from sim.schedules import build, build_order


def test_orders_that_do_not_repeat_soon_are_refused_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(build, "MOST_ACTIONS", 600)
    with pytest.raises(ScheduleError, match=r"do not repeat before .* placed by what they take"):
        build_order("v_half", 8, 2, 100_000, fold=True, times=(1.0, 1.217, 0.731, 0.093))


def test_events_by_the_million_are_left_to_the_exact_engine(scenarios, monkeypatch):
    scenario = load_scenario(scenarios / "megatron-2021" / "18.4b.yaml")
    monkeypatch.setattr(des, "MOST_ACTIONS", 1)
    with pytest.raises(ScheduleError, match="engine dag gives the same times"):
        estimate(scenario, engine="des")
