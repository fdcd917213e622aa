"""Uneven routing: what the busiest GPU gets, against counts of tokens thrown at random; capacity; what it costs."""

import numpy as np
import pytest
from asked import asked
from hypothesis import given
from hypothesis import strategies as st

from sim import estimate
from sim.specs import ModelSpec, TrainingSpec
from sim.work.experts import routed
from sim.work.pieces import Cut
from sim.work.routing import busiest_share, dropped_share

MODEL = ModelSpec(
    num_layers=16, hidden_size=1024, num_heads=8, vocab_size=32000, num_experts=64, experts_per_token=4,
    expert_intermediate_size=512,
)  # fmt: skip
JOB = TrainingSpec(global_batch_size=1, sequence_length=1)
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@given(DEGREES, st.floats(0.1, 2.0))
def test_the_busiest_gets_more_than_its_share_and_never_all(ep, skew):
    share = busiest_share(MODEL, JOB.replace(expert_skew=skew), ep)
    assert 1.0 - 1e-12 <= share <= ep * (1 + 1e-12)
    assert share == pytest.approx(1.0) if ep == 1 else share > 1.0


def test_layers_even_out_what_one_gpu_keeps():
    one, many = (busiest_share(MODEL, JOB.replace(expert_skew=0.8), 16, layers) for layers in (1, 32))
    assert 1.0 < many < one


def test_against_tokens_thrown_at_random():
    """Popularity by a Zipf law, experts shuffled over 8 GPUs, 20,000 copies a layer: the mean over 400 layers."""
    rng, popular = np.random.default_rng(7), np.arange(1, 65) ** -0.7
    counts = [
        np.bincount(rng.choice(64, 20_000, p=rng.permutation(popular / popular.sum())) // 8, minlength=8).max() / 2500
        for _ in range(400)
    ]
    assert busiest_share(MODEL, JOB.replace(expert_skew=0.7), 8) == pytest.approx(np.mean(counts), rel=0.03)


def test_a_measured_histogram_lies_as_it_is_given():
    load = (3.0,) * 8 + (1.0,) * 56
    assert busiest_share(MODEL, JOB.replace(expert_load=load), 8) == pytest.approx(24 / 80 * 8)
    assert busiest_share(MODEL, JOB.replace(expert_load=load), 1) == pytest.approx(1.0)
    degrees = np.array([[1, 8], [64, 8]])
    each = [[busiest_share(MODEL, JOB.replace(expert_load=load), int(ep)) for ep in row] for row in degrees]
    assert busiest_share(MODEL, JOB.replace(expert_load=load), degrees) == pytest.approx(np.array(each))


def test_capacity_drops_what_comes_beyond_it():
    load = (2.0,) * 16 + (1.0,) * 32 + (0.0,) * 16  # 64 in all: twice, once and never an even share
    assert dropped_share(MODEL, JOB.replace(expert_load=load)) == 0.0
    assert dropped_share(MODEL, JOB.replace(expert_load=load, expert_capacity_factor=1.5)) == pytest.approx(
        16 * 0.5 / 64
    )
    assert busiest_share(MODEL, JOB.replace(expert_load=load, expert_capacity_factor=1.5), 4) == pytest.approx(1.5)
    padded = JOB.replace(expert_load=load, expert_capacity_factor=1.25, pad_to_capacity=True)
    assert busiest_share(MODEL, padded, 4) == busiest_share(MODEL, padded, 64) == 1.25


def test_even_routing_is_what_nothing_said_means():
    assert JOB.routes_evenly
    assert JOB.replace(expert_capacity_factor=1.25).routes_evenly
    cut = Cut(1, 1, 4096, False, ep=8)
    to = routed(MODEL, cut)
    assert (to.copies, to.each) == (4 * 4096, 4 * 4096 / 8)
    # Tokens that have at least one of their four experts on a GPU of eight: 1 − (7/8)⁴ of all 8 · 4096.
    assert to.received == pytest.approx(8 * 4096 * (1 - (7 / 8) ** 4))


def test_the_busiest_gpu_sets_time_and_memory():
    """Skewed routing takes longer and more memory; a capacity of even shares takes less, as many experts get fewer."""
    ways = ({}, {"expert_skew": 0.75}, {"expert_skew": 0.75, "expert_capacity_factor": 1.0})
    large = MODEL.replace(hidden_size=2048, num_heads=16, expert_intermediate_size=1024, position="rotary").model_dump()
    plan = {"dp": 16, "ep": 16, "zero_stage": 1}
    even, uneven, limited = (estimate(asked(large, "superpod-h100", plan, **way)) for way in ways)
    assert limited.step_time_s < even.step_time_s < uneven.step_time_s / 1.05
    assert limited.largest.activations < even.largest.activations < uneven.largest.activations
    assert "the busiest of 16 GPUs gets" in " ".join(uneven.assumptions)
    assert "of the tokens are dropped" in " ".join(limited.assumptions)
