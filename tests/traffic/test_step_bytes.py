"""Bytes of a step against the formulas of the papers; and what actions move within layers: what stages expose of it."""

import numpy as np
import pytest

from sim import load_scenario
from sim.engines.program import priced_order
from sim.traffic.exchanges import FORWARD, INPUT_GRAD, WEIGHT_GRAD, stage_exchanges, step_traffic
from sim.work.operations import Cause
from sim.work.sums import total_params

BASE = "gpt3-175b-1024-a100.yaml"


def traffic_of(scenario):
    order, _ = priced_order(scenario)
    sends = float(order.weight[order.abroad(order.needs) >= 0].sum())
    return step_traffic(scenario, sends, copies=order.copies), sends


@pytest.fixture
def question(scenarios):
    return lambda *settings: load_scenario(scenarios / BASE, settings)


def test_tensor_bytes_of_megatron(question):
    scenario = question("stack.p2p_scatter_gather=false")
    model, plan, s = scenario.model, scenario.plan, scenario.training.sequence_length
    # Narayanan et al. 2021, section 3.2: 8 b s h (t - 1)/t numbers a layer and micro-batch; 12 with full recomputation.
    layer = 12 * plan.microbatch_size * s * model.hidden_size * (plan.tp - 1) / plan.tp * 2
    layers = layer * model.num_layers / plan.pp * scenario.num_microbatches
    assert traffic_of(scenario)[0].tensor == pytest.approx(layers, rel=0.02)  # embedding and head come on top
    assert traffic_of(scenario)[0].tensor > layers


def test_pipeline_bytes_of_megatron(question):
    scenario = question("stack.p2p_scatter_gather=false")
    traffic, sends = traffic_of(scenario)
    plan = scenario.plan
    assert sends == 2 * (plan.pp - 1) * scenario.num_microbatches
    boundary = 2 * plan.microbatch_size * scenario.training.sequence_length * scenario.model.hidden_size
    assert traffic.pipeline == pytest.approx(sends * boundary / plan.pp)
    # Scatter/gather sends 1/t of it, and gathers over NVLink.
    cut, _ = traffic_of(question())
    assert cut.pipeline == pytest.approx(traffic.pipeline / plan.tp)
    assert cut.tensor - traffic.tensor == pytest.approx(sends * boundary * (plan.tp - 1) / plan.tp / plan.pp)
    parts = [question("plan.sequence_parallel=true", f"stack.p2p_scatter_gather={on}") for on in ("true", "false")]
    assert traffic_of(parts[0])[0] == traffic_of(parts[1])[0]  # which are cut anyway


def test_interleaving_sends_as_often_as_it_has_chunks(question):
    scenario = question("plan.schedule=interleaved", "plan.num_chunks=3")
    plan = scenario.plan
    assert traffic_of(scenario)[1] == 2 * (3 * plan.pp - 1) * scenario.num_microbatches


@pytest.mark.parametrize(("stage", "per_param"), [(0, 2 * 2), (1, 2 + 2), (2, 2 + 2), (3, 2 + 2 * 192)])
def test_data_parallel_bytes(question, stage, per_param):
    scenario = question(f"plan.zero_stage={stage}", "stack.gradient_precision=fp16")
    traffic, _ = traffic_of(scenario)
    plan = scenario.plan
    mine = total_params(scenario.model) / (plan.tp * plan.pp)
    # ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054, section 7; a pipeline sums gradients once and gathers sharded
    # weights for each of 192 micro-batches.
    assert traffic.data == pytest.approx(per_param * mine * (plan.dp - 1) / plan.dp, rel=0.03)


def test_one_replica_and_one_rank_send_nothing(question):
    alone = question("plan.pp=1", "plan.dp=1", "plan.tp=1", "training.global_batch_size=1")
    traffic, _ = traffic_of(alone)
    assert (traffic.pipeline, traffic.tensor, traffic.data) == (0.0, 0.0, 0.0)


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
