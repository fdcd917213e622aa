"""In Jupyter answers show themselves: a page, a picture where one says it, a table where one does."""

import pytest
from open_space import search

from sim import estimate, load_scenario

SCENARIO = "gpt3-175b-1024-a100.yaml"


@pytest.fixture(scope="module")
def answer(scenarios):
    return estimate(load_scenario(scenarios / SCENARIO))


@pytest.fixture(scope="module")
def shown(answer):
    return {"estimate": answer, "search": search(answer.scenario, confirm=3, top=3)}


@pytest.mark.thorough
def test_numbers_are_those_of_the_answer(shown):
    answer, found = shown["estimate"], shown["search"]
    frame = answer.to_frame()
    assert frame["seconds"].sum() == pytest.approx(answer.step_time_s)
    assert frame["share"].sum() == pytest.approx(1.0)
    assert "30.9 s" in answer._repr_html_()
    plans = found.to_frame()
    assert 0 <= len(plans) - found.plans_priced <= found.plans_given_room  # those with room stand behind the others
    assert plans["fits"].sum() == found.plans_feasible
    assert plans["step_time_s"].iloc[0] == found.prices.step_time_s[found.best_places()[0]]
    first = plans.iloc[0]
    assert first["tp"] * first["cp"] * first["pp"] * first["dp"] == first["num_gpus"]
    scenario = found.scenario_at(int(found.best_places()[0]))
    assert (scenario.plan.schedule, scenario.plan.recompute) == (first["schedule"], first["recompute"])


def test_the_table_of_a_timeline_holds_its_tasks(scenarios):
    timeline = estimate(load_scenario(scenarios / SCENARIO, ["training.global_batch_size=128"])).timeline
    every = timeline.to_frame()
    once = every[every["stream"] == "once a step"]
    assert set(once["kind"]) == {"reduce", "tied", "update"}
    assert once["end_s"].max() <= timeline.step_time_s
    frame = every[every["stream"] == "compute"]
    assert len(frame) == 16 * 16 * 2
    assert set(frame["kind"]) == {"F", "B"}
    assert (frame["end_s"] > frame["start_s"]).all()
    assert frame[frame["rank"] == 3]["start_s"].is_monotonic_increasing
