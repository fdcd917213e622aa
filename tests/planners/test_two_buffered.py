"""PipeDream-2BW's planner: its cost model by hand, its memory, and the house's own search beside it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import InfeasiblePlan, SpecError, estimate, load_scenario
from sim.planners import (
    LayerProfile,
    Level,
    ask_pipedream,
    ask_two_buffered,
    levels_of,
    plan_two_buffered,
    profile_of,
    read_levels,
    read_profile,
)

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "scenarios" / "megatron-2021" / "1.7b.yaml"


def alike(count, **changes):
    layer = {"forward_s": 1.0, "backward_s": 2.0, "output_bytes": 10.0, "weights_bytes": 100.0, "kept_bytes": 40.0}
    layers = [{"name": str(number), **layer, **changes} for number in range(count)]
    return LayerProfile.read({"layers": layers, "microbatch_size": 1, "input_bytes": 5.0}, "made")


def only(plans, width, depth, recompute):
    return next(p for p in plans.plans if (p.width, p.depth, p.recompute) == (width, depth, recompute))


def test_the_cost_model_by_hand():
    """t = max(c T + sends, all-reduce / m), w b / t samples a second (arXiv:2006.09503, section 3.3)."""
    plans = plan_two_buffered({1: alike(8)}, [Level(8, 20.0)], batch=64, memory_bytes=1e6)
    one = only(plans, 2, 4, False)
    assert (one.num_microbatches, one.ends) == (32, (2, 4, 6, 8))
    # A middle stage: two layers, activations from before and gradients from behind; its two replicas' all-reduce.
    assert one.compute_s == pytest.approx(2 * 3.0 + 2 * 10 / 20)
    assert one.reduce_s == pytest.approx(2 * (2 - 1) / 2 * 200 / 20 / 32)
    assert one.period_s == one.compute_s
    assert one.samples_per_s == pytest.approx(2 / 7.0)
    again = only(plans, 2, 4, True)
    assert again.compute_s == pytest.approx(4 / 3 * 6.0 + 1.0)
    slow = plan_two_buffered({1: alike(8)}, [Level(8, 0.5)], batch=8, memory_bytes=1e6)
    wide = only(slow, 8, 1, False)
    assert wide.period_s == wide.reduce_s == pytest.approx(2 * 7 / 8 * 800 / 0.5 / 1)


def test_the_memory_by_hand():
    """2 |W|/d + |A| without recomputation, 2 |W|/d + |A|/d + d |A_in| with it, and the state beside."""
    profile = alike(8, state_bytes=7.0)
    plans = plan_two_buffered({1: profile}, [Level(8, 20.0)], batch=64, memory_bytes=1e6)
    weights, state = 2 * 200, 2 * 7
    assert only(plans, 2, 4, False).memory_bytes == pytest.approx(weights + state + 8 * 40)
    # The first stage keeps four inputs of 5 bytes, the second three of 10.
    assert only(plans, 2, 4, True).memory_bytes == pytest.approx(weights + state + 2 * 40 + 3 * 10)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.sampled_from([1, 2, 4, 6, 8, 12]), st.integers(1, 4), st.floats(0.1, 1000))
def test_nothing_that_was_tried_is_better(layers, workers, rounds, rate):
    batch = 12 * workers * rounds
    plans = plan_two_buffered({1: alike(layers), 2: alike(layers)}, [Level(workers, rate)], batch, memory_bytes=1e9)
    speeds = [plan.samples_per_s for plan in plans.plans]
    assert speeds == sorted(speeds, reverse=True)
    assert len(plans.plans) == plans.tried
    for plan in plans.plans:
        assert plan.width * plan.depth == workers
        assert plan.width * plan.microbatch_size * plan.num_microbatches == batch
        assert plan.num_microbatches >= plan.depth
    # Without a network that counts, the whole machine works, as far as stages are even.
    fast = plan_two_buffered({1: alike(layers)}, [Level(workers, 1e12)], batch, memory_bytes=1e9).best
    assert fast.samples_per_s == pytest.approx(workers / (3.0 * layers), rel=1e-6)


def test_a_send_leaves_a_server_where_the_replicas_fill_it():
    levels = [Level(4, 100.0), Level(2, 4.0)]
    plans = plan_two_buffered({1: alike(8)}, levels, batch=64, memory_bytes=1e6)
    # Four replicas of two stages: every send crosses, at a quarter of the server's 4 bytes a second each.
    assert only(plans, 4, 2, False).compute_s == pytest.approx(4 * 3.0 + 10 / 1.0)
    # Four stages of two: of the middle ones each has one neighbour in its server, one in the other.
    assert only(plans, 2, 4, False).compute_s == pytest.approx(2 * 3.0 + 10 / 100 + 10 / 1.0)
    assert only(plans, 8, 1, False).reduce_s == pytest.approx(2 * 7 / 8 * 800 / 4.0 / 8)


@pytest.mark.parametrize("name", ["megatron-2021/1.7b.yaml", "megatron-2021/39.1b.yaml"])
def test_the_house_has_the_same_plan_first_or_says_why_not(name):
    scenario = load_scenario(ROOT / "scenarios" / name, ["plan.zero_stage=0"])
    found = ask_two_buffered(scenario)
    assert found.estimates is not None
    place = found.own_best
    assert place is not None
    # Whatever is before the house's own best, it says does not fit: the two agree on what is fast.
    assert not any(answer.fits for answer in found.estimates[:place])
    assert ("same plan first" in found.verdict) == (place == 0)
    times = [
        (plan.step_time_s, answer.step_time_s) for plan, answer in zip(found.plans.plans, found.estimates, strict=True)
    ]
    assert all(0.65 < ours / theirs < 1.5 for theirs, ours in times)
    best = found.estimates[place]
    assert best.scenario.plan.schedule in ("1f1b", "pipedream_2bw")
    assert best.step_time_s == estimate(best.scenario).step_time_s


def test_a_scenario_as_a_profile_adds_up_to_its_estimate():
    scenario = load_scenario(SMALL, ["plan.zero_stage=0"])
    profile = profile_of(scenario)
    assert [profile.layers[0].name, profile.layers[-1].name] == ["embedding", "head"]
    assert len(profile) == scenario.model.num_layers + 2
    costs = estimate(scenario).timeline.program.costs
    assert profile.seconds == pytest.approx(float(costs.forward_s.sum() + costs.backward_s.sum()), rel=0.01)
    levels = levels_of(scenario)
    assert levels[0].count * levels[-1].count == scenario.plan.num_gpus
    answer = ask_pipedream(scenario)
    assert answer.estimate is not None
    assert answer.plan.period_s <= answer.plan.data_parallel_s * (1 + 1e-9)


def test_a_straight_pipeline_of_a_scenario_is_an_explicit_layout():
    scenario = load_scenario(SMALL, ["plan.zero_stage=0"])
    answer = ask_pipedream(scenario, [Level(8, 1e12)], replicated=False)
    assert answer.plan.config == "-".join("1" * 8)
    assert answer.estimate is not None
    assert answer.layout.count("|") + answer.layout.count("*") >= 1
    # One replica takes the whole batch: its micro-batches, each as long as the slowest stage, and their updates.
    own = answer.estimate
    costs = own.timeline.program.costs
    update = float(max(costs.optimizer_s + costs.reduce_s + costs.gather_s))
    bare = answer.plan.period_s * own.num_microbatches
    assert bare < own.step_time_s < 1.1 * (bare + update * own.num_microbatches)


def test_what_the_planners_cannot_do_is_said():
    profile = alike(4)
    with pytest.raises(SpecError, match="give --workers and --bandwidths"):
        ask_pipedream(profile)
    with pytest.raises(SpecError, match="needs the batch"):
        ask_two_buffered(profile, [Level(4, 1.0)])
    with pytest.raises(SpecError, match="micro-batches of 1; measure others"):
        ask_two_buffered(profile, [Level(4, 1.0)], batch=8, microbatches=(2,), memory_bytes=1e9)
    with pytest.raises(SpecError, match="Take a larger batch"):
        plan_two_buffered({1: profile}, [Level(4, 1.0)], 2, 1e9)
    with pytest.raises(InfeasiblePlan, match=r"needs .*take more workers"):
        plan_two_buffered({1: profile}, [Level(4, 1.0)], 16, 10.0)
    with pytest.raises(SpecError, match=r"plan\.zero_stage = 1 shards"):
        profile_of(load_scenario(SMALL, ["plan.zero_stage=1"]))
    moe = load_scenario(ROOT / "scenarios" / "qwen3-235b-a22b-256-h100.yaml")
    with pytest.raises(SpecError, match=r"plan\.ep = "):
        profile_of(moe)


def test_the_keys_of_the_answers_are_documented():
    page = (ROOT / "docs" / "schedules.md").read_text().partition("Keys of `plan-pipeline --json`")[2]
    profile = read_profile(ROOT / "scenarios" / "layers" / "vgg16-v100.csv")
    first = ask_pipedream(profile, read_levels("4x4", "10 Gbit/s, 12 GB/s")).to_dict()
    scenario = load_scenario(SMALL, ["plan.zero_stage=0"])
    both = {**first, **ask_pipedream(scenario).to_dict(), **ask_two_buffered(scenario).to_dict()}
    inner = [both["stages"][0], both["played"], both["plans"][0]]
    keys = {*both, *(key for each in inner for key in each)}
    assert not [key for key in sorted(keys) if f"`{key}`" not in page]
