"""The loop by its formula, and laws that it must obey."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InfeasiblePlan
from sim.rl.inference import Inference, RolloutPool
from sim.rl.rollout import batch_time, period_of, steady_time
from sim.rl.samples import Samples, lognormal_lengths
from sim.specs import build_scenario

SLACK = 1.02
"""Cells of tokens and periods that do not quite repeat."""
LAWS = settings(max_examples=6, deadline=None)


@cache
def small():
    """A 4B model on H100: a scenario whose plan does not matter."""
    training = {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"}
    return build_scenario({"model": "qwen3-4b", "cluster": "superpod-h100", "plan": {}, "training": training}, [])


def make_pool(gpus=4, running=1024, **how):
    """A pool of so many GPUs, each a replica that decodes at most `running` sequences."""
    return RolloutPool(small(), Inference(most_running=running, **how), gpus, 1)


def make_samples(prompts=32, spread=0.8):
    """A batch of prompts with eight responses each."""
    return Samples(prompts, 8, 200.0, lognormal_lengths(1000.0, 4000.0, spread))


def played(written_s, training_s, sync_s, depth, steps=200):
    """Time from version to version, batch by batch: batch i begins when version i − k is there, at most k at once."""
    version, ended, starts = {0: 0.0}, {}, {}
    for batch in range(steps):
        starts[batch] = max(version[max(0, batch - depth)], ended.get(batch - max(depth, 1), 0.0))
        ended[batch] = starts[batch] + written_s + sync_s
        version[batch + 1] = max(ended[batch], version[batch]) + training_s
    return (version[steps] - version[steps // 2]) / (steps - steps // 2)


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
@pytest.mark.parametrize("training_s", [2.0, 9.0, 30.0])
def test_batches_go_round_as_the_longest_cycle(depth, training_s):
    pool, samples = make_pool(running=4096), make_samples()
    period = period_of(pool, samples, training_s, 0.5, depth=depth)
    least = max(steady_time(pool, samples), training_s) + 0.5 if depth else 0.0
    expected = max(least, played(batch_time(pool, samples), training_s, 0.5, depth))
    assert period.seconds == pytest.approx(expected, rel=0.02)


def test_a_batch_ends_with_its_last_response_however_these_are_grouped():
    pool, lengths = make_pool(gpus=1, running=4096), make_samples().lengths
    times = [batch_time(pool, Samples(256 // group, group, 1.0, lengths)) for group in (1, 8)]
    assert times[0] == pytest.approx(times[1], rel=0.01)


def test_a_pool_that_never_runs_empty_is_full_of_sequences_of_the_mean_age():
    pool, samples = make_pool(gpus=1, memory_share=0.3), make_samples()
    context = samples.prompt_tokens + samples.lengths.mean_age
    slots = pool.room_bytes / pool.cache_bytes(context)
    decoding = samples.responses * samples.lengths.mean / slots * pool.decode_s(slots, context)
    assert steady_time(pool, samples) == pytest.approx(decoding + pool.prefill_s(samples), rel=1e-3)


@pytest.mark.parametrize(("prompts", "most"), [(16, 3.0), (64, 1.3), (512, 1.05), (3200, 1.01)])
def test_a_batch_that_drains_takes_longer_than_a_pool_that_never_runs_empty(prompts, most):
    """Also where a tight cache holds fewer sequences of mixed ages than of one; of many waves the end is nothing."""
    pool, samples = make_pool(gpus=1, memory_share=0.3), make_samples(prompts)
    assert 1.0 < batch_time(pool, samples) / steady_time(pool, samples) < most


def test_tools_are_waited_for_in_every_response():
    pool, plain = make_pool(), make_samples()
    agents = replace(plain, turns=8, tool_s=2.5)
    loop = {"training_s": 10.0, "sync_s": 1.0}
    assert period_of(pool, agents, **loop).seconds == pytest.approx(period_of(pool, plain, **loop).seconds + 20.0)


def test_depth_0_is_the_sum_of_its_parts():
    pool, samples = make_pool(), make_samples()
    loop = {"training_s": 10.0, "sync_s": 1.0, "reward_s": 2.0}
    period = period_of(pool, samples, **loop)
    written = batch_time(pool, samples)
    assert period.seconds == pytest.approx(written + 2.0 + 10.0 + 1.0)
    # Half a version behind, one and a half batches are on their way in that time.
    assert period_of(pool, samples, written, 1.0, depth=0.5).seconds == pytest.approx((2 * written + 1.0) / 1.5)


@LAWS
@given(
    training=st.floats(0.5, 40), sync=st.floats(0, 2), depth=st.sampled_from([0, 0.5, 1, 2, 3, 5]),
    running=st.sampled_from([8, 64, 1024]), spread=st.floats(0.2, 1.3),
)  # fmt: skip
def test_no_period_is_less_than_a_pools_work(training, sync, depth, running, spread):
    pool, samples = make_pool(4, running), make_samples(spread=spread)
    period = period_of(pool, samples, training, sync, depth=depth)
    assert period.seconds >= (training + sync) * (1 - 1e-9)
    assert period.seconds >= (steady_time(pool, samples) + sync) * (1 - 1e-9)
    assert period.seconds <= period_of(pool, samples, training, sync).seconds * (1 + 1e-9)


@LAWS
@given(
    training=st.floats(0.5, 40), gpus=st.integers(1, 12), depth=st.integers(0, 4), running=st.sampled_from([8, 1024]),
    more=st.sampled_from([{"depth": 1}, {"gpus": 1}, {"gpus": 12}]),
)  # fmt: skip
def test_more_depth_or_more_rollout_gpus_are_never_slower(training, gpus, depth, running, more):
    samples, sizes = make_samples(prompts=64), {"gpus": gpus, "depth": depth}
    less, after = (
        period_of(make_pool(each["gpus"], running), samples, training, 0.3, depth=each["depth"]).seconds
        for each in (sizes, {name: size + more.get(name, 0) for name, size in sizes.items()})
    )
    assert after <= less * SLACK


def test_a_cache_with_no_room_says_what_would_help():
    pool = make_pool(memory_share=0.142)
    with pytest.raises(InfeasiblePlan) as error:
        batch_time(pool, make_samples())
    assert "One sequence of 4,200 tokens needs" in str(error.value)
    assert "take a larger rollout tp, weights in fp8, or shorter responses" in str(error.value)
