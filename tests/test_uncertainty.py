"""The 90 % interval round a step time, and the rule that makes its table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import estimate, load_scenario, uncertainty
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import OFF_RANGE, interval_factors, kind_of
from validation.runs.intervals import ANY, half_widths, quantile


@pytest.fixture(scope="module")
def scenario(scenarios):
    return load_scenario(scenarios / "megatron-2021" / "39.1b.yaml")


def test_an_estimate_lies_in_its_interval(scenario):
    answer = estimate(scenario)
    low, high = answer.step_time_interval_s
    assert 0 < low < answer.step_time_s < high
    assert low * high == pytest.approx(answer.step_time_s**2)  # as far below as above, on a logarithmic scale
    assert answer.to_dict()["step_time_interval_s"] == [low, high]


def test_kinds_go_from_the_particular_to_the_general(scenario):
    kinds = kind_of(scenario)
    assert kinds[0] == f"a100, {scenario.stack.name}, pipeline or tensor, 16-bit"
    assert kinds[-1] == "16-bit"
    sharded = scenario.replace(plan=scenario.plan.replace(zero_stage=3))
    assert "fsdp" in kind_of(sharded)[0]


def test_an_unknown_stack_takes_the_broader_kind(scenario):
    broader = scenario.replace(stack=scenario.stack.replace(name="nobody's"))
    kinds = load_yaml(uncertainty.TABLE)["kinds"]
    wanted = next(kinds[kind]["width"] for kind in kind_of(broader) if kind in kinds)
    assert interval_factors(broader)[1] == pytest.approx(math.exp(wanted))


def test_extrapolation_widens(scenario):
    inside, beyond = (math.log(interval_factors(scenario, off)[1]) for off in (False, True))
    assert beyond == pytest.approx(OFF_RANGE * inside)


def test_every_width_of_the_table_is_sensible():
    table = load_yaml(uncertainty.TABLE)
    for entry in table["kinds"].values():
        assert 0.02 < entry["width"] < 1.5
    assert 0.02 < table["unknown"] < 1.5


def test_quantile_counts_a_family_as_the_square_root_of_its_runs():
    assert quantile([[float(i)] for i in range(1, 11)]) == 9.0
    # A hundred runs of one family weigh like ten families of one.
    assert quantile([[1.0] * 100, *[[2.0]] * 90]) == 2.0
    assert quantile([[1.0] * 100, [2.0]]) == 1.0


@given(errors=st.lists(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=5), min_size=1, max_size=8))
def test_quantile_is_one_of_the_errors_and_bounds_most(errors):
    found = quantile(errors)
    everything = [error for family in errors for error in family]
    assert found in everything
    weight = lambda keep: sum(len(f) ** -0.5 for f in errors for e in f if keep(e))  # noqa: E731
    assert weight(lambda error: error <= found) >= 0.9 * weight(lambda error: True) - 1e-9


def test_widths_of_small_kinds_are_drawn_to_the_broader_kind():
    few, many = {"a": [0.5]}, {f"f{i}": [0.1] for i in range(100)}
    errors = {ANY: {**few, **many}, ("16-bit",): {**few, **many}, ("16-bit", "few"): few, ("16-bit", "many"): many}
    widths = half_widths(errors)
    assert widths[("16-bit",)] == pytest.approx(0.1)
    assert widths["16-bit", "few"] == pytest.approx((0.5 + 4 * 0.1) / 5)
    assert widths["16-bit", "many"] == pytest.approx(0.1)
