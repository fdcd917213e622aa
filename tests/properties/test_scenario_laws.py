"""Laws of whole scenarios: overlap never lengthens a step, faster hardware never slows it, recomputation and ZeRO save."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines import ENGINES
from sim.estimate import estimate
from sim.specs import build_scenario

OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward")
DRAWN = (*OVERLAPS, "overlap_context")  # which is a ring of sends instead of a gather, and may take longer
STACKS = ("megatron-2019", "megatron-2021", "megatron-2022", "megatron-core")


@st.composite
def scenarios(draw):
    """A small model on up to 64 A100, cut in any way the rules allow."""
    tp, dp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 4]))
    schedule = draw(st.sampled_from(["gpipe", "1f1b"] + ["interleaved"] * (pp > 1)))
    chunks = 2 if schedule == "interleaved" else 1
    microbatches = pp * draw(st.integers(1, 3)) if chunks > 1 else draw(st.integers(1, 6))
    microbatch_size = draw(st.sampled_from([1, 2, 4]))
    sequence = draw(st.sampled_from([256, 1024, 2048]))
    model = {
        "num_layers": pp * chunks * draw(st.integers(4, 6)),  # four layers a rank or more: see the test of ZeRO
        "hidden_size": draw(st.sampled_from([512, 1024, 4096])),
        "num_heads": 16,
        "num_kv_heads": draw(st.sampled_from([4, 16])),
        "vocab_size": draw(st.sampled_from([1024, 51200])),
        "gated_mlp": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
    }
    plan = {
        "tp": tp, "pp": pp, "dp": dp, "schedule": schedule, "num_chunks": chunks, "microbatch_size": microbatch_size,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "zero_stage": draw(st.sampled_from([0, 1, 2, 3])), "cp": draw(st.sampled_from([1, 1, 2, 4])),
    }  # fmt: skip
    stack = {"preset": draw(st.sampled_from(STACKS)), **{name: draw(st.booleans()) for name in DRAWN}}
    training = {
        "global_batch_size": dp * microbatches * microbatch_size, "sequence_length": sequence, "precision": "fp16",
    }  # fmt: skip
    return build_scenario(
        {"model": model, "cluster": "selene", "plan": plan, "training": training, "stack": stack, "profile": "a100"}
    )


def step_time(scenario, engine="dag"):
    return estimate(scenario, engine).step_time_s


def rising(values):
    """Each at least the one before it, rounding aside."""
    return all(later >= earlier - 1e-9 * abs(earlier) for earlier, later in pairwise(values))


@pytest.mark.parametrize("flag", OVERLAPS)
@given(scenario=scenarios(), engine=st.sampled_from(sorted(ENGINES)))
def test_overlap_never_lengthens_a_step(flag, scenario, engine):
    beside, after = (
        step_time(scenario.replace(stack=scenario.stack.replace(**{flag: on})), engine) for on in (True, False)
    )
    assert beside <= after * (1 + 1e-9)


@given(scenario=scenarios())
def test_recomputation_costs_time_and_saves_memory(scenario):
    answers = [
        estimate(scenario.replace(plan=scenario.plan.replace(recompute=mode))) for mode in ("none", "selective", "full")
    ]
    assert rising([answer.step_time_s for answer in answers])
    assert rising([-answer.largest.total for answer in answers])
    assert rising([answer.hfu * answer.step_time_s for answer in answers])
    assert answers[0].hfu == answers[0].mfu


# With two data-parallel ranks and three layers a rank or fewer, stage 3 can need more than stage 2: the layer at work
# and the next are gathered whole, which is more than half of all of them.
@given(scenario=scenarios())
def test_more_sharding_never_needs_more_memory(scenario):
    needed = [estimate(scenario.replace(plan=scenario.plan.replace(zero_stage=level))).memory for level in range(4)]
    for level in zip(*needed, strict=True):  # the same rank under each level
        assert rising([-use.total for use in level])
        assert level[1].optimizer == pytest.approx(level[0].optimizer / scenario.plan.num_replicas)
        if scenario.plan.pp == 1:  # a pipeline sums whole gradients first
            assert level[2].gradients == pytest.approx(level[0].gradients / scenario.plan.num_replicas)
        assert level[3].weights == pytest.approx(level[0].weights / scenario.plan.num_replicas)


@given(scenario=scenarios(), engine=st.sampled_from(["dag", "des"]))
def test_breakdown_of_a_scenario(scenario, engine):
    answer = estimate(scenario, engine)
    seconds = answer.breakdown.seconds
    assert sum(seconds.values()) == pytest.approx(answer.step_time_s, rel=1e-9)
    assert min(seconds.values()) >= -1e-9 * answer.step_time_s
    if scenario.plan.tp == 1:
        assert seconds["tensor_parallel_comm"] == 0
    if scenario.plan.pp == 1:
        assert seconds["pipeline_comm"] == 0
        assert answer.bubble_fraction == pytest.approx(0, abs=1e-9)
    if scenario.plan.num_replicas == 1 and not scenario.model.tied_embeddings:
        # No replica to talk to: what is left is waiting for ranks whose update takes longer.
        slowest = answer.timeline.program.costs.optimizer_s
        assert seconds["data_parallel_comm"] <= slowest.max() - slowest.mean() + 1e-9 * answer.step_time_s
