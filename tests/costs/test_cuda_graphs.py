"""CUDA graphs: what the host launches, what waits for it, and what memory they take."""

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


CUT = Cut(tp=1, microbatch_size=1, sequence_length=1024, sequence_parallel=False, ep=8)


def test_memory_of_graphs():
    """Places for a layer's input, output and their gradients, and temporaries that nothing else can use. [bytes]"""
    one, plain = scenario_of(QWEN, scoped(*SCOPE), ep=8), scenario_of(QWEN, ep=8)
    more, less = (
        working_bytes(block_operations(each.model, each.stack, CUT), each.model, each.stack, CUT)
        for each in (one, plain)
    )
    assert more - less == graph_bytes((), one.model, CUT) == 2 * 1024 * (2 * 32 * 128 + 2 * 4 * 128 + 4 * 2048)
    assert any("CUDA graphs of attn" in line for line in estimate(one).assumptions)
