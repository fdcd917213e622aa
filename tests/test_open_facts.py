"""What a description of an unknown framework's run leaves open, and how far it moves the answer."""

import pytest

from sim import estimate, load_scenario
from sim.assumptions import TELLING
from sim.specs.loading import _OPEN
from sim.specs.yaml12 import load_yaml

SCENARIO = "scenarios/megatron-2021/39.1b.yaml"
UNKNOWN = "stack.framework=pytorch"


def test_the_fact_that_moves_the_answer_most_comes_first_with_its_values():
    answer = estimate(load_scenario(SCENARIO, [UNKNOWN]))
    first, *others = answer.open_facts
    assert (first.field, first.low, first.high) == ("stack.attention", "flash-2", "math")
    assert all(first.high_s / first.low_s >= each.high_s / each.low_s > TELLING for each in others)
    assert f"Say {first.ask} (stack.attention): " in answer.interval_basis
    assert answer.to_dict()["open_facts"][0]["high"] == "math"
    for value, seconds in ((first.low, first.low_s), (first.high, first.high_s)):
        stated = estimate(load_scenario(SCENARIO, [UNKNOWN, f"stack.attention={value}"]))
        assert stated.step_time_s == pytest.approx(seconds)
        assert "stack.attention" not in {fact.field for fact in stated.open_facts}


def test_every_fact_that_may_be_open_has_values():
    from sim.assumptions import TABLE

    table = load_yaml(TABLE)
    assert set(table) == set(_OPEN)
    assert all(len(each["values"]) > 1 and each["ask"] for each in table.values())
