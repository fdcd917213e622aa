"""Weights that stay gathered after a forward, and those gathered ahead: bytes by hand, traffic, and what never gains."""

import pytest
from counts import head_params
from hypothesis import given
from hypothesis import strategies as st

from sim import build_scenario, estimate
from sim.traffic.exchanges import step_collectives, step_traffic
from sim.work.sums import layer_params, total_params

DATA = {
    "name": "small", "model": "llama2-7b", "cluster": {"name": "mine", "node": "dgx-a100-80gb", "num_nodes": 4},
    "plan": {"dp": 32, "microbatch_size": 1, "zero_stage": 3, "recompute": "full"},
    "training": {"global_batch_size": 128, "sequence_length": 4096, "precision": "bf16"},
    "stack": {"framework": "torchtitan"},
}  # fmt: skip
KEPT = "plan.reshard_after_forward=false"
PIPELINE = ("plan.pp=4", "plan.dp=8")


def built(*changes):
    return build_scenario(DATA, changes)


def test_kept_weights_by_hand():
    """FSDP2's shards are the fp32 masters: with two moments and gradients 16 bytes a parameter, over 32 GPUs. Beside them
    the 16-bit layer at work and the next, or all 16-bit weights; and the fp32 gradients of one layer."""
    dropped, kept = (estimate(built(*changes)).memory[0] for changes in ((), (KEPT,)))
    model = built().model
    for use in (dropped, kept):
        assert use.weights == 0.0
        assert use.optimizer + use.gradients == pytest.approx(16 * total_params(model) / 32)
    more = 2 * total_params(model) - 2 * 2 * layer_params(model)
    assert kept.total - dropped.total == pytest.approx(more)


ALONE = ("plan.dp=1", "training.global_batch_size=1")
ADAPTED = ("training.adapter_rank=8", "plan.recompute=none")


def test_what_fsdp_holds_of_frozen_tied_and_lone_weights_by_hand():
    """Frozen weights in the bits that they were loaded in; a tied table gathered with FSDP's root, its gradient beside it
    where it is trained; and on one GPU shards in fp32 are cast all the same: two layers, and the gradients of one."""
    model = built().model
    table, layer = model.vocab_size * model.hidden_size, layer_params(model)

    def use(*changes):
        return estimate(built(*changes)).memory[0]

    for gpus, where in ((32, ()), (1, (*ALONE, "plan.zero_stage=0"))):
        for fp32, nbytes in (("false", 2), ("true", 4)):
            weights = use(*where, *ADAPTED, f"stack.fp32_frozen={fp32}").weights
            assert weights == pytest.approx(nbytes * total_params(model) / gpus, rel=0.01)
    for changes, per_number in (((), 4), (ADAPTED, 2)):
        tied, apart = (use(*changes, f"model.tied_embeddings={each}") for each in ("true", "false"))
        assert tied.working - apart.working == pytest.approx(per_number * table)
    cast, kept = (
        use(*ALONE, "stack.gradient_precision=bf16", f"stack.fp32_shards={each}") for each in ("true", "false")
    )
    assert cast.working - kept.working == pytest.approx((2 * 2 + 2) * layer, rel=0.01)


def test_a_pipeline_that_keeps_holds_what_stage_1_holds():
    """torch.distributed.pipelining reduces once a step: gathered 16-bit weights and whole fp32 gradients."""
    kept = estimate(built(*PIPELINE, KEPT))
    first = estimate(built(*PIPELINE, "plan.zero_stage=1", "stack.fp32_shards=false"))
    for use, other in zip(kept.memory, first.memory, strict=True):
        assert use.total == pytest.approx(other.total, rel=1e-9)
    assert kept.step_time_s == pytest.approx(first.step_time_s, rel=1e-9)


DROPPED = (*PIPELINE, "plan.reshard_after_forward=true")
INTERLEAVED = (*DROPPED, "plan.schedule=interleaved", "plan.num_chunks=2")
LAYERED = (*DROPPED, "plan.schedule=breadth_first", "plan.num_chunks=2")


@pytest.mark.parametrize(
    ("changes", "gathers", "reductions"),
    [
        ((), 7, 4),
        ((KEPT,), 4, 4),
        ((*PIPELINE, KEPT), 1, 1),
        (DROPPED, 16, 1),
        (INTERLEAVED, 16, 1),
        (LAYERED, 2, 1),
        ((*DROPPED, "plan.schedule=breadth_first", "plan.num_chunks=1"), 16, 1),
    ],
)
def test_how_often_it_moves(changes, gathers, reductions):
    """Four micro-batches: forward and backward each gather; but for the head's, whose backward follows its forward.

    In pipelines of sixteen, weights that are dropped are gathered for each, and gradients summed once a step, whether
    ranks have one chunk or more; layered accumulation gathers once forward and once backward.
    """
    scenario = built(*changes)
    found = step_collectives(scenario)
    whole = total_params(scenario.model) * 2 / scenario.plan.pp
    gathered = sum(each.count * each.nbytes for each in found if each.kind == "all_gather")
    reduced = sum(each.count * each.nbytes for each in found if each.kind == "reduce_scatter")
    head = 2 * head_params(scenario.model)
    assert gathered == pytest.approx({7: 8 * whole - 4 * head, 2: 2 * whole - head / 4}.get(gathers, gathers * whole))
    assert reduced == pytest.approx(2 * reductions * whole)


@st.composite
def plans(draw):
    """Of 32 GPUs."""
    pp, group = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([2, 4, 8]))
    schedule = draw(st.sampled_from(["1f1b", "gpipe", *(["interleaved"] if pp > 1 else [])]))
    chunks = [f"plan.num_chunks={2 if schedule == 'interleaved' else 1}", f"plan.schedule={schedule}"]
    overlaps = [
        f"stack.{name}={str(draw(st.booleans())).lower()}" for name in ("overlap_param_gather", "overlap_grad_reduce")
    ]
    return [f"plan.pp={pp}", f"plan.dp={32 // pp}", f"plan.sharding_group={group}", *chunks, *overlaps]


@given(changes=plans())
def test_keeping_never_gathers_more_nor_takes_less_memory(changes):
    dropped, kept = (built(*changes, *more) for more in ((), (KEPT,)))
    sent = [step_traffic(each, 0.0).data for each in (dropped, kept)]
    assert sent[1] <= sent[0] * (1 + 1e-12)
    one, other = (estimate(each) for each in (dropped, kept))
    assert max(use.total for use in other.memory) >= max(use.total for use in one.memory) * (1 - 1e-12)
    if dropped.plan.pp == 1:
        assert other.step_time_s <= one.step_time_s * (1 + 1e-9)
