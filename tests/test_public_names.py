"""What people import and print: `flopcast`, a path or one override where a record or several may stand, a line each."""

import pytest

import sim
from sim import estimate, load_scenario, simulate
from sim import flopcast as front
from sim.scaling.run import train

FILE = "scenarios/megatron-2021/1.7b.yaml"


def test_the_package_has_the_public_names_and_no_others():
    assert dir(front) == sorted([*sim.__all__, "__version__"])
    assert {name: getattr(front, name) for name in sim.__all__} == {name: getattr(sim, name) for name in sim.__all__}
    with pytest.raises(AttributeError, match="no attribute 'simulation'"):
        front.simulation  # noqa: B018


def test_a_path_and_one_override_are_taken_as_they_are():
    assert estimate(FILE).step_time_s == estimate(load_scenario(FILE)).step_time_s
    assert load_scenario(FILE, "plan.recompute=none") == load_scenario(FILE, ["plan.recompute=none"])


def test_records_and_results_print_themselves_in_a_line():
    scenario = load_scenario(FILE)
    parts = [getattr(scenario, name) for name in ("model", "cluster", "plan", "training", "stack", "profile")]
    answer = estimate(scenario)
    run = train(scenario, tokens=1e11)
    for each in (scenario, *parts, answer, answer.breakdown, simulate(scenario), run, run.run):
        assert "\n" not in repr(each)
        assert len(repr(each)) <= 200
    assert repr(scenario.plan) == str(scenario.plan) == "ParallelPlan(dp=32, microbatch_size=16, recompute='full')"
    assert repr(scenario).startswith("<Scenario 1.7b: gpt-1.7b on 32 × A100")
