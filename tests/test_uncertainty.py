"""The 90 % interval round a step time, and how its table is learnt."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad

from flopcast_calibration.readers.training_runs import Run
from flopcast_calibration.write import as_measured
from flopcast_validation.runs.intervals import APART, Source, _surprise, learn, left_out, reached
from flopcast_validation.runs.scored import Scored
from sim import estimate, load_scenario, uncertainty
from sim.assumptions import TELLING
from sim.specs.loading import _OPEN
from sim.specs.values import place_of
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import (
    FACTS,
    FREEDOM,
    PARTS,
    REST,
    WIDEST,
    Doubt,
    Spreads,
    doubt_of,
    grade_of,
    interval_of,
    least_quantile_factor,
    shipped_spreads,
    spread_of,
)
from tests.learn_intervals import write_intervals

PARTLY = Spreads(dict.fromkeys(PARTS, 0.2), dict.fromkeys(FACTS, 1.5), {}, (1.0, 2.0))


def shares(*sizes):
    """Shares of the first parts."""
    return dict(zip(PARTS, sizes, strict=False))


doubts = st.builds(
    lambda each, off: Doubt(shares(*each), (), log_error=off),
    st.lists(st.floats(0.0, 1.0), min_size=len(PARTS), max_size=len(PARTS)),
    st.floats(-0.5, 0.5),
)


@pytest.fixture(scope="module")
def scenario(scenarios):
    return load_scenario(scenarios / "megatron-2021" / "39.1b.yaml")


def test_an_estimate_lies_in_its_interval(scenario):
    answer = estimate(scenario)
    low, high = answer.step_time_interval_s
    assert 0 < low < answer.step_time_s < high
    down, up = (side * spread_of(doubt_of(scenario, answer.breakdown.shares())) for side in shipped_spreads().reach)
    assert (low, high) == pytest.approx((answer.step_time_s * math.exp(-down), answer.step_time_s * math.exp(up)))
    assert answer.to_dict()["step_time_interval_s"] == [low, high]
    parts = answer.to_dict()["interval_parts"]
    assert sum(parts.values()) == pytest.approx(1.0)
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


@given(asked=doubts, measured=st.lists(doubts, max_size=4))
def test_measured_runs_condition_a_student_t(asked, measured):
    """The spread that is left is one over the joint precision's entry, times how far off the runs were over how far
    they were expected to be; no run that is off as expected makes an answer less sure."""
    rows = np.array([each.loads(PARTLY) for each in (asked, *measured)])
    joint = rows @ rows.T + REST**2 * np.eye(1 + len(measured))
    off = np.array([each.log_error for each in measured])
    far = (FREEDOM + off @ np.linalg.inv(joint[1:, 1:]) @ off) / (FREEDOM + len(measured))
    left = min((far / np.linalg.inv(joint)[0, 0]) ** 0.5, WIDEST / PARTLY.reach[1])
    assert spread_of(asked, measured, PARTLY) == pytest.approx(left, rel=1e-6)
    given = list[Doubt]()
    for run in measured:
        before = spread_of(asked, given, PARTLY)
        given.append(run._replace(log_error=min(abs(run.log_error), spread_of(run, given, PARTLY))))
        assert spread_of(asked, given, PARTLY) <= before + 1e-12


def test_one_run_narrows_the_interval_of_an_unknown_framework(scenarios):
    answer = estimate(load_scenario(scenarios / "megatron-2021" / "39.1b.yaml", ["stack.framework=pytorch"]))
    said, causes = answer.interval_basis, answer.breakdown.shares()
    assert "One measured step of a similar run (flopcast anchor) would make the interval " in said
    assert f"The largest doubt is {next(iter(answer.interval.parts))}" in said
    told = as_measured(answer.scenario, causes)
    provenance = answer.scenario.profile.provenance.replace(measured=(told,))
    after = answer.scenario.replace(profile=answer.scenario.profile.replace(provenance=provenance))
    narrower = interval_of(after, causes)
    assert "after one run of your own" in narrower.basis
    assert narrower.factors[1] < answer.interval.factors[1]
    assert grade_of(after)[0] == "measured here"
    often = after.replace(profile=after.profile.replace(provenance=provenance.replace(measured=(told,) * 9)))
    assert least_quantile_factor(often, 0.9) <= interval_of(often, causes).quantile(0.9)
    larger = load_scenario(scenarios / "megatron-2021" / "39.1b.yaml", ["profile=datasheet", "plan.dp=16"])
    of_datasheet = larger.profile.provenance.replace(measured=(told,))
    measured = larger.replace(profile=larger.profile.replace(provenance=of_datasheet))
    assert [grade_of(each)[0] for each in (larger, measured)] == ["unknown", "like measured runs"]


def test_the_table_that_ships_is_sensible():
    spreads = shipped_spreads()
    assert set(spreads.parts) == set(PARTS)
    assert set(spreads.facts) == set(FACTS)
    assert set(spreads.apart) == set(APART) == set(place_of(load_scenario("scenarios/megatron-2021/1.7b.yaml")))
    for values, low, high in (
        (spreads.apart.values(), 0, 1), (spreads.parts.values(), 0.02, 1), (spreads.facts.values(), 1, 2), (spreads.reach, 1, 4),
    ):  # fmt: skip
        assert low <= min(values) <= max(values) <= high
    assert spreads.runs > 1_000
    assert spreads.lineages > 20


def test_slopes_of_the_likelihood_are_its_differences():
    random = np.random.default_rng(1)
    source = Source(
        random.dirichlet(np.ones(4), 5), random.integers(0, 2, (5, 3)).astype(float),
        np.abs(np.subtract.outer(place := random.normal(0, 1, 5), place))[:, :, None], random.normal(0, 0.2, 5), 1.0,
    )  # fmt: skip
    at = np.concatenate([random.normal(-1.5, 0.3, 4), random.normal(0, 0.3, 4)])
    off = check_grad(lambda x: _surprise(x, source)[0], lambda x: _surprise(x, source)[1], at)
    assert off < 1e-4


@pytest.fixture(scope="module")
def drawn(scenario):
    """Runs of thirty lineages whose traffic is off by much more than their multiplies; of half, a tenth as much."""
    random = np.random.default_rng(3)
    runs = []
    for number in range(30):
        fitted = number % 2 == 0
        of_part = np.array([0.05, 0.6]) * random.normal(size=2) * (0.1 if fitted else 1.0)
        for each in range(8):
            traffic = random.uniform(0.1, 0.5)
            size = np.array([1.0 - traffic, traffic]) @ of_part + random.normal(0, 0.02)
            run = Run(
                f"{number}-{each}", f"source {number}", "", "", 1.0, "iteration_s", (scenario,), family=f"{number} / x"
            )
            of = {"matrix multiplies": 1.0 - traffic, "data-parallel traffic": traffic}
            runs.append(Scored(run, scenario, 1.0, 1.0, error=math.exp(-size) - 1.0, fitted=fitted, shares=of))
    return runs


def test_spreads_are_those_that_runs_were_drawn_with(drawn):
    """Families that set a value err less because they are theirs, which narrows nobody else's interval."""
    found = learn([drawn])
    assert found.parts["data-parallel traffic"] == pytest.approx(0.6, rel=0.5)
    assert found.parts["matrix multiplies"] < 0.15
    none = learn([[item for item in drawn if not item.fitted]])
    assert found.parts["data-parallel traffic"] == pytest.approx(none.parts["data-parallel traffic"], rel=0.35)
    assert found.published == {"a100, pipeline or tensor, 16-bit": (30, 240)}


