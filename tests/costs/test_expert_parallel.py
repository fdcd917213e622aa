"""What expert parallelism costs: memory dealt out once, tokens that travel, gradients summed by who holds the same."""

import pytest
from asked import asked

from sim.estimate import estimate
from sim.foreign.exporters import export_scenario
from sim.specs import load_scenario
from sim.work.routing import share_alone

MODEL = {
    "num_layers": 16, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 4, "vocab_size": 32000,
    "intermediate_size": 5632, "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False,
    "tied_embeddings": False, "num_experts": 64, "experts_per_token": 4, "expert_intermediate_size": 1024,
    "num_dense_layers": 2,
}  # fmt: skip


def scenario(*, model=None, stack=None, cluster="superpod-h100", sequences=256, **plan):
    return asked(
        MODEL | (model or {}), cluster, {"microbatch_size": 1, **plan}, stack={"preset": "megatron-core", **(stack or {})},
        profile="h100", batch=sequences,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "sequences", "alone"),
    [
        ({"dp": 64, "ep": 32}, 64, 1.0),
        ({"dp": 64, "ep": 32}, 256, 1 / 4),
        ({"dp": 64, "ep": 32, "recompute": "full"}, 256, 1.0),
        ({"dp": 32, "ep": 32, "pp": 2}, 256, 1.0),
        ({"dp": 32, "ep": 32, "pp": 2, "schedule": "interleaved", "num_chunks": 2}, 256, 2 / 8),
    ],
)
def test_tokens_need_another_micro_batch_beside_them(plan, sequences, alone):
    """Megatron-Core pairs forwards and backwards of micro-batches, but for a pipeline's first and last ones."""
    launches = dict.fromkeys(("kernel_launch", "backward_launch", "collective_launch"), "2 us")

    def exposed(beside):
        stack = {**launches, "overlap_experts": beside}
        given = scenario(**plan, stack=stack, sequences=sequences)
        return given, estimate(given).breakdown.seconds["expert_parallel_comm"]

    given, beside = exposed(True)
    waits = exposed(False)[1]
    assert share_alone(given) == pytest.approx(alone)
    assert beside == pytest.approx(waits) if alone == 1 else alone * waits < beside < waits
    exported = export_scenario(given, "megatron-lm").text
    assert ("--overlap-moe-expert-parallel-comm" in exported) == (alone < 1)


def test_dualpipe_hides_its_tokens_and_compute_loses_beside_them(scenarios):
    """DeepSeek-V3, arXiv:2412.19437, section 3.2.1: dispatch and combine are hidden, by 20 of 132 multiprocessors.

    All but those of the sixth of the passes that have no other beside them, while the pipeline fills and drains.
    """
    shares = estimate(load_scenario(scenarios / "papers" / "deepseek-v3-2048-h800.yaml")).breakdown.shares()
    assert shares["expert_parallel_comm"] < 0.1 < 20 / 132 < shares["beside_expert_comm"]
