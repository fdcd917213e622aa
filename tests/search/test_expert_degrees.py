"""Expert parallelism in searches and answers: an axis like the others, named where a wider degree would help."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from open_space import search, sweep
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.search.explain import rank_plan, why_not
from sim.search.sensitivity import sensitivity
from sim.specs import build_scenario, load_scenario
from sim.specs.writing import scenario_yaml

QWEN = Path(__file__).parents[2] / "scenarios" / "qwen3-235b-a22b-256-h100.yaml"


def mixture(ep=1, **model):
    """16 GPUs whose memory the experts fill."""
    shape = {
        "num_layers": 8, "hidden_size": 4096, "num_heads": 32, "vocab_size": 32000, "gated_mlp": True,
        "intermediate_size": 14336, "num_experts": 32, "experts_per_token": 2, "bias": False, "position": "rotary",
        **model,
    }  # fmt: skip
    return build_scenario(
        {
            "model": shape,
            "cluster": "superpod-h100",
            "plan": {"dp": 16, "ep": ep},
            "training": {"global_batch_size": 64, "sequence_length": 4096, "precision": "bf16"},
            "stack": "megatron-core",
        }
    )


def table(result):
    """Every plan with its price, in the order of the plans."""
    frame = result.to_frame()
    return frame.sort_values([*frame.columns], ignore_index=True)


@pytest.fixture(scope="module")
def found():
    return search(mixture(), top=3, confirm=8)


def test_a_search_is_one_search_of_every_degree(found):
    """The same plans at the same prices, whatever the scenario's own degree is; so also the same best."""
    # Room is made for plans that may be among the best, which depends on the others: only the space is the same.
    rows = pd.concat([search(mixture(16), experts=(ep,), room=()).to_frame() for ep in (1, 2, 4, 8, 16)])
    together = table(search(mixture(), room=()))
    assert together["ep"].unique().tolist() == [1, 2, 4, 8, 16]  # 32 do not divide 16 GPUs
    pd.testing.assert_frame_equal(together, rows.sort_values([*rows.columns], ignore_index=True), rtol=1e-12)
    assert found.plans_priced >= found.space.num_plans == len(rows)


def test_every_plan_has_its_place(found):
    for place in np.random.default_rng(1).integers(found.plans_priced, size=40).tolist():
        assert found.place_of(found.scenario_at(place)) == place


def test_a_sweep_over_ep_has_the_best_plan_of_each_degree():
    two, sixteen, three = sweep(mixture(), "plan.ep=2,16,3", confirm=4).points
    for point, ep in ((two, 2), (sixteen, 16)):
        alone = search(mixture(), experts=(ep,), top=1, confirm=4).best[0]
        assert point.best.scenario.plan == alone.scenario.plan
        assert point.best.scenario.plan.ep == ep
        assert point.best.answer.step_time_s == alone.answer.step_time_s
    assert three.best is None
    assert "degree 3: plan.ep must divide model.num_experts = 32; degrees that do: 1, 2, 4" in three.infeasible
    with pytest.raises(SpecError, match=r"--sweep plan\.ep: model .* has no experts to deal"):
        sweep(load_scenario(QWEN.with_name("gpt3-175b-1024-a100.yaml")), "plan.ep=1,2")


def test_a_batch_of_its_own_leaves_the_scenarios_degrees(tmp_path):
    """The scenario's ep 32 does not divide what another batch leaves of its plan, and need not."""
    words = [
        "search",
        str(QWEN),
        *("-s", "training.global_batch_size=1024", "--gpus", "64", "-s", "plan.ep=[8,64]"),
        *("--room", "none", "--top", "1", "--json"),
    ]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    assert data["best"][0]["plan"]["ep"] in (8, 64)
    assert any("tried with ep 8 or 64;" in each for each in data["assumptions"])


def test_what_fits_nowhere_without_expert_parallelism_says_so():
    scenario = mixture(num_layers=4, num_experts=64)
    with pytest.raises(
        InfeasiblePlan, match=r"ep 1\). To go on, deal the 64 experts over more GPUs \(-s plan.ep=\[2,4,8,16\]; without"
    ):
        search(scenario, experts=(1,))
    assert search(scenario, top=1, confirm=1).best[0].scenario.plan.ep > 1
    with pytest.raises(InfeasiblePlan, match=r"What would help: plan\.ep=16 \("):
        estimate(scenario).require_fit()


