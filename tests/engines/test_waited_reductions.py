"""Updates that wait for their own gradients' sum: what is left of a reduction beside one backward."""

import numpy as np
import pytest

from sim import build_scenario, estimate
from sim.engines.program import waited_reduction

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
