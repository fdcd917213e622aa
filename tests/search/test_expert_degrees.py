"""Expert parallelism in searches and answers: kept by a search, compared by a sweep, named where it would help."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.search import search, standing_of, sweep, why_not
from sim.specs import build_scenario, load_scenario

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


def test_a_sweep_over_ep_is_a_search_at_each():
    scenario = mixture()
    swept = sweep(scenario, "plan.ep=2,16,3", confirm=4)
    two, sixteen, three = swept.points
    for point, ep in ((two, 2), (sixteen, 16)):
        alone = search(mixture(ep), top=1, confirm=4).best[0]
        assert point.best.scenario.plan == alone.scenario.plan
        assert point.best.scenario.plan.ep == ep
        assert point.best.answer.step_time_s == alone.answer.step_time_s
    assert three.best is None
    assert "must divide model.num_experts = 32" in three.infeasible


def test_what_fits_nowhere_without_expert_parallelism_says_so():
    scenario = mixture(num_layers=4, num_experts=64)
    with pytest.raises(
        InfeasiblePlan, match=r"ep 1\); deal the 64 experts .*--set plan\.ep=2, or --sweep plan\.ep=2,4"
    ):
        search(scenario)
    assert search(scenario.replace(plan=scenario.plan.replace(ep=16)), top=1, confirm=1).best[0].answer.fits
    with pytest.raises(InfeasiblePlan, match=r"What would help: plan\.ep=16 \("):
        estimate(scenario).require_fit()


def test_other_degrees_are_not_taken_for_the_searched():
    result = search(mixture(16), top=1, confirm=2)
    best = result.best[0].scenario
    assert result.rank_of(best) == 1
    other = best.replace(plan=best.plan.replace(ep=8, zero_stage=3))
    assert result.place_of(other) is None
    assert "over 8 GPUs, the search over 16" in str(standing_of(result, other, steps=False).ruled_out)
    with pytest.raises(SpecError, match=r"--set plan\.ep=8 searches with it"):
        why_not(result, {"ep": 8})


def test_answers_name_experts():
    run = CliRunner().invoke(app, ["estimate", str(QWEN)], env={"COLUMNS": "200"})
    assert run.exit_code == 0
    assert "235 billion parameters (22.2 billion active)" in run.output
    assert "dp 16 · ep 32 · " in run.output
    run = CliRunner().invoke(app, ["search", str(QWEN), "--top", "2"], env={"COLUMNS": "200"})
    assert "ep 32 · 256 GPUs" in run.output
    dense = CliRunner().invoke(app, ["estimate", str(QWEN.with_name("llama3-405b-16384-h100.yaml"))]).output
    assert " ep " not in dense
    assert "active" not in dense


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
