"""Laws of breadth-first orders and modular pipelines over whole scenarios: uneven rounds, experts, context parallelism."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.breakdown import break_down
from sim.engines import run
from sim.engines.program import priced_order, program_of
from sim.errors import SpecError
from sim.estimate import estimate
from sim.specs import build_scenario
from sim.work.layers import deal_stages

switch = st.booleans()


@st.composite
def layered(draw, *, zero_stages=(0, 1, 2, 3), only_modular=False):
    """A small model under either order on up to 128 A100: of any number of layers, with experts or without.

    Only modular, it has no layer unlike the others and as many micro-batches as fill its pipeline.
    """
    pp, layers = draw(st.integers(1, 5)), draw(st.integers(5, 13))
    tp, cp, dp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 2, 4]))
    modular = only_modular or draw(switch)
    model = {
        "num_layers": layers, "hidden_size": draw(st.sampled_from([512, 4096])), "num_heads": 16, "bias": False,
        "vocab_size": draw(st.sampled_from([1024, 32000])), "tied_embeddings": draw(switch), "gated_mlp": True,
        "num_mtp_layers": draw(st.sampled_from([0, 0, 1])),
    }  # fmt: skip
    plan = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "schedule": "modular" if modular else "breadth_first",
        "num_chunks": -(-layers // pp) if modular else draw(st.integers(2, max(2, layers // pp))),
        "uneven_layers": not modular, "sequence_parallel": tp > 1, "zero_stage": draw(st.sampled_from(zero_stages)),
        "recompute": draw(st.sampled_from(["none", "full"])),
    }  # fmt: skip
    if draw(switch):
        model |= {
            "num_experts": 8, "experts_per_token": 2, "expert_intermediate_size": 512,
            "num_dense_layers": 0 if only_modular else draw(st.sampled_from([0, 1])),
        }  # fmt: skip
        plan["etp"] = draw(st.sampled_from([1, tp]))
        plan["ep"] = draw(st.sampled_from([ep for ep in (1, 2, 4, 8) if tp * cp * dp % (ep * plan["etp"]) == 0]))
    stack = {"preset": draw(st.sampled_from(["megatron-core", "megatron-2021", "torchtitan"]))}
    stack |= {flag: draw(switch) for flag in ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather")}
    num_microbatches = draw(st.integers(pp if only_modular else 1, 7))
    training = {"global_batch_size": dp * num_microbatches, "sequence_length": 1024, "precision": "fp16"}
    cluster = draw(st.sampled_from(["selene", "ethernet-25"]))
    try:
        return build_scenario(
            {"model": model, "cluster": cluster, "plan": plan, "training": training, "stack": stack, "profile": "a100"}
        )
    except SpecError:
        assume(False)


@given(scenario=layered())
def test_engines_agree(scenario):
    dag, des = estimate(scenario), estimate(scenario, "des")
    assert des.step_time_s == pytest.approx(dag.step_time_s, rel=1e-9)
    assert dag.breakdown.total == pytest.approx(dag.step_time_s, rel=1e-9)
    assert break_down(des.timeline).seconds == pytest.approx(dag.breakdown.seconds, rel=1e-6, abs=1e-9)
    plan = scenario.plan
    assert (dag.breakdown.seconds["expert_parallel_comm"] > 0) == (plan.ep > 1)
    assert (dag.breakdown.seconds["context_parallel_comm"] > 0) == (plan.cp > 1)


@given(scenario=layered())
def test_every_layer_is_somewhere_and_its_head_behind_the_last(scenario):
    stages, plan = deal_stages(scenario.model, scenario.plan), scenario.plan
    assert sum(stage.num_layers for stage in stages) == scenario.model.num_layers
    assert [stage.index for stage in stages if stage.has_head] == [len(stages) - 1]
    order, costs = priced_order(scenario)
    assert order.num_stages == len(stages)
    if plan.schedule == "modular":
        assert [stage.num_layers for stage in stages] == [1] * scenario.model.num_layers
        assert order.ends == (0, (scenario.model.num_layers - 1) % plan.pp)
    tied = scenario.model.tied_embeddings or scenario.model.num_mtp_layers
    assert (costs.tied_embedding_s > 0) == bool(tied and order.ends[0] != order.ends[1])


@given(scenario=layered(zero_stages=(0,), only_modular=True))
def test_a_modular_step_on_a_network_that_costs_nothing(scenario):
    """Layers alike, nothing sent, nothing but layers: m ⌈n/p⌉ + (n − 1) mod p of them, there and back."""
    plan = scenario.plan
    order, costs = priced_order(scenario)
    layer = min(2, order.num_stages - 2)
    nothing, free = np.zeros(order.num_stages), np.zeros(order.num_ranks)
    once = dict.fromkeys(("reduce_s", "reduce_tail_s", "gather_s", "optimizer_s", "offload_s"), free)
    ideal = replace(
        costs, passes=costs.passes[:, :, np.full(order.num_stages, layer)], **once, send_forward_s=nothing,
        send_backward_s=nothing, tied_embedding_s=0.0, step_setup_s=0.0,
    )  # fmt: skip
    layers = scenario.model.num_layers
    rounds = scenario.num_microbatches * -(-layers // plan.pp) + (layers - 1) % plan.pp
    step = run(program_of(scenario, order, ideal)).step_time_s
    assert step == pytest.approx(rounds * (ideal.forward_s[0] + ideal.backward_s[0]), rel=1e-9)
