"""A search's space: plans that the framework can run, with the fields that are set."""

import random

import numpy as np
import pytest
from random_scenarios import scenario_of
from rows import forms, rows
from typer.testing import CliRunner

from sim import build_scenario, estimate, load_scenario, search
from sim.cli import app
from sim.errors import FlopcastError, InfeasiblePlan, SpecError
from sim.foreign.exporters import FRAMEWORKS, export_scenario
from sim.search.explain import rank_plan, why_not
from sim.search.schedules.by_schedule import search_schedules
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


SMALL = {
    "model": {"num_layers": 12, "hidden_size": 1024, "num_heads": 16, "vocab_size": 51200, "num_experts": 0},
    "cluster": "superpod-a100", "training": {"global_batch_size": 32, "sequence_length": 2048, "precision": "bf16"},
    "plan": {"tp": 2, "pp": 2, "dp": 4}, "stack": "megatron-core",
}  # fmt: skip
VALUES = {
    "tp": (1, 2, 4, 8), "pp": (1, 2, 3, 4), "dp": (1, 2, 4, 8), "microbatch_size": (1, 2, 4), "num_chunks": (1, 2, 3),
    "schedule": ("1f1b", "interleaved", "gpipe"), "sequence_parallel": (False, True), "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full"), "uneven_layers": (False,), "num_gpus": (16,),
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return build_scenario(SMALL)


@pytest.mark.thorough
def test_set_fields_stay_set(small):
    """Against the whole table: of the plans with the fields that are set the first is found, or none is there."""
    rng, found = random.Random(5), 0
    table = search(small, any_framework=True, room=(), top=1).to_frame()
    for _ in range(40):
        fixed = {name: rng.choice(VALUES[name]) for name in rng.sample(sorted(VALUES), rng.randint(1, 4))}
        fixed = {
            name: (value, rng.choice(VALUES[name])) if rng.random() < 0.3 else value for name, value in fixed.items()
        }
        rows_left = table[table.fits]
        for name, value in fixed.items():
            if name in rows_left:
                rows_left = rows_left[np.isin(rows_left[name], value)]
            elif name == "uneven_layers":
                rows_left = rows_left[12 % (rows_left.pp * rows_left.num_chunks) == 0]
        if rows_left.empty:
            with pytest.raises(InfeasiblePlan, match=rf"plan\.({'|'.join(fixed)})|none of"):
                search(small, any_framework=True, room=(), top=1, fixed=fixed)
            continue
        result = search(small, any_framework=True, room=(), top=1, confirm=200, fixed=fixed)
        found += 1
        best = result.best[0]
        for name, value in fixed.items():
            assert getattr(best.scenario.plan, name) in (value if isinstance(value, tuple) else (value,)), fixed
        assert result.plans_feasible == len(rows_left), fixed
        # The closed form's first is below the exact engine's best, which is that of the plans with these fields.
        assert rows_left.step_time_s.min() <= best.answer.step_time_s * (1 + 1e-9)
        assert best.answer.step_time_s <= estimate_of(small, rows_left.iloc[0]) * (1 + 1e-9)
    assert 10 < found < 40


def estimate_of(scenario, row):
    names = ("tp", "cp", "pp", "dp", "ep", "num_chunks", "microbatch_size", "schedule", "recompute")
    fields = {name: row[name].item() if hasattr(row[name], "item") else row[name] for name in names}
    fields |= {"sequence_parallel": bool(row.sequence_parallel), "zero_stage": int(row.zero_stage)}
    dealt = 12 % (fields["pp"] * fields["num_chunks"])
    return estimate(scenario.replace(plan=type(scenario.plan)(**fields, uneven_layers=dealt != 0))).step_time_s


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


REFUSED = [
    (["-s", "plan.tp=7"], "no plan has plan.tp = 7; the scenario, its GPUs and the degrees that are searched leave 1, 2"),
    (["-s", "plan.zero_stage=2"], "Megatron-LM of 2021-01 can run no plan with plan.zero_stage = 2 here: its distributed"),
    (["-s", "plan.tp=32", "-s", "plan.pp=128"], "at once; leave one of them free"),
    (["-s", "plan.tpp=8"], "plan.tpp is no field of a plan"),
    (["-s", "plan.tp=8", "-s", "plan.tp=4"], "plan.tp is set twice; keep one"),
    (["-s", "plan.pipeline_layout=Et|tL"], "flopcast estimate prices a layout of your own"),
    (["-s", "plan.schedule=zb_v"], "--schedules zb_v searches that one besides"),
    (["-s", "plan.zero_stage=4"], "zero_stage"),
    (["-s", "plan.microbatch_size=0"], "microbatch_size"),
    (["--export", "torchtitan"], "torchtitan cannot run training.precision = fp16"),
]  # fmt: skip


@rows(("words", "says"), REFUSED)
def test_what_cannot_be_kept_says_why(words, says, scenarios):
    run = CliRunner().invoke(app, ["search", str(scenarios / "gpt-1t-3072-a100.yaml"), *words])
    assert isinstance(run.exception, FlopcastError)
    assert says in str(run.exception), str(run.exception)
