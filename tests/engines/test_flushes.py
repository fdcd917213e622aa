"""A pipeline that drains several times a step, and updates that wait for their own gradients' sum."""

from dataclasses import asdict

import numpy as np
import pytest

from sim import build_scenario, estimate, load_scenario
from sim.engines import Program, run
from sim.engines.program import waited_reduction
from sim.schedules import build_order
from sim.traffic.exchanges import step_collectives

SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb_interleaved": 2, "zb_v": 2, "breadth_first": 2}
TEXT = """
name: flushes
model: llama3-8b
cluster: {preset: superpod-h100, num_nodes: 1}
plan: {pp: 4, dp: 2, recompute: full}
training: {sequence_length: 4096}
stack: {framework: torchtitan}
profile: h100
"""


@pytest.fixture
def scenario_of(tmp_path):
    (tmp_path / "one.yaml").write_text(TEXT)

    def read(schedule="1f1b", per_flush=8, batch=64, *more):
        chunks = SCHEDULES.get(schedule, 1)
        said = [f"plan.schedule={schedule}", f"plan.num_chunks={chunks}", f"training.global_batch_size={batch}"]
        said += [] if per_flush is None else [f"plan.microbatches_per_flush={per_flush}"]
        return load_scenario(tmp_path / "one.yaml", [*said, *more])

    return read


@pytest.mark.parametrize("engine", ["dag", "des"])
def test_by_hand(engine, costs_of):
    """Two ranks, forwards of 1 s and backwards of 2 s, two micro-batches a flush, two flushes a step.

    Rank 0 is done with a flush after 9 s and sums for 0.5 s. Rank 1 is done after 7 s, and its 0.25 s of sums hide in
    its wait for rank 0's next forward.
    """
    costs = costs_of(2, np.ones(2), np.full(2, 2.0))
    order = build_order("1f1b", 2, 1, 4, per_flush=2)
    played = run(Program(order, costs, between_flushes_s=np.array([0.5, 0.25])), engine)
    begin = [played.start[order.of_rank(rank)].tolist() for rank in range(2)]
    assert begin[0] == [0, 1, 4, 7, 9.5, 10.5, 13.5, 16.5]
    assert begin[1] == [1, 2, 4, 5, 10.5, 11.5, 13.5, 14.5]
    assert played.step_time_s == 18.5
    frame = played.to_frame()
    sums = frame[frame.kind == "reduce"][["rank", "start_s", "end_s"]].values.tolist()
    assert sorted(sums) == [[0, 9.0, 9.5], [1, 7.0, 7.25]]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_of_flushes_is_so_many_steps_without_their_updates(scenario_of, schedule):
    """k flushes take k - 1 times a step that updates nothing, and one that does; memory is that of one flush."""
    one, many = estimate(scenario_of(schedule, None, 16)), estimate(scenario_of(schedule, 8, 128))
    of_update = float(one.timeline.program.costs.optimizer_s.max())
    assert many.step_time_s == pytest.approx(8 * one.step_time_s - 7 * of_update, rel=2e-3)
    assert many.step_time_s > estimate(scenario_of(schedule, None, 128)).step_time_s
    assert many.breakdown.total == pytest.approx(many.step_time_s, rel=1e-12)
    assert [asdict(use) for use in many.memory] == [asdict(use) for use in one.memory]
    assert estimate(scenario_of(schedule, 8, 128), "des").step_time_s == pytest.approx(many.step_time_s, rel=1e-9)
    work, alone = many.breakdown.seconds, one.breakdown.seconds
    for cause in ("flop_at_peak", "recompute", "memory_bound", "data_parallel_comm"):
        assert work[cause] == pytest.approx(8 * alone[cause], rel=1e-6), cause


def test_traffic_counts_what_every_flush_sums(scenario_of):
    def bytes_of(scenario):
        return {each.name: each.nbytes * each.count for each in step_collectives(scenario)}

    many, one = bytes_of(scenario_of()), bytes_of(scenario_of("1f1b", None))
    assert many["reduce gradients"] == 4 * one["reduce gradients"]
    assert many["gather weights"] == 4 * one["gather weights"]
    last = bytes_of(scenario_of("1f1b", 8, 64, "stack.sums_at_last_flush=true"))
    assert last == one


def test_sums_at_the_last_flush_alone_take_less(scenario_of):
    every, last = (
        estimate(scenario_of("1f1b", 8, 64, f"stack.sums_at_last_flush={word}")) for word in ("false", "true")
    )
    between = every.timeline.program.between_flushes_s
    assert every.step_time_s - last.step_time_s == pytest.approx(3 * between[0], rel=1e-6)
    assert not last.timeline.program.between_flushes_s.any()


GPT_2 = {
    "model": {"preset": "gpt2-1.2b", "name": "gpt2"}, "cluster": {"preset": "piz-daint", "num_nodes": 32},
    "stack": "pipedream", "profile": "p100",
    "training": {"global_batch_size": 64, "sequence_length": 512, "precision": "fp32"},
    "plan": {"pp": 8, "dp": 4, "microbatch_size": 1, "schedule": "pipedream_2bw", "recompute": "full"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("reduce", "tail", "backward", "hidden", "left"),
    [
        (5.0, 1.0, 2.0, 1.0, 3.0),  # longer than the backward: what comes after it
        (5.0, 1.0, 9.0, 1.0, 1.0),  # shorter: the last bucket
        (5.0, 1.0, 2.0, 0.5, 4.0),  # half of what is beside it is taken from the backward
        (0.0, 0.0, 2.0, 1.0, 0.0),
        (0.5, 1.0, 2.0, 1.0, 0.5),  # one bucket is all
    ],
)
def test_what_one_backward_leaves(reduce, tail, backward, hidden, left):
    assert waited_reduction(*map(np.array, (reduce, tail, backward)), hidden) == pytest.approx(left)


def step_s(*changes):
    return estimate(build_scenario(GPT_2, changes)).step_time_s


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_waiting_lies_between_hiding_and_not(schedule):
    plan = f"plan.schedule={schedule}"
    hidden, waited, after = (
        step_s(plan, *changes)
        for changes in (("stack.reduce_waited_for=false",), (), ("stack.overlap_grad_reduce=false",))
    )
    assert hidden < waited < after
