"""CUDA graphs: what the host launches, what waits for it, and what memory they take."""

import pytest

from sim import estimate
from sim.specs import build_scenario
from sim.work.layers import block_operations
from sim.work.memory import graph_bytes, working_bytes
from sim.work.pieces import Cut

QWEN = "qwen3-30b-a3b"
SCOPE = ["attn", "moe_router", "moe_preprocess"]


def scenario_of(model, stack=None, sequence=1024, **plan):
    return build_scenario(
        {"model": model, "cluster": "superpod-h100", "profile": "h100", "plan": {"dp": 8, **plan},
         "stack": {"preset": "megatron-core", **(stack or {})},
         "training": {"global_batch_size": 8, "sequence_length": sequence, "precision": "bf16"}}
    )  # fmt: skip


def scoped(*names):
    return {"cuda_graphs": "scoped", "cuda_graph_scope": list(names)}


def step(scenario):
    return estimate(scenario).step_time_s


CUT = Cut(tp=1, microbatch_size=1, sequence_length=1024, sequence_parallel=False, ep=8)


# Megatron-Bridge's card on CUDA graphs (NVIDIA-NeMo/Megatron-Bridge:skills/nemo-mbridge-perf-cuda-graphs): scoped graphs of
# attention, router and preprocessing on 16 H100. Qwen3's batch, length and micro-batches are not printed; of micro-batches
# of one sequence we find near the printed gain, of larger ones, whose kernels are longer, less.
@pytest.mark.parametrize(
    ("preset", "pp", "batch", "sequence", "measured_gain"),
    [("gpt-oss-20b", 4, 4, 4096, 0.4935 / 0.395), ("qwen3-30b-a3b", 2, 16, 2048, 0.623 / 0.484)],
)
def test_published_pairs_of_graphs(preset, pp, batch, sequence, measured_gain):
    plan = {"tp": 2, "pp": pp, "dp": 8 // pp, "ep": 4, "sequence_parallel": True, "zero_stage": 1}
    eager, graphs = (
        build_scenario(
            {"model": preset, "cluster": "superpod-h100", "profile": "h100", "plan": plan,
             "stack": {"framework": "megatron-bridge", **stack},
             "training": {"global_batch_size": batch, "sequence_length": sequence, "precision": "bf16"}}
        ) for stack in ({}, scoped(*SCOPE))
    )  # fmt: skip
    assert step(eager) / step(graphs) - 1 == pytest.approx(measured_gain - 1, rel=1 / 3)


def test_memory_of_graphs():
    """Places for a layer's input, output and their gradients, and temporaries that nothing else can use. [bytes]"""
    one, plain = scenario_of(QWEN, scoped(*SCOPE), ep=8), scenario_of(QWEN, ep=8)
    more, less = (
        working_bytes(block_operations(each.model, each.stack, CUT), each.model, each.stack, CUT)
        for each in (one, plain)
    )
    assert more - less == graph_bytes((), one.model, CUT) == 2 * 1024 * (2 * 32 * 128 + 2 * 4 * 128 + 4 * 2048)
    assert any("CUDA graphs of attn" in line for line in estimate(one).assumptions)
