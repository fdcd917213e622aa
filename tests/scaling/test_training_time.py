"""The shortest run: the frontier holds what it says, limits are found by taking causes away, the impossible says so."""

from functools import partial

import pytest
from open_space import search
from rows import refusals
from typed import answered

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.reliability.goodput import Failures
from sim.scaling.goal import goal_of
from sim.scaling.run import Terms
from sim.scaling.step_times import limit_of, with_endless_links, without_latency
from sim.scaling.training_time import default_batches, shortest
from sim.specs import ParallelPlan, build_scenario

GPUS, BATCHES = (8, 128), (64, 256)


def question(cluster="selene", **changes):
    return build_scenario({
        "model": "gpt-7.5b", "cluster": cluster, "plan": {},
        "training": {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16"}, **changes,
    })  # fmt: skip


GOAL = goal_of(7.5e9, tokens=20e9, critical_batch=512 * 1024.0)


@pytest.fixture(scope="module")
def frontier():
    return shortest(question(), GOAL, gpus=GPUS, batches=BATCHES)


def test_the_frontier_trades_time_for_gpus(frontier):
    gpus = [point.run.num_gpus for point in frontier.points]
    walls = [point.run.wall_s for point in frontier.points]
    assert gpus == sorted(set(gpus))
    assert walls == sorted(walls, reverse=True)
    assert frontier.fastest is frontier.points[-1]
    assert frontier.cheapest.run.cost == min(point.run.cost for point in frontier.points)
    assert len(gpus) > 5


def test_a_point_is_its_parts(frontier):
    for point in frontier.points[::3]:
        batch = point.answer.scenario.training.global_batch_size
        assert batch in BATCHES
        assert point.answer.fits
        assert point.answer.num_gpus == point.run.num_gpus
        assert point.run.steps == pytest.approx(GOAL.steps(batch * 2048))
        assert point.run.useful_s == pytest.approx(GOAL.steps(batch * 2048) * point.answer.step_time_s)
        assert point.run.wall_s > point.run.useful_s
        assert point.run.step_time_s == estimate(point.answer.scenario).step_time_s
        low, high = point.days_interval
        assert low < point.run.days < high


def test_batches_lie_about_the_critical_one():
    assert default_batches(GOAL, 2048) == tuple(2**power for power in range(3, 12))  # 256 sequences are critical


def test_data_that_come_too_slowly_set_the_pace():
    training = {"global_batch_size": 1, "sequence_length": 2048, "precision": "bf16", "bytes_per_token": 1e8}
    point = shortest(question(training=training), GOAL, gpus=(64, 64), batches=(256,), layered=False).fastest
    asked = 1e8 * point.run.tokens * (1 + (point.answer.scenario.plan.pp > 1))
    assert asked / point.run.useful_s == pytest.approx(point.run.storing.read_bytes_per_s)


def test_no_batch_or_plan_of_the_search_is_faster(frontier):
    # Of a size that usual schedules fill too: modular pipelines fill others.
    points = [point for point in frontier.points if point.run.num_gpus.bit_count() == 1]
    point = points[len(points) // 2]
    for batch in BATCHES:
        training = question().training.replace(global_batch_size=batch)
        given = question().replace(training=training, plan=ParallelPlan())
        best = search(given, gpus=(point.run.num_gpus,) * 2, top=1, confirm=3).best[0].answer
        assert GOAL.steps(batch * 2048) * best.step_time_s >= point.run.useful_s * (1 - 1e-9)


def test_chosen_runs(frontier):
    slowest, fastest = frontier.points[0].run, frontier.fastest.run
    between = (slowest.wall_s * fastest.wall_s) ** 0.5
    chosen = frontier.cheapest_within(between)
    assert chosen.run.wall_s <= between
    assert all(point.run.gpu_hours >= chosen.run.gpu_hours for point in frontier.points if point.run.wall_s <= between)
    assert frontier.fastest_for(fastest.cost * 1.01) is frontier.fastest
    with pytest.raises(
        SpecError, match=r"no run ends within 1.00 s: the shortest takes .* on 128 GPUs, and is limited"
    ):
        frontier.cheapest_within(1.0)
    with pytest.raises(SpecError, match=r"1 USD are too few: the cheapest run takes [\d,]+ \([\d,]+ GPU-hours"):
        frontier.fastest_for(1.0)


def test_limits_are_what_taking_the_cause_away_saves(frontier):
    point = frontier.fastest
    scenario, step = point.answer.scenario, point.answer.step_time_s
    without = estimate(with_endless_links(scenario)).step_time_s
    assert point.losses["network"] == pytest.approx(1 - without / step, abs=1e-6)
    assert point.losses["latency"] == pytest.approx(
        1 - estimate(without_latency(scenario)).step_time_s / step, abs=1e-6
    )
    for link in (without_latency(scenario).profile.nvlink, without_latency(scenario).profile.network):
        assert {each.base_latency_s + each.hop_latency_s for each in (link, *link.operations.values())} == {0.0}
    assert point.losses["bubble"] == pytest.approx(point.answer.bubble_fraction, abs=1e-6)
    assert list(point.losses.values()) == sorted(point.losses.values(), reverse=True)
    assert limit_of({"batch": 0.3, "network": 0.1}, {64: 2.0, 128: 1.5}, 64) == "batch"
    assert limit_of({"batch": 0.3, "network": 0.1}, {64: 2.0, 128: 1.1}, 64) == "GPUs"


def test_what_cannot_be():
    with pytest.raises(
        InfeasiblePlan, match=r"nearest numbers that can be made are 3,072"
    ):  # more GPUs than the batch feeds
        shortest(question(), GOAL, gpus=(4400, 4480), batches=(8,), layered=False)
    huge = question(model="gpt-1008b")
    with pytest.raises(InfeasiblePlan, match="memory rules them all out"):
        shortest(huge, GOAL, gpus=(8, 8), batches=(8,))
    never = Terms(Failures(gpu_mtbf_s=60.0))
    with pytest.raises(InfeasiblePlan, match="failures come faster than checkpoints"):
        shortest(question(), GOAL, gpus=(64, 64), batches=(64,), terms=never, layered=False)


ask = partial(answered, "shortest")


SMALL = ("gpt-7.5b", "--cluster", "selene", "--tokens", "20B", "--gpus", "32..64", "--batches", "256", "--no-layered")


test_mistakes_say_what_to_type = refusals(SpecError, lambda words: ask(*words), [
    (("gpt-7.5", "--cluster", "selene"), "gpt-7.5b"),
    (("gpt-7.5b", "--cluster", "selena"), "selene"),
    (("gpt-7.5b", "--cluster", "selene", "--loss", "1.5"), "irreducible"),
    ((*SMALL[:-1], "--loss", "2.5"), "either tokens or a loss"),
    (("gpt-7.5b", "--cluster", "selene", "--gpus", "8..4"), "--gpus '8..4' must go from fewer to more"),
    ((*SMALL, "--within", "3"), "has no unit"),
    ((*SMALL, "--batch-law", "zhang"), "zhang-2024"),
    ((*SMALL[:-3], "--batches", "1,x"), "must be numbers of sequences"),
    ((*SMALL, "--figure", "x.jpg"), "must end in"),
])  # fmt: skip
