"""Whole answers are what they were: a change that moves one on purpose freezes them anew and says why."""

import json
from pathlib import Path

import pytest
from freeze import differences, frozen

ANSWERS = Path(__file__).parent / "answers.json"
PLANS = 2
"""Random plans of every schedule in the file."""


@pytest.fixture(scope="module")
def answers():
    return frozen(PLANS), json.loads(ANSWERS.read_text(encoding="utf-8"))


def test_answers_are_as_frozen(answers):
    now, then = answers
    found = sorted(differences(then, now), reverse=True)
    assert not found, "\n".join(f"{apart:.1e} {where}" for apart, where in found[:20])


def test_a_change_would_be_seen(answers):
    now, then = answers
    name = next(name for name, answer in then.items() if "step_time_s" in answer)
    moved = {**now, name: {**now[name], "step_time_s": now[name]["step_time_s"] * (1 + 1e-8)}}
    assert [where.partition(":")[0] for _, where in differences(then, moved)] == [f"/{name}/step_time_s"]


def test_every_scenario_and_schedule_is_there(answers):
    from sim.schedules import schedule_names

    _, then = answers
    kinds = {name.split()[0] for name in then}
    assert set(schedule_names()) <= kinds
    assert {path.name for path in (Path(__file__).parents[2] / "scenarios").rglob("*.yaml")} <= {
        Path(kind).name for kind in kinds
    }
