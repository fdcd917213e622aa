"""Plans ranked by a quantile of their step times."""

import json

import pytest
from typer.testing import CliRunner

from sim.cli import app
from sim.search import search
from sim.search.risk import at_risk
from sim.uncertainty import least_quantile_factor

SCENARIO = "scenarios/gpt3-175b-1024-a100.yaml"


@pytest.fixture(scope="module")
def result():
    return search(SCENARIO, top=40)


def test_a_quantile_is_between_the_estimate_and_the_end_of_its_interval(result):
    interval = result.best[0].answer.interval
    factor = {p: interval.quantile(p) for p in (0.05, 0.5, 0.8, 0.9, 0.95)}
    assert list(factor.values()) == sorted(factor.values())
    assert (factor[0.05], factor[0.95]) == pytest.approx(interval.factors)
    assert [interval.chance_below(each) for each in factor.values()] == pytest.approx([*factor])


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_no_plan_is_known_better_than_the_bound_says(result, probability):
    least = least_quantile_factor(result.best[0].scenario, probability)
    assert all(each.answer.interval.quantile(probability) >= least for each in result.best)
    assert (least == 1.0) == (probability == 0.5)


def test_the_order_is_that_of_the_quantile(result):
    same, risky = at_risk(result, 0.5), at_risk(result, 0.9, top=40)
    assert same.best == result.best[:10]
    worth = [each.answer.step_time_s * risky.risk.factor(each) for each in risky.best]
    assert worth == sorted(worth)
    assert {id(each) for each in risky.best} == {id(each) for each in result.best}
    assert [each.answer for each in risky.best] != [each.answer for each in result.best]  # some ranks change
    assert risky.gap == result.gap == 0.0  # the fastest is still proven


def test_the_command_says_what_ranks_mean(result):
    found = CliRunner().invoke(app, ["search", SCENARIO, "--risk", "0.9", "--top", "3"], env={"COLUMNS": "80"})
    assert "90% below" in found.output
    assert "90 of 100 such steps take at" in found.output
    assert max(map(len, found.output.splitlines())) <= 80
    data = json.loads(CliRunner().invoke(app, ["search", SCENARIO, "--risk", "0.9", "--json"]).stdout)
    assert data["risk"]["probability"] == 0.9
    assert data["risk"]["fastest"]["step_time_s"] <= data["best"][0]["step_time_s"]
