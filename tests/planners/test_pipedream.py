"""PipeDream's planner against trying everything, against its published plans, and against its own play."""

from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import InfeasiblePlan, ScheduleError, SpecError
from sim.planners.answers import ask_pipedream, covering, play_plan
from sim.planners.layers import LayerProfile, profile_from_text
from sim.planners.pipedream import one_stage, plan_pipeline, ring_share, whole_plan
from sim.planners.pipeline_plan import Level, build_replicated, noam, read_levels
from sim.schedules.passes import peak_in_flight, weight_versions

ROOT = Path(__file__).parents[2]
LAYERS = ROOT / "scenarios" / "layers"
numbers = st.floats(0.1, 10.0)
tenths = st.integers(0, 100).map(lambda n: n / 10)


def read_profile(path):
    return profile_from_text(path.read_text(), path.name)


@st.composite
def profiles(draw, most=6):
    layers = draw(st.lists(st.tuples(numbers, numbers, tenths, tenths), min_size=1, max_size=most))
    return LayerProfile.read(
        {
            "layers": [
                {"name": f"{n}", "forward_s": f, "backward_s": b, "output_bytes": a, "weights_bytes": w}
                for n, (f, b, a, w) in enumerate(layers)
            ]
        },
        "drawn",
    )


def compositions(total, parts):
    """Ways to write a number as so many of one or more."""
    for cuts in combinations(range(1, total), parts - 1):
        ends = (*cuts, total)
        yield tuple(end - begin for begin, end in zip((0, *cuts), ends, strict=True))


def best_period(profile, levels):
    """The least time per micro-batch over all stages and replications, level by level."""
    layers = profile.layers
    gradients = [layer.weights_bytes if layer.gradients_bytes is None else layer.gradients_bytes for layer in layers]

    @cache
    def best(number, first, last):
        if number < 0:
            return sum(layer.forward_s + layer.backward_s for layer in layers[first:last])
        level, found = levels[number], float("inf")
        for stages in range(1, min(last - first, level.count) + 1):
            for sizes in compositions(last - first, stages):
                for parts in compositions(level.count, stages):
                    found = min(found, period(number, first, sizes, parts))
        return found

    def period(number, first, sizes, parts):
        rate, worst = levels[number].bandwidth_bytes_per_s, 0.0
        for at, (size, m) in enumerate(zip(sizes, parts, strict=True)):
            last = first + size
            reduce = ring_share(m) * sum(gradients[first:last]) / rate
            worst = max(worst, max(best(number - 1, first, last), reduce) / m)
            if at:
                worst = max(worst, 2 * layers[first - 1].output_bytes / rate)
            first = last
        return worst

    return best(len(levels) - 1, 0, len(layers))


def price_plan(profile, level, ends, replicas):
    """A plan that is written down, on a machine of one level: where each stage's layers end, and its workers."""
    stages = zip((0, *ends[:-1]), ends, replicas, strict=True)
    return whole_plan(profile, (level,), [one_stage(profile, level, *each) for each in stages])


def levels(*pairs):
    return tuple(Level(count, rate) for count, rate in pairs)


@settings(max_examples=25, deadline=None)
@given(profiles(5), st.lists(st.tuples(st.integers(1, 4), numbers), min_size=1, max_size=2))
def test_no_plan_of_one_level_or_of_two_is_better(profile, pairs):
    machine = levels(*pairs)
    plan = plan_pipeline(profile, machine)
    assert plan.period_s == pytest.approx(best_period(profile, machine), rel=1e-9)
    assert plan.num_workers == np.prod([level.count for level in machine])
    assert [stage.first for stage in plan.stages] == [0, *(stage.last for stage in plan.stages[:-1])]
    assert plan.period_s <= plan.data_parallel_s * (1 + 1e-9)
    if len(machine) == 1:
        again = price_plan(profile, machine[0], [stage.last for stage in plan.stages], plan.replicas)
        assert again.period_s == pytest.approx(plan.period_s, rel=1e-9)


@st.composite
def plans(draw):
    """Stages of a layer each, with any workers, reductions and sends."""
    profile = draw(profiles(5))
    replicas = draw(st.lists(st.integers(1, 5), min_size=len(profile), max_size=len(profile)))
    level = Level(sum(replicas), draw(st.floats(0.5, 50)))
    return price_plan(profile, level, range(1, len(profile) + 1), replicas)


@settings(max_examples=20, deadline=None)
@given(plans())
def test_with_what_is_on_the_way_covered_the_play_keeps_what_the_plan_promises(plan):
    alive = covering(plan)
    assert all(ours >= theirs for ours, theirs in zip(alive, noam(plan.replicas), strict=True))
    played = play_plan(plan, in_flight=alive)
    assert played.period_s == pytest.approx(plan.period_s, rel=1e-6)
    assert play_plan(plan, "des", alive).period_s == pytest.approx(played.period_s, rel=1e-9)
    # Its slowest stage never waits, where it is not a send that is slowest.
    if "stage" in plan.bottleneck and "compute" in plan.bottleneck:
        slowest = int(plan.bottleneck.rpartition(" ")[2])
        first = sum(plan.replicas[:slowest])
        assert played.busy[first : first + plan.replicas[slowest]] == pytest.approx(1.0, rel=1e-6)


