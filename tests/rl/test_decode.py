"""Seconds of decoding: a measured rate, the roofline's ends, and laws of batching."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.rl.inference import Inference, RolloutPool
from sim.specs import build_scenario


def engine(model="llama3-8b", tp=1, cluster="superpod-h100", **how):
    training = {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"}
    scenario = build_scenario({"model": model, "cluster": cluster, "plan": {}, "training": training}, [])
    return RolloutPool(scenario, Inference(**{"step_overhead_s": 0.0, **how}), tp, tp)


def test_one_sequence_on_an_a100_of_40_gb():
    """75 tokens/s of Llama 3.1 8B in bf16, vLLM 0.23, prompts of 1,024 and 128 tokens each.

    johnmusgrave.com, "vLLM throughput-latency sweep on NVIDIA A100": read as the page's stored beginning, one machine.
    """
    node = {"preset": "dgx-a100-40gb"}
    found = engine(cluster={"name": "one", "node": node, "num_nodes": 1})
    assert 1 / found.decode_s(1, 1088) == pytest.approx(75, rel=0.08)


def test_a_small_batch_takes_its_bytes_and_a_large_one_its_flops():
    found = engine()
    moved = found.weight_bytes / found.bytes_per_s
    assert 0 < found.decode_s(1, 0) - moved < 0.25 * moved
    many = 65_536
    assert found.decode_s(many, 0) == pytest.approx(2 * 7.5e9 * many / (0.70 * 989e12), rel=0.05)


@settings(deadline=None)
@given(
    st.sampled_from(["llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "nemotron-h-8b", "gpt-oss-20b"]),
    st.integers(1, 2000), st.integers(1, 2000), st.floats(0, 30_000), st.floats(0, 30_000),
)  # fmt: skip
def test_batching_pays_and_context_costs(name, first, second, shorter, longer):
    found = engine(name, tp=8)
    few, many = sorted((first, second))
    shorter, longer = sorted((shorter, longer))
    assert found.decode_s(few, shorter) <= found.decode_s(many, shorter) * (1 + 1e-9)
    assert found.decode_s(many, shorter) / many <= found.decode_s(few, shorter) / few * (1 + 1e-9)
    assert found.decode_s(few, shorter) <= found.decode_s(few, longer) * (1 + 1e-9)
