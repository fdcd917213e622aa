"""Which plans a framework can run: its file's rules, against published runs and columns of plans at once."""

import numpy as np
import pytest
from random_scenarios import scenario_of
from rows import rows

from flopcast_calibration.readers.training_runs import read_training_runs
from sim import estimate, load_scenario
from sim.errors import FlopcastError
from sim.foreign.exporters import FRAMEWORKS as EXPORTED
from sim.specs import ParallelPlan, preset_names
from sim.specs.framework_plans import broken_rules, plan_rules, rules_of_scenario
from sim.specs.frameworks import date_of
from sim.specs.presets import raw_preset

KNOWN = [name for name in preset_names("frameworks") if isinstance(raw_preset("frameworks", name).get("plans"), list)]
BEYOND = {
    ("megatron-lm", "schedule"): "forks of it with zero-bubble schedules",
    ("deepspeed", "cp"): "ring attention in the training program, beside ZeRO",
    ("pytorch-fsdp", "ep"): "a prototype of Megatron-FSDP, which deals experts out",
    ("pytorch-fsdp", "tp"): "a guide that puts DTensor's tensor parallelism under FSDP2",
}
"""Rules that published runs break, and what they ran on in truth."""


@rows("name", KNOWN, ids=KNOWN)
def test_rules_are_written_out(name):
    for rule in raw_preset("frameworks", name)["plans"]:
        assert rule.keys() <= {"field", "must", "why", "nearest", "source", "since", "until"}
        assert rule["field"] in ParallelPlan.model_fields
        assert len(rule["source"]) > 9
        for key in {"since", "until"} & rule.keys():
            assert date_of(str(rule[key]), name) > (2018, 0)


@rows("framework", EXPORTED, ids=EXPORTED)
def test_rules_say_the_same_of_columns_and_of_one_plan(framework):
    """Some rules hold and some do not; of plans as columns each is what it is of the plan alone."""
    scenarios = [scenario_of(framework, seed) for seed in range(60)]
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


@pytest.mark.slow
def test_published_runs_keep_the_rules_of_their_frameworks(measurements):
    broken, looked_at = {}, 0
    for path in sorted(measurements.glob("training_runs*.csv")):
        for run in read_training_runs(path):
            if run.choices and rules_of_scenario(run.choices[0]):
                looked_at += 1
                for rule in broken_rules(run.choices[0], rules_of_scenario(run.choices[0])):
                    broken.setdefault((run.choices[0].stack.framework, rule.field), []).append(run.id)
    assert looked_at > 1000
    assert broken.keys() <= BEYOND.keys(), {key: ids[:3] for key, ids in broken.items() if key not in BEYOND}


def test_shipped_scenarios_keep_the_rules_of_their_frameworks(scenarios):
    for path in scenarios.rglob("*.yaml"):
        try:
            scenario = load_scenario(path)
        except FlopcastError:
            continue  # described runs, not scenarios
        assert not broken_rules(scenario, rules_of_scenario(scenario)), path


def test_an_estimate_says_what_its_framework_cannot_run(scenarios):
    scenario = load_scenario(scenarios / "gpt3-175b-1024-a100.yaml", ["plan.tp=8", "plan.zero_stage=1"])
    said = [each for each in estimate(scenario).assumptions if "cannot run" in each]
    assert len(said) == 1
    assert "Megatron-LM of 2021-01 cannot run plan.zero_stage = 1" in said[0]
    assert "version 3.0" in said[0]
    other = load_scenario(scenarios / "gpt3-175b-1024-a100.yaml", ["plan.zero_stage=1", "stack=megatron-core"])
    assert not [each for each in estimate(other).assumptions if "cannot run" in each]