def test_intervals_of_left_out_lineages_hold_nine_in_ten(drawn, tmp_path):
    spreads, (hits,) = left_out([drawn])
    assert np.mean([hit.inside for hit in hits]) == pytest.approx(0.9, abs=0.05)
    path = tmp_path / "intervals.yaml"
    write_intervals(spreads, path)
    assert Spreads(**load_yaml(path)).parts == pytest.approx(spreads.parts, abs=1e-3)
    assert load_yaml(path).keys() == load_yaml(uncertainty.TABLE).keys()
    # A lineage has no part in its own interval: that its runs are far odder than all others' changes little of it.
    mine = drawn[0].run.family
    odd = [replace(item, error=3.0) if item.run.family == mine else item for item in drawn]
    widths = [[hit.width for hit in of if hit.item.run.family == mine] for of in (hits, left_out([odd])[1][0])]
    assert widths[0] == pytest.approx(widths[1], rel=0.1)


@given(pairs=st.lists(st.tuples(st.floats(-2.0, 2.0), st.floats(0.1, 1.0)), min_size=1, max_size=20))
def test_each_side_holds_nine_in_ten_of_its_errors_and_a_shorter_one_does_not(pairs):
    sizes, weights = (np.array(column) for column in zip((1.0, 0.5), *pairs, strict=True))
    up, positive = reached(sizes, weights), sizes > 0.0
    share = (weights * (sizes <= up))[positive].sum() / weights[positive].sum()
    shorter = (weights * (sizes < up))[positive].sum() / weights[positive].sum()
    assert shorter < 0.9 <= share + 1e-9


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
