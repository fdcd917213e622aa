"""The 90 % interval round a step time, and the rule that makes its table."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopcast_calibration.readers.training_runs import Run
from flopcast_validation.runs.intervals import ANY, Miss, Reach, off_range, quantiles, reaches_of
from flopcast_validation.runs.scored import Scored
from sim import estimate, load_scenario, uncertainty
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import after_runs, basis_of, interval_factors, kind_of, measured_run, record_of


def misses(sizes, fitted=False):
    """A lineage's runs that were so far off."""
    return [Miss(size, f"run {number}", fitted) for number, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def scenario(scenarios):
    return load_scenario(scenarios / "megatron-2021" / "39.1b.yaml")


def test_an_estimate_lies_in_its_interval(scenario):
    answer = estimate(scenario)
    low, high = answer.step_time_interval_s
    assert 0 < low < answer.step_time_s < high
    record = record_of(scenario)
    assert (low, high) == pytest.approx(
        (answer.step_time_s * math.exp(-record.low), answer.step_time_s * math.exp(record.high))
    )
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
    low, high = next(kinds[kind]["reach"] for kind in kind_of(broader) if kind in kinds)
    assert interval_factors(broader) == pytest.approx((math.exp(-low), math.exp(high)))


def test_extrapolation_widens_by_what_was_measured(scenario):
    inside, beyond = (math.log(interval_factors(scenario, off)[1]) for off in (False, True))
    assert beyond == pytest.approx(load_yaml(uncertainty.TABLE)["extrapolated"] * inside)
    assert beyond >= inside


def test_runs_of_ones_own_make_a_kind_of_their_own(scenario):
    """How many, of which model and precision: what the interval rests on then."""
    measured = measured_run(scenario)
    assert measured == f"{scenario.model.name}, 16-bit"
    assert kind_of(after_runs(scenario, 1, (measured,)))[0] == "known framework, after one run of this model, 16-bit"
    assert kind_of(after_runs(scenario, 4, ("other, 16-bit",)))[0] == "known framework, after three runs, 16-bit"
    other = kind_of(after_runs(scenario, 1, ("other, fp8 experts",)))
    assert other == ("known framework, after one run of other precision or kind", "known framework, after one run")


def test_an_unknown_framework_is_told_what_would_narrow_its_interval(scenarios):
    scenario = load_scenario(scenarios / "megatron-2021" / "39.1b.yaml", ["stack.framework=pytorch"])
    said = basis_of(scenario)
    assert "naming a known framework (stack.framework) or " in said
    assert "of your own (flopcast anchor) would narrow it" in said
    once, thrice = (record_of(after_runs(scenario, count, (measured_run(scenario),))) for count in (1, 3))
    assert thrice.width < once.width <= record_of(scenario).width
    assert "stack.framework" not in basis_of(after_runs(scenario, 1, (measured_run(scenario),)))


def test_where_gpu_and_framework_are_not_known_the_wider_counts(scenarios):
    path = scenarios / "megatron-2021" / "39.1b.yaml"
    unknown = "stack.framework=pytorch"
    widths = [
        record_of(load_scenario(path, changes)).width
        for changes in (["profile=datasheet"], [unknown], ["profile=datasheet", unknown])
    ]
    assert widths[2] == max(widths)


def test_every_reach_of_the_table_is_sensible():
    table = load_yaml(uncertainty.TABLE)
    for low, high in (table["unknown"], *(entry["reach"] for entry in table["kinds"].values())):
        assert 0.0 <= low < 3.0
        assert 0.0 <= high < 3.0
        assert low + high > 0.04


def test_quantiles_count_a_lineage_as_the_square_root_of_its_runs():
    assert quantiles([misses([float(i)]) for i in range(-20, 21)]) == Reach(18.0, 18.0)
    # Four hundred runs of one lineage weigh like twenty lineages of one.
    assert quantiles([misses([1.0] * 400), *[misses([2.0])] * 2]).high == 2.0
    assert quantiles([misses([1.0] * 400), misses([2.0])]).high == 1.0


@given(errors=st.lists(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=5), min_size=1, max_size=8))
def test_no_more_than_a_twentieth_lies_beyond_either_side(errors):
    found = quantiles([misses(sizes) for sizes in errors])
    weight = lambda keep: sum(len(f) ** -0.5 for f in errors for e in f if keep(e))  # noqa: E731
    assert weight(lambda error: error > found.high) <= 0.05 * weight(lambda error: True) + 1e-9
    assert weight(lambda error: error < -found.low) <= 0.05 * weight(lambda error: True) + 1e-9


def test_sides_of_small_kinds_are_drawn_to_the_broader_kind():
    few, many = {"a": misses([0.5])}, {f"f{i}": misses([0.1, -0.2]) for i in range(100)}
    errors = {ANY: {**few, **many}, ("16-bit",): {**few, **many}, ("16-bit", "few"): few, ("16-bit", "many"): many}
    reaches = reaches_of(errors)
    assert reaches[("16-bit",)] == pytest.approx((0.2, 0.1))
    assert reaches["16-bit", "few"] == pytest.approx((4 * 0.2 / 5, (0.5 + 4 * 0.1) / 5))
    assert reaches["16-bit", "many"] == pytest.approx((0.2, 0.1))


def test_families_that_set_a_value_do_not_narrow_what_others_may_expect():
    """Their own errors are small because they are theirs: the broadest kind is of those that set none."""
    own, other = {"own": misses([0.02] * 50, fitted=True)}, {"other": misses([0.4] * 4)}
    reaches = reaches_of({ANY: {**own, **other}, ("fp8",): own, ("16-bit",): {**own, **other}})
    assert reaches["16-bit",].high == pytest.approx(0.4)
    assert reaches["fp8",].high == pytest.approx(0.4)


def test_extrapolated_runs_further_off_than_others_widen_by_that_much():
    """Three lineages, of which the runs beyond a profile's range are twice as far off as the others."""
    scenario = load_scenario("scenarios/megatron-2021/39.1b.yaml")
    run = Run("", "", "", "", 1.0, "iteration_s", (scenario,))
    scored = [
        Scored(
            replace(run, id=f"{name} {number}", family=f"{name} / model"),
            scenario,
            error=math.expm1(size * (2.0 if extrapolated else 1.0)),
            extrapolated=extrapolated,
        )
        for name in ("a", "b", "c")
        for extrapolated in (True, False)
        for number, size in enumerate((0.1, 0.1, 0.1))
    ]
    assert off_range(scored) == pytest.approx(2.0)
    assert off_range([item for item in scored if not item.extrapolated]) == 1.0
