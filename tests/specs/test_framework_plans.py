"""Which plans a framework can run: its file's rules, against published runs and columns of plans at once."""

from itertools import product

import numpy as np
from random_scenarios import scenario_of
from rows import forms, rows

from sim import build_scenario, estimate, load_scenario, search
from sim.errors import FlopcastError, SpecError
from sim.foreign.exporters import FRAMEWORKS as EXPORTED
from sim.foreign.exporters import export_scenario
from sim.specs import ParallelPlan, StackSpec, preset_names
from sim.specs.framework_plans import broken_rules, plan_rules, rules_of_scenario
from sim.specs.frameworks import date_of
from sim.specs.presets import raw_preset

KNOWN = [name for name in preset_names("frameworks") if isinstance(raw_preset("frameworks", name).get("plans"), list)]


@rows("name", KNOWN, ids=KNOWN)
def test_rules_are_written_out(name):
    for rule in raw_preset("frameworks", name)["plans"]:
        assert rule.keys() <= {"field", "must", "why", "nearest", "source", "since", "until"}
        assert (
            rule["field"] in ParallelPlan.model_fields or rule["field"].removeprefix("stack.") in StackSpec.model_fields
        )
        assert len(rule["source"]) > 9
        for key in {"since", "until"} & rule.keys():
            assert date_of(str(rule[key]), name) > (2018, 0)


@rows("framework", EXPORTED, ids=EXPORTED)
def test_rules_say_the_same_of_columns_and_of_one_plan(framework):
    """Some rules hold and some do not; of plans as columns each is what it is of the plan alone."""
    scenarios = [scenario_of(framework, seed) for seed in range(12)]
    plans = [dict(each.plan) for each in scenarios]
    found = []
    for rule in plan_rules(framework):
        base = scenarios[0]
        columns = {name: np.array([plan[name] for plan in plans]) for name in rule.names if name not in LISTS}
        columns |= {name: plans[0][name] for name in LISTS}
        alone = [bool(rule.holds(base, {**plan, **{name: plans[0][name] for name in LISTS}})) for plan in plans]
        together = np.broadcast_to(rule.holds(base, columns), len(plans)).tolist()
        assert together == alone, rule
        found += alone
    assert 0.01 < np.mean(found) < 0.999


LISTS = ("recompute_modules", "sharding_group", "reshard_after_forward")


def test_shipped_scenarios_keep_the_rules_of_their_frameworks(scenarios):
    for path in scenarios.rglob("*.yaml"):
        try:
            scenario = load_scenario(path)
        except FlopcastError:
            continue  # described runs, not scenarios
        assert not broken_rules(scenario, rules_of_scenario(scenario)), path


RULED = [name for name in preset_names("frameworks") if plan_rules(name)]
MODELS = ("llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b")
CLUSTERS = ("superpod-a100", "superpod-h100", "superpod-b200", "superpod-gb200")


def described(framework, model, cluster, precision, **more):
    """A scenario that says no more of its stack than the framework; None where the GPU has no such precision."""
    training = {"global_batch_size": 64, "sequence_length": 4096, "precision": precision}
    sections = {"model": model, "cluster": cluster, "plan": {"dp": 8}, "training": training, **more}
    try:
        return build_scenario({"stack": {"framework": framework}, **sections})
    except FlopcastError:
        return None


def refused(scenario, framework):
    """Fields for which the framework's exporter refuses a scenario."""
    try:
        export_scenario(scenario, framework)
    except SpecError as error:
        return {line.partition(" cannot run ")[2].split()[0] for line in str(error).splitlines()}
    return set()


@forms("every", 11, 1)
@rows("framework", RULED, ids=RULED)
def test_what_is_filled_in_breaks_no_rule_of_the_framework(framework, every):
    """Defaults of the stack and the plan go together; only what was stated (model, precision, ep) may be refused."""
    choices = [*product(MODELS, CLUSTERS, ("bf16", "fp8", "mxfp8", "nvfp4"), (1, 8))][::every]
    scenarios = [described(framework, *each, plan={"dp": 8, "ep": ep}) for *each, ep in choices]
    found = [each for each in scenarios if each is not None]
    assert len(found) > 0.45 * len(choices)
    for each in found:
        fields = {rule.path for rule in broken_rules(each, rules_of_scenario(each))}
        fields |= refused(each, framework) if framework in EXPORTED else set()
        of_defaults = [name for name in fields if name.startswith(("plan.", "stack.")) and name != "plan.ep"]
        assert not of_defaults, (of_defaults, each.name, each.cluster.gpu.name, each.training.precision, each.plan.ep)


BROKEN = {
    "stack": {"framework": "megatron-lm", "version": "2026-01", "overlap_experts": True, "cuda_graphs": "full_iteration"},
    "plan": {"dp": 8, "ep": 8},
}  # fmt: skip


def test_what_is_set_against_a_rule_of_the_stack_is_said_by_estimate_and_search():
    """Megatron-Core overlaps expert traffic in graphs of whole iterations since 2026-04 (its pull request 3820)."""
    scenario = described(
        "megatron-lm", {"preset": "qwen3-30b-a3b", "num_layers": 4}, "superpod-b200", "mxfp8", **BROKEN
    )
    words = "Megatron-LM of 2026-01 cannot run stack.overlap_experts = true: expert traffic does not overlap compute"
    assert any(line.startswith(words) for line in estimate(scenario).assumptions)
    result = search(scenario, top=1, confirm=1)
    assert any(line.startswith(words) and "were left out" in line for line in result.assumptions)
    assert not broken_rules(result.best[0].scenario, rules_of_scenario(scenario))
    later = scenario.replace(stack=scenario.stack.replace(version="2026-06"))
    assert not any("cannot run" in line for line in (*estimate(later).assumptions, *search(later, top=1).assumptions))
    assert "overlap-moe-expert-parallel-comm" in export_scenario(later, "megatron-lm").text
