"""Laws of what recipes differ in: layers dealt unevenly, recomputation, casts, the cut of long sequences, norms, the loss."""

import pytest
from asked import asked
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.estimate import estimate
from sim.specs import ModelSpec, ParallelPlan
from sim.work.layers import deal_stages

FEW = settings()


def scenario_of(precision="bf16", stack="megatron-core", model=None, training=None, **plan):
    """A small model on H100, its plan and stack given."""
    description = {"num_layers": 8, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000, "gated_mlp": True}
    cluster, model = (
        {"node": "dgx-h100", "num_nodes": 4, "name": "four nodes"},
        {**description, "max_sequence_length": 65536, **(model or {})},
    )
    training = {"batch": 16, "sequence": 8192, "precision": precision, **(training or {})}
    return asked(model, cluster, plan, stack=stack, profile="h100", **training)


@st.composite
def plans(draw):
    """A plan of up to 32 GPUs."""
    tp, cp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 4], [1, 2], [1, 2], [1, 2]))
    return {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "microbatch_size": draw(st.sampled_from([1, 2])),
        "recompute": draw(st.sampled_from(["none", "selective", "per_op", "full"])),
        "sequence_parallel": tp > 1 and draw(st.booleans()), "zero_stage": draw(st.integers(0, 3)),
    }  # fmt: skip


stacks = st.sampled_from(["megatron-2021", "megatron-2022", "megatron-core", "torchtitan", "llm-foundry"])


def times(scenario, **changes):
    """Step time as it is, and with the stack changed. [s]"""
    return tuple(
        estimate(each).step_time_s for each in (scenario, scenario.replace(stack=scenario.stack.replace(**changes)))
    )


@given(layers=st.integers(1, 200), pp=st.integers(1, 16), chunks=st.integers(1, 8), first=st.booleans(), last=st.booleans())  # fmt: skip
def test_every_layer_is_dealt_once(layers, pp, chunks, first, last):
    chunks = chunks if pp > 1 else 1
    schedule = "interleaved" if chunks > 1 else "1f1b"
    plan = ParallelPlan(
        pp=pp, num_chunks=chunks, schedule=schedule, uneven_layers=True, embedding_as_layer=first, head_as_layer=last
    )
    model = ModelSpec(name="m", num_layers=layers, hidden_size=64, num_heads=4, vocab_size=128)
    if layers + first + last < pp * chunks:
        return
    dealt = [stage.num_layers for stage in deal_stages(model, plan)]
    assert len(dealt) == pp * chunks
    assert sum(dealt) == layers
    assert min(dealt) >= 0
    whole = [n + (first and i == 0) + (last and i == len(dealt) - 1) for i, n in enumerate(dealt)]
    assert max(whole) - min(whole) <= 1


@FEW
@given(plan=plans(), stack=stacks)
def test_recomputing_operations_lies_between_nothing_and_everything(plan, stack):
    answers = [estimate(scenario_of(stack=stack, **{**plan, "recompute": mode})) for mode in ("none", "per_op", "full")]
    seconds, needed = [a.step_time_s for a in answers], [a.largest.total for a in answers]
    assert seconds[0] * (1 - 1e-9) <= seconds[1] <= seconds[2] * (1 + 1e-9)
    assert needed[0] * (1 + 1e-9) >= needed[1] >= needed[2] * (1 - 1e-9)


SLOWER = [  # how the recipe and its plan are, a field of the stack, its faster and its slower value
    ({"precision": "fp8"}, {}, "fused_casts", True, False),
    *(({"model": {"norm": norm}}, {}, "fused_norm", True, False) for norm in ("layernorm", "rmsnorm")),
    *(({}, {"zero_stage": 3}, "gathers_per_layer", 1, pieces) for pieces in (2, 20)),
]


@FEW
@given(plan=plans(), stack=stacks, case=st.sampled_from(SLOWER))
def test_what_takes_more_kernels_or_gathers_is_never_faster(plan, stack, case):
    recipe, changes, field, fast, slow = case
    scenario = scenario_of(stack=stack, **recipe, **{**plan, **changes})
    fast_s, slow_s = (times(scenario, **{field: each})[1] for each in (fast, slow))
    assert slow_s >= fast_s * (1 - 1e-9)


@FEW
@given(plan=plans(), cp=st.sampled_from([1, 2, 4]), stack=stacks)
def test_an_unbalanced_cut_of_sequences_is_never_faster(plan, cp, stack):
    """Of gathered keys and values: a ring of balanced pieces has steps of its own, which cost a small model more."""
    scenario = scenario_of(stack=stack, **{**plan, "cp": cp, "dp": 1})
    balanced, consecutive = (times(scenario, balanced_context=on, overlap_context=False)[1] for on in (True, False))
    assert consecutive >= balanced * (1 - 1e-9)
    if cp == 1:
        assert consecutive == balanced


@FEW
@given(plan=plans(), stack=stacks)
def test_a_loss_on_gathered_logits_never_needs_less_memory(plan, stack):
    scenario = scenario_of(stack=stack, **plan)
    cut, gathered = (
        estimate(scenario.replace(stack=scenario.stack.replace(vocab_parallel_loss=on))).largest.total
        for on in (True, False)
    )
    assert gathered >= cut * (1 - 1e-9)


@FEW
@given(plan=plans(), launch=st.floats(1e-6, 1e-3))
def test_a_slower_host_is_never_faster_and_costs_nothing_where_it_is_hidden(plan, launch):
    scenario = scenario_of(**plan)
    quick, slow = times(scenario, kernel_launch_s=launch + scenario.stack.kernel_launch_s)
    assert slow >= quick * (1 - 1e-9)
    stack = scenario.stack.replace(kernel_launch_s=0.0, backward_launch_s=0.0, collective_launch_s=0.0)
    waited = estimate(scenario.replace(stack=stack)).breakdown.seconds["host_wait"]
    # What is left comes before every forward and once a step.
    assert waited == pytest.approx(scenario.num_microbatches * stack.forward_setup_s + stack.step_setup_s)