def test_other_degrees_are_not_taken_for_the_searched():
    result = search(mixture(16), experts=(16,), top=1, confirm=2)
    best = result.best[0].scenario
    assert result.rank_of(best) == 1
    other = best.replace(plan=best.plan.replace(ep=8, zero_stage=3))
    assert result.place_of(other) is None
    assert "over 8 GPUs, the search over 16 (-s plan.ep=[…])" in str(rank_plan(result, other, steps=False).ruled_out)
    tried = why_not(result, {"ep": 8})
    assert tried.rank is None
    assert tried.answer.scenario.plan.ep == 8


def test_why_not_another_degree(found):
    """The best plan of that degree, ranked; or the rule against it."""
    best = found.best[0].scenario.plan.ep
    other = why_not(found, {"ep": 8 if best != 8 else 16})
    assert other.rank > 1
    assert [step.changes["ep"] for step in other.steps if "expert parallelism" in step.techniques]
    assert "no plan has ep 3 (those searched have ep 1, 2, 4, 8, 16)" in why_not(found, {"ep": 3}).ruled_out
    assert "ep 32 must divide tp · cp · dp = 16" in why_not(found, {"ep": 32}).ruled_out
    with pytest.raises(SpecError, match=r"plan\.ep"):
        why_not(found, {"ep": 0})


def test_what_each_degree_costs():
    found = search(mixture(), top=1, confirm=8, fixed={"microbatch_size": 1})
    costs = {each.value: each for each in sensitivity(found) if each.axis == "ep"}
    assert sorted(costs) == [1, 2, 4, 8, 16]
    assert [each.value for each in costs.values() if each.is_best] == [found.best[0].scenario.plan.ep]
    assert all(each.best.scenario.plan.ep == value for value, each in costs.items())


def test_answers_name_experts():
    run = CliRunner().invoke(app, ["estimate", str(QWEN)], env={"COLUMNS": "200"})
    assert run.exit_code == 0
    assert "235 billion parameters (22.2 billion active)" in run.output
    assert "dp 16 · ep 32 · " in run.output
    dense = CliRunner().invoke(app, ["estimate", str(QWEN.with_name("llama3-405b-16384-h100.yaml"))]).output
    assert " ep " not in dense
    assert "active" not in dense


def test_the_best_plans_of_experts_stand_side_by_side(tmp_path):
    """On 80 columns, on fewer as records, and neither leaves the MFU out."""
    file = tmp_path / "mixture.yaml"
    file.write_text(scenario_yaml(mixture()), encoding="utf-8")
    words = ["search", str(file), "--room", "none", "--top", "30", "--verbose"]
    shown = {width: CliRunner().invoke(app, words, env={"COLUMNS": str(width)}).output for width in (80, 60)}
    heads = next(line for line in shown[80].splitlines() if line.split()[:4] == ["tp", "pp", "dp", "ep"])
    assert "ZeRO" in heads
    assert "memory" in heads
    assert "MFU" in heads
    assert shown[60].count("MFU") == 30
    assert "expert parallelism was tried with ep 1, 2, 4, 8 or 16" in " ".join(shown[80].split())


def test_qwen3_is_near_what_was_measured():
    """17.6 s a step with the all-to-alls beside computation, 19.7 s without (Megatron-MoE-ModelZoo, best_practice)."""
    scenario = load_scenario(QWEN)
    low, high = estimate(scenario).step_time_interval_s
    assert low < 17.6 < high
    waiting = {"overlap_experts": False, "kernel_launch_s": 30e-6, "backward_launch_s": 30e-6}
    without = estimate(scenario.replace(stack=scenario.stack.replace(**waiting)))
    assert without.step_time_s == pytest.approx(19.7, rel=0.1)
    # MFU counts the experts that a token goes through: 6 FLOPs a parameter and token, and the attention's.
    answer = estimate(scenario)
    tokens = scenario.training.tokens_per_step
    flop = answer.model_flop_per_s_per_gpu * answer.num_gpus * answer.step_time_s
    attention = 3 * 94 * 2 * 2048 * 4096**2 * 64 * 256
    table = 151936 * 4096  # a look-up, not a multiply
    assert flop == pytest.approx(6 * (answer.active_params - table) * tokens + attention, rel=1e-3)
