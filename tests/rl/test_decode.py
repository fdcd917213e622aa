"""Lengths of responses, and what decoding reads, computes, keeps and takes: by hand, and against measured rates."""

import numpy as np
import pytest
from counts import layers_forward_flop
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import called, refusals

from sim.errors import SpecError
from sim.rl.inference import Inference, RolloutPool, cache_bytes, decode_flop, inference_params, weights_read
from sim.rl.samples import SPREAD, Samples, lognormal_lengths
from sim.specs import ModelSpec, build_scenario
from sim.specs.presets import load_preset, preset_names


def model(name):
    return ModelSpec.read(load_preset("models", name), name)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [
        ("llama3-8b", 131.072),  # 32 layers x 2 x 8 heads x 128 x 2 bytes
        ("llama3-70b", 327.68),
        ("qwen3-30b-a3b", 98.304),  # 48 x 2 x 4 x 128 x 2
        ("deepseek-v3", 70.272),  # 61 x 576 x 2: DeepSeek-V3's report counts 70 kB a token
    ],
)
def test_the_cache_of_a_token(name, kilobytes):
    assert cache_bytes(model(name), 1, 2.0, 1) == pytest.approx(kilobytes * 1000)
    assert cache_bytes(model(name), 1000, 2.0, 1) == pytest.approx(kilobytes * 1e6)


def test_heads_are_cut_and_then_copied_and_latent_vectors_whole():
    eight = model("llama3-8b")
    assert cache_bytes(eight, 100, 2.0, 8) == pytest.approx(cache_bytes(eight, 100, 2.0, 1) / 8)
    assert cache_bytes(eight, 100, 2.0, 16) == pytest.approx(cache_bytes(eight, 100, 2.0, 8))
    deep = model("deepseek-v3")
    assert cache_bytes(deep, 100, 2.0, 32) == cache_bytes(deep, 100, 2.0, 1)


def test_windows_stop_growing_and_states_never_grow():
    sliding = model("gpt-oss-20b")  # every other layer sees 128 tokens
    long, short = cache_bytes(sliding, 10_000, 2.0, 1), cache_bytes(sliding, 128, 2.0, 1)
    row = 2 * sliding.num_kv_heads * sliding.head_dim * 2.0
    assert long - short == pytest.approx(12 * row * (10_000 - 128))
    chunked = model("llama4-scout")  # of a piece of 8,192 tokens half is seen on average, in three of four layers
    long, short = cache_bytes(chunked, 20_000, 2.0, 1), cache_bytes(chunked, 8192, 2.0, 1)
    row = 2 * chunked.num_kv_heads * chunked.head_dim * 2.0
    assert long - short == pytest.approx(row * (12 * (20_000 - 8192) - 36 * 4096))
    hybrid = model("nemotron-h-8b")
    attending = sum(kind.attends for kind in hybrid.kind_of_layer)
    grown = cache_bytes(hybrid, 2000, 2.0, 1) - cache_bytes(hybrid, 1000, 2.0, 1)
    assert grown == pytest.approx(attending * 1000 * 2 * hybrid.num_kv_heads * hybrid.head_dim * 2.0)
    # Of 24 Mamba-2 layers 128 heads of 64 by 128 numbers in fp32, and four tokens of 8,192 + 2 · 8 · 128 columns.
    assert cache_bytes(hybrid, 0, 2.0, 1) == 24 * (4 * 128 * 64 * 128 + 2 * 4 * 10_240)


@given(st.sampled_from(preset_names("models")), st.integers(1, 4000), st.integers(1, 4000))
def test_a_larger_batch_reads_no_less_and_each_sequence_no_more(name, first, second):
    shape, few, many = model(name), *sorted((first, second))
    assert weights_read(shape, few, 1) <= weights_read(shape, many, 1) * (1 + 1e-12)
    assert weights_read(shape, many, 1) / many <= weights_read(shape, few, 1) / few * (1 + 1e-12)
    assert weights_read(shape, many, 1) <= inference_params(shape)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "gpt3-175b", "nemotron-h-8b"])
def test_decoding_costs_what_training_counts_for_a_token(name):
    """Matrix FLOPs of the forward but for attention, which grows with the context; norms and biases are parameters."""
    shape = model(name)
    head = 2.0 * shape.hidden_size * shape.vocab_size
    assert decode_flop(shape, 0) == pytest.approx(layers_forward_flop(shape, 1, 1) + head, rel=0.01)


def test_latent_attention_reads_vectors_instead_of_keys():
    shape = model("deepseek-v3")
    per_token = decode_flop(shape, 1001) - decode_flop(shape, 1000)
    assert per_token == pytest.approx(61 * 2 * 128 * (2 * 512 + 64))


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


@given(st.floats(50, 5000), st.floats(1.3, 10), st.floats(0.1, 2.0))
def test_the_mean_is_that_of_what_is_left_after_the_cut(mean, factor, spread):
    lengths = lognormal_lengths(mean, factor * mean, spread)
    assert lengths.mean == pytest.approx(mean, rel=1e-6)
    assert lengths.mean_square >= lengths.mean**2 * (1 - 1e-4)
    assert (np.diff(lengths.survival) <= 0).all()
    assert 0.5 * mean * (1 - 1e-3) <= lengths.mean_age <= 0.5 * factor * mean


def test_moments_are_those_of_drawn_lengths():
    """Drawn by inversion; who outlives the last cell is cut off at the longest."""
    lengths = lognormal_lengths(2000, 8000, 1.2)
    chances = np.random.default_rng(1).random(200_000)
    found = np.interp(chances, lengths.survival[::-1], lengths.middles[::-1])
    found = np.where(chances < lengths.survival[-1], lengths.longest, found)
    assert found.mean() == pytest.approx(lengths.mean, rel=0.01)
    assert (found**2).mean() == pytest.approx(lengths.mean_square, rel=0.01)
    alike = Samples(4, 2, 300.0, lognormal_lengths(700, spread=0))
    assert alike.packed_length == alike.mean_tokens == alike.longest_tokens == 1000


@pytest.mark.parametrize(("mean", "longest", "cut_off", "spread"), [(325, 1024, 0.004, 0.5), (1676, 4096, 0.12, 1.3)])
def test_the_default_spread_lies_between_those_of_two_logs(mean, longest, cut_off, spread):
    """volcengine/verl issue 1208, step 2; Tjh-UKN/vime:summary.json, last ten rounds, the limit inferred."""
    assert lognormal_lengths(mean, longest, spread).survival[-1] == pytest.approx(cut_off, rel=0.05)
    assert 0.5 < SPREAD < 1.3


test_what_cannot_be_is_refused = refusals(SpecError, called, [
    (lambda: lognormal_lengths(5000, 4000), "Raise the longest to 10,000"),
    (lambda: lognormal_lengths(0), "mean_response = 0"),
    (lambda: lognormal_lengths(10, 20, -1), "spread = -1"),
    (lambda: Samples(0, 16, 1.0, lognormal_lengths(10)), "prompts = 0"),
])  # fmt: skip
