"""Answers are what they were: a change that moves one on purpose freezes them anew (`tests.frozen`) and says why; switches turn off."""

import pytest

from sim import load_scenario
from sim.errors import SpecError
from sim.schedules import schedule_names
from sim.specs import StackSpec
from tests import ablate
from tests.frozen.asking import ROOT
from tests.frozen.comparing import ANSWERS, broken, differences, find, listed, read
from tests.frozen.sections import EVERY, SECTIONS, sampled


@pytest.fixture(scope="module")
def then():
    return read(ANSWERS)


def assert_as_frozen(then, section, jobs):
    now = find({section: jobs})[section]
    found = differences({name: then[section].get(name) for name in now}, now)
    assert not found, "\n".join(listed(section, len(now), found, 20))


@pytest.mark.slow
@pytest.mark.parametrize("section", EVERY)
def test_some_answers_are_as_frozen(then, section):
    assert_as_frozen(then, section, sampled(section))


@pytest.mark.thorough
@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in ("shared", "verbs")])
def test_all_answers_are_as_frozen(then, section):
    assert_as_frozen(then, section, SECTIONS[section]())


def test_a_change_would_be_seen(then):
    name, answer = next(iter(then["scenarios"].items()))
    moved = {**answer, "step_time_s": answer["step_time_s"] * (1 + 1e-8)}
    assert [each.path for each in differences({name: answer}, {name: moved})] == ["/step_time_s"]
    assert not differences({name: answer}, {name: answer | {"step_time_s": answer["step_time_s"] * (1 + 1e-10)}})


def test_every_scenario_and_schedule_is_frozen_and_no_answer_is_an_accident(then):
    assert {name.split()[0] for name in then["plans"]} == set(schedule_names())
    assert {name.split()[0] for name in then["scenarios"]} == {
        str(path.relative_to(ROOT / "scenarios")) for path in (ROOT / "scenarios").rglob("*.yaml")
    }
    assert not list(broken(then))


def test_every_switch_has_an_off_that_a_scenario_takes(scenarios):
    scenario = load_scenario(scenarios / "papers" / "deepseek-v3-2048-h800.yaml")
    refused = set()
    for name in StackSpec.model_fields.keys() - set(ablate.UNPHYSICAL):
        changes = {**ablate.ALONG.get(name, {}), f"stack.{name}": ablate.off(name)}
        assert getattr(ablate.changed(scenario, changes).stack, name) == ablate.off(name)
    for name, changes in ablate.MECHANISMS.items():
        try:
            ablate.changed(scenario, changes)
        except SpecError:
            refused.add(name)
    assert refused == {"resharding after the forward"}  # without ZeRO stage 3 there is none