def test_noam_may_be_one_too_few():
    """1-2-1: the middle stage's workers hold all four that the first lets in, and wait for the next in turn."""
    layers = [("a", 1, 1), ("b", 1, 2), ("c", 1, 1)]
    facts = [
        {"name": n, "forward_s": f, "backward_s": b, "output_bytes": 0.0, "weights_bytes": 0.0} for n, f, b in layers
    ]
    plan = price_plan(LayerProfile.read({"layers": facts}, "made"), Level(4, 1.0), (1, 2, 3), (1, 2, 1))
    assert (noam(plan.replicas), covering(plan)) == ((4, 2, 1), (5, 2, 1))
    assert (plan.period_s, play_plan(plan).period_s) == (2.0, pytest.approx(2.5))
    assert play_plan(plan, in_flight=covering(plan)).period_s == pytest.approx(2.0)


def test_published_plans_come_out_of_the_published_profiles():
    """16 V100 in servers on 10 Gbit/s: 15-1 for VGG-16 and for AlexNet, cut before the fully connected layers."""
    machine = read_levels("16", "10 Gbit/s")
    for name, first in (("vgg16", "View 34"), ("alexnet", "View 16")):
        profile = read_profile(LAYERS / f"{name}-v100.csv")
        plan = plan_pipeline(profile, machine)
        assert plan.config == "15-1", name
        assert profile.layers[plan.stages[1].first].name == first
        assert plan.active_minibatches == 2
        assert plan.data_parallel_s > plan.period_s
        assert play_plan(plan).over_plan == pytest.approx(1.0, rel=1e-9)
    # Where the network is no obstacle, nothing is gained over data parallelism: the fully connected layers are too few.
    assert plan_pipeline(read_profile(LAYERS / "vgg16-v100.csv"), read_levels("16", "100 Gbit/s")).config == "16"


def test_what_a_worker_keeps_bounds_the_plan():
    profile = read_profile(LAYERS / "vgg16-v100.csv")
    machine = read_levels("16", "10 Gbit/s")
    free = plan_pipeline(profile, machine)
    most = max(stage.memory_bytes for stage in free.stages)
    tight = plan_pipeline(profile, machine, memory_bytes=16e9)
    assert most > 16e9 >= max(stage.memory_bytes for stage in tight.stages)
    assert tight.period_s >= free.period_s
    with pytest.raises(InfeasiblePlan, match="Smaller micro-batches"):
        plan_pipeline(profile, machine, memory_bytes=1e9)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=13, deadline=None)
def test_every_order_of_replicated_stages_runs_and_holds_what_noam_says(replicas):
    order = build_replicated(replicas, rounds=2 * max(noam(replicas)))
    assert order.num_ranks == sum(replicas)
    stage_of_rank = np.repeat(np.arange(len(replicas)), replicas)
    assert (order.stage % len(replicas) == stage_of_rank[order.rank]).all()
    # Forward and backward of a micro-batch are on one worker of each stage, which take them in turn.
    first = np.concatenate([[0], np.cumsum(replicas)[:-1]])
    own = np.asarray(replicas)[stage_of_rank[order.rank]]
    assert (order.rank - first[stage_of_rank[order.rank]] == order.microbatch % own).all()
    peaks = peak_in_flight(order)
    assert (peaks <= np.asarray(noam(replicas))[stage_of_rank]).all()
    assert (peaks[: replicas[0]] == noam(replicas)[0]).all()
    versions, staleness = weight_versions(order)
    assert (versions == peaks).all()
    assert (staleness == peaks - 1).all()


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("name, forward\na, 1 ms\n", "x.csv", "no column 'backward'"),
        ("name, forward, backward, output, weights, wait\n", "x.csv", "unknown column 'wait'"),
        ("name, forward, backward, output, weights\na, 1 ms, 2 ms, 3 MB\n", "x.csv", "layer 1 has 4 values"),
        ("name, forward, backward, output, weights\na, 1, 2 ms, 3 MB, 4 MB\n", "x.csv", "layer 1: .*forward.* has no unit"),
        ("name, forward, backward, output, weights\na, -1 ms, 2 ms, 3 MB, 4 MB\n", "x.csv", "greater than or equal to 0"),
        ("layers: []\n", "x.yaml", "at least 1 item"),
        ("model: gpt3-175b\n", "x.yaml", "is no profile of layers; write a line a layer: name, forward"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_profile_is_said_with_its_place(text, name, says):
    with pytest.raises(SpecError, match=says):
        profile_from_text(text, name)


def test_the_same_profile_in_every_format():
    rows = [("a", 0.001, 0.002, 3e6, 4e6), ("b", 0.003, 0.004, 0.0, 6e6)]
    bare = "name, forward_s, backward_s, output_bytes, weights_bytes\n" + "".join(
        ", ".join(map(str, row)) + "\n" for row in rows
    )
    units = "layers:\n" + "".join(
        f"- {{name: {n}, forward: {f * 1e3} ms, backward: {b * 1e3} ms, output: {a / 1e6} MB, weights: {w / 1e6} MB}}\n"
        for n, f, b, a, w in rows
    )
    assert profile_from_text(bare, "p.csv") == profile_from_text(units, "p.yaml")


def test_turns_that_never_repeat_are_not_played():
    with pytest.raises(ScheduleError, match="repeat after 360,360 micro-batches"):
        build_replicated((13, 11, 9, 8, 7, 5))
    with pytest.raises(ScheduleError, match="one worker or more"):
        build_replicated((2, 0))


def test_the_keys_of_the_answers_are_documented():
    page = (ROOT / "docs" / "schedules.md").read_text().partition("Keys of `plan-pipeline` in JSON")[2]
    profile = read_profile(LAYERS / "vgg16-v100.csv")
    found = ask_pipedream(profile, read_levels("4x4", "10 Gbit/s, 12 GB/s")).to_dict()
    keys = {*found, *(key for each in (found["stages"][0], found["played"]) for key in each)}
    assert not [key for key in sorted(keys) if f"`{key}`" not in page]
