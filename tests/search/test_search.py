"""What a search answers: the best plans, why not another, what left none, and the command around it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_space import search

from sim.estimate import estimate
from sim.search.result import pareto_front
from sim.specs import ParallelPlan, load_scenario
from sim.units import show, show_time

SCENARIOS = Path(__file__).parents[2] / "scenarios"
MAIN = SCENARIOS / "gpt3-175b-4096-a100.yaml"
SMALL = SCENARIOS / "korthikanti-2022" / "22b-selective.yaml"


@pytest.fixture(scope="module")
def result():
    return search(load_scenario(MAIN))


def test_the_best_is_the_best_of_all_by_the_exact_engine():
    """Against every plan of a small space on the exact engine; few are run to prove it, and none is below its price."""
    scenario = load_scenario(SMALL).replace(plan=ParallelPlan())
    narrow = {"gpus": (8, 12), "top": 3, "memory_limit_bytes": 52e9}
    found = search(scenario, **narrow)
    fits = found.best_places()
    plans = list(map(found.scenario_at, fits.tolist()))
    exact = np.array([estimate(each).step_time_s for each in plans])
    assert (exact >= found.prices.step_time_s[fits] * (1 - 1e-9)).all()
    gpus = found.column("num_gpus", fits)
    unsharded = [each.plan.dp * each.plan.cp == 1 and each.plan.zero_stage > 0 for each in plans]
    assert any(unsharded)  # one with ZeRO 0, which is as fast and as lean, stands for them
    exact = np.where(unsharded, np.inf, exact)
    cheap = search(scenario, objective="cost", **narrow)
    for best, worth in ((found, exact), (cheap, exact * gpus)):
        assert [each.worth(best.objective) for each in best.best] == pytest.approx(sorted(worth)[:3], rel=1e-9)
        assert best.gap == 0.0
        assert 3 <= best.found.runs < len(fits) / 4


def test_plans_that_nothing_tells_apart_are_shown_once():
    """One replica has nothing to shard, so that its ZeRO stages are one plan; all of them count in the space."""
    found = search(load_scenario(SMALL).replace(plan=ParallelPlan(tp=8)), top=5)
    alone = [each.scenario.plan for each in found.best if each.scenario.plan.dp == 1]
    assert len({plan.replace(zero_stage=0) for plan in alone}) == len(alone) > 2
    sharded = found.best[0].scenario.replace(plan=alone[0].replace(zero_stage=3))
    assert found.worth_of(sharded) is not None
    short = search(load_scenario(SMALL).replace(plan=ParallelPlan(tp=8)), top=2, confirm=3)
    assert (
        short.found.bound < np.inf
    )  # plans beyond those that were run may be left, however many of these were the same


def test_words_beside_the_best_plan_say_how_sure_it_is(result):
    """The interval of the best step time, and how little memory it leaves."""
    best = result.best[0].answer
    low, high = best.step_time_interval_s
    assert f"{show_time(low)} to {show_time(high)}" in " ".join(result.assumptions)
    tight = search(load_scenario(MAIN), memory_limit_bytes=best.largest.total * 1.01, top=1)
    assert tight.best[0].answer.step_time_s == best.step_time_s
    assert f"leaves {show(0.01 * best.largest.total, 'B')} of the memory free" in " ".join(tight.assumptions)
    roomy = search(load_scenario(MAIN), memory_limit_bytes=result.memory_limit_bytes * 10, top=1)
    assert "of the memory free" not in " ".join(roomy.assumptions)


@pytest.mark.parametrize(
    ("layers", "said"), [(61, "head_as_layer=true makes 63, which pp 3, 7 or 9 divides"), (60, None)]
)
def test_layers_that_no_pipeline_divides_are_told(layers, said):
    scenario = load_scenario(SMALL)
    given = scenario.replace(model=scenario.model.replace(num_layers=layers), plan=ParallelPlan(tp=8))
    stated = [each for each in search(given, gpus=(8, 16), top=1).assumptions if "divide the" in each]
    assert len(stated) == (said is not None)
    assert said is None or said in stated[0]


@given(st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=40))
def test_a_front_is_what_no_other_plan_beats(plans):
    front = pareto_front(*np.array(plans, dtype=float).T)
    beats = lambda a, b: all(x <= y for x, y in zip(a, b, strict=True)) and a != b  # noqa: E731
    best = {plan for plan in plans if not any(beats(other, plan) for other in plans)}
    assert sorted(plans[place] for place in front) == sorted(best)
