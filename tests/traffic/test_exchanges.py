"""What actions move within layers: what the stage costs expose of it, and what they say of bytes."""

import numpy as np
import pytest

from sim import load_scenario
from sim.engines.program import priced_order
from sim.traffic.exchanges import FORWARD, INPUT_GRAD, WEIGHT_GRAD, stage_exchanges, step_traffic
from sim.work.operations import Cause

PARTS = {"tp": Cause.TENSOR_PARALLEL, "cp": Cause.CONTEXT_PARALLEL, "dp": Cause.DATA_PARALLEL}
QUESTIONS = {
    "all-reduces": ("gpt3-175b-1024-a100.yaml", ["plan.recompute=none"]),
    "beside the backward": ("gpt3-175b-1024-a100.yaml", ["plan.recompute=none", "stack.overlap_tp_backward=true"]),
    "sequence parallel": ("gpt3-175b-1024-a100.yaml", ["plan.recompute=none", "plan.sequence_parallel=true"]),
    "context parallel": ("llama3-405b-16384-h100.yaml", ["plan.recompute=none", "plan.cp=4", "plan.dp=32"]),
    "ZeRO 3": ("gpt3-175b-1024-a100.yaml", ["plan.recompute=none", "plan.zero_stage=3"]),
    "ZeRO 3 beside": (
        "gpt3-175b-1024-a100.yaml",
        ["plan.recompute=none", "plan.zero_stage=3", "stack.overlap_param_gather=true", "stack.overlap_grad_reduce=true"],
    ),
    "ZeRO 2 beside": (
        "gpt3-175b-1024-a100.yaml",
        ["plan.recompute=none", "plan.zero_stage=2", "stack.overlap_grad_reduce=true"],
    ),
}  # fmt: skip


def ask(scenarios, question):
    scenario = load_scenario(scenarios / question[0], [*question[1], "cluster.gpu_spread=0"])
    order, costs = priced_order(scenario)
    return scenario, order, costs, stage_exchanges(scenario, costs.stages)


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_exposed_is_what_the_stages_cost(scenarios, name):
    _, _, costs, exchanges = ask(scenarios, QUESTIONS[name])
    assert exchanges
    exposed = {part: np.zeros((3, len(costs.stages))) for part in PARTS.values()}
    for each in exchanges:
        hidden = each.hidden_share * np.minimum(each.seconds, each.budget) if each.beside else 0.0
        exposed[PARTS[each.group]] += each.seconds - hidden
    for part, seconds in exposed.items():
        forward, backward = costs.passes[:2, part]
        np.testing.assert_allclose(seconds[FORWARD], forward, rtol=1e-6, atol=1e-12)
        both = seconds[INPUT_GRAD] + seconds[WEIGHT_GRAD]
        np.testing.assert_allclose(both, backward, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["all-reduces", "sequence parallel", "context parallel", "ZeRO 3"])
def test_bytes_are_those_of_the_step(scenarios, name):
    scenario, _, _, exchanges = ask(scenarios, QUESTIONS[name])
    traffic = step_traffic(scenario, 0.0)
    count = scenario.num_microbatches / scenario.plan.pp
    moved = {group: count * sum(e.nbytes.sum() for e in exchanges if e.group == group) for group in PARTS}
    assert moved["tp"] + moved["cp"] == pytest.approx(traffic.tensor, rel=1e-9)
    if scenario.plan.zero_stage == 3:
        assert moved["dp"] == pytest.approx(traffic.data, rel=0.02)  # but for the tied head's
