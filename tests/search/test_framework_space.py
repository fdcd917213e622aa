"""A search's space: plans that the framework can run, with the fields that are set."""

from random_scenarios import scenario_of
from rows import forms, rows

from sim import load_scenario, search
from sim.errors import InfeasiblePlan, SpecError
from sim.foreign.exporters import FRAMEWORKS, export_scenario
from sim.search.by_schedule import search_schedules
from sim.search.explain import rank_plan, why_not
from sim.specs.framework_plans import broken_rules, rules_of_scenario


@forms("seeds", range(2), range(4))
@rows("framework", FRAMEWORKS, ids=FRAMEWORKS)
def test_every_plan_that_a_search_returns_exports(framework, seeds):
    """Random models, clusters and trainings; refusals may speak of the model or of training, never of the plan."""
    exported = 0
    for seed in seeds:
        try:
            result = search(
                scenario_of(framework, seed), top=4, confirm=4, export_to=framework, any_framework=seed % 2 == 0
            )
        except InfeasiblePlan:
            continue
        for each in result.best:
            reasons = refusals(each.scenario, framework)
            assert "cannot run plan." not in reasons, (seed, reasons)
            exported += not reasons
    assert exported > 1


def refusals(scenario, framework):
    try:
        export_scenario(scenario, framework)
    except SpecError as error:
        return str(error)
    return ""


def test_room_and_layouts_keep_what_is_set(scenarios):
    """What is recomputed stays as it is set, too, where plans do not fit else and where layers are dealt anew."""
    scenario = load_scenario(scenarios / "gpt3-175b-1024-a100.yaml", ["stack=megatron-core"])
    for recompute in ("none", "full", "selective"):
        result = search(scenario, top=3, fixed={"recompute": recompute, "zero_stage": 1, "tp": 8}, layouts=True)
        for each in result.best:
            plan = each.scenario.plan
            assert (plan.recompute, plan.zero_stage, plan.tp) == (recompute, 1, 8)
            assert not broken_rules(each.scenario, rules_of_scenario(scenario))
        if recompute == "full":
            assert result.best[0].scenario.plan.recompute_method in ("uniform", "block")


def test_what_the_framework_cannot_run_has_no_rank_and_no_place_among_the_best(scenarios):
    scenario = load_scenario(scenarios / "gpt-1t-3072-a100.yaml")
    result = search(scenario, top=1)
    assert result.space.runs_on == "Megatron-LM of 2021-01"
    assert not broken_rules(result.best[0].scenario, rules_of_scenario(scenario))
    sharded = scenario.replace(plan=scenario.plan.replace(zero_stage=1))
    assert "Megatron-LM of 2021-01 cannot run plan.zero_stage" in rank_plan(result, sharded).ruled_out
    assert "cannot run plan.zero_stage" in why_not(result, {"zero_stage": 1}).ruled_out
    under = search_schedules(result, "zb_h1")
    assert under.schedules[0].best is not None
    assert under.best[0].scenario.plan.schedule in ("1f1b", "interleaved")
    assert any("does not have zb_h1" in each for each in under.assumptions)
    assert (
        search(scenario, top=1, any_framework=True).best[0].answer.step_time_s
        < 0.75 * result.best[0].answer.step_time_s
    )
