"""ZeRO within groups and with weights that stay gathered or are gathered ahead; and what else waits in memory."""

import numpy as np
import pytest
from counts import head_params, layer_expert_params
from hypothesis import given
from hypothesis import strategies as st
from open_space import search

from sim import build_scenario, estimate, load_scenario
from sim.costs.collectives import all_reduce, reduce_scatter
from sim.errors import InfeasiblePlan
from sim.pricing.cells import plans_of
from sim.pricing.zero import move_seconds, reduced_to_shards
from sim.traffic.exchanges import step_collectives, step_traffic
from sim.work.sums import layer_params, total_params

DATA = {
    "name": "small", "model": "llama2-7b", "cluster": {"name": "mine", "node": "dgx-a100-80gb", "num_nodes": 4},
    "plan": {"dp": 32, "microbatch_size": 1, "zero_stage": 3},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "precision": "bf16"}, "stack": {"framework": "fsdp"},
}  # fmt: skip


def largest(answer):
    return max(use.total for use in answer.memory)


def built(*changes):
    return build_scenario(DATA, changes)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_group_of_all_is_no_group(stage):
    one, other = (estimate(built(f"plan.zero_stage={stage}", f"plan.sharding_group={size}")) for size in (32, ""))
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert largest(one) == pytest.approx(largest(other), rel=1e-12)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_groups_of_one_hold_what_nobody_shards(stage):
    """Their gradients are summed by an all-reduce over all; but for ZeRO's own buffers memory is that without it."""
    alone = estimate(built(f"plan.zero_stage={stage}", "plan.sharding_group=1"))
    none = estimate(built("plan.zero_stage=0"))
    assert alone.memory[0].optimizer == pytest.approx(none.memory[0].optimizer)
    if stage == 1:
        assert alone.step_time_s == pytest.approx(none.step_time_s, rel=0.03)
    batch = plans_of(built(f"plan.zero_stage={stage}", "plan.sharding_group=1"))
    held, layouts = np.array([[1e9], [0.0]]), batch.layouts
    summed = move_seconds(reduced_to_shards(held, 2, layouts), batch.costs.fabric)
    assert summed == pytest.approx(all_reduce(2e9, layouts.data, batch.costs.fabric))


def test_what_moves_is_counted_and_priced_alike():
    """Gradients within the group, and then what a shard has of them between the groups; tests/oracles counts torch's."""
    batch, params = plans_of(built("plan.sharding_group=8")), 1e9
    fabric = batch.costs.fabric
    found = move_seconds(reduced_to_shards(np.array([[params], [0.0]]), 2, batch.layouts), fabric)
    wanted = reduce_scatter(2 * params, batch.layouts.shards, fabric)
    assert found == pytest.approx(wanted + all_reduce(2 * params / 8, batch.layouts.between, fabric))
    whole, grouped = (step_collectives(built(f"plan.sharding_group={size}")) for size in ("", 8))
    inside, between = ([each for each in grouped if (each.group == "between") == of] for of in (False, True))
    assert [(each.nbytes, each.count) for each in inside] == [(each.nbytes, each.count) for each in whole]
    sent = sum(each.count * each.nbytes for each in inside) * 7 / 8
    sent += sum(each.count * each.nbytes for each in between) * 2 * 3 / 4
    assert step_traffic(built("plan.sharding_group=8"), 0.0).data == pytest.approx(sent)


MIXTURE = ("model=mixtral-8x7b", "plan.ep=4", "plan.sharding_group=8", "cluster.num_nodes=8", "plan.dp=64")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_experts_shard_over_what_expert_parallelism_leaves(stage):
    """8 experts a layer, 4 GPUs a set of them, groups of 8: two shards of each expert, 8 of all else; by hand."""
    scenario = built(*MIXTURE, f"plan.zero_stage={stage}")
    batch = plans_of(scenario)
    layouts = batch.layouts
    sizes = [int(each.size.item()) for each in (layouts.shards, layouts.expert_shards, layouts.between)]
    assert sizes == [8, 2, 8]
    model = scenario.model
    experts = model.num_layers * layer_expert_params(model)
    others = total_params(model) - experts
    shard = others / 8 + experts / 4 / 2
    use = estimate(scenario).memory[0]
    assert use.optimizer == pytest.approx((4 + 8) * shard)  # fp32 masters, two moments
    width = {"fp32": 4, "bf16": 2}[scenario.stack.gradient_precision]
    held = others + experts / 4
    assert use.gradients == pytest.approx(shard * (4 if stage == 3 else width) if stage > 1 else width * held)
    assert use.weights == pytest.approx(0.0 if stage == 3 else 2 * held)  # FSDP's shards are the masters


@pytest.mark.parametrize("changes", [("plan.sharding_group=8",), MIXTURE], ids=["dense", "experts"])
def test_a_search_shards_in_the_scenarios_groups(changes):
    scenario = built(*changes)
    found = search(scenario, top=3)
    plans = [each.scenario.plan for each in found.best]
    assert all(plan.sharding_group == (8 if plan.zero_stage else None) for plan in plans)
    assert all(plan.num_replicas % 8 == 0 for plan in plans)
    with pytest.raises(InfeasiblePlan, match=r"no plan on 2 GPUs shards in groups of plan\.sharding_group = 8"):
        search(scenario, gpus=(2, 2))


ACCUMULATED = DATA | {"stack": {"framework": "torchtitan"}}
KEPT = "plan.reshard_after_forward=false"
PIPELINE = ("plan.pp=4", "plan.dp=8")


def accumulated(*changes):
    return build_scenario(ACCUMULATED, ["plan.recompute=full", "training.global_batch_size=128", *changes])


def test_kept_weights_by_hand():
    """FSDP2's shards are the fp32 masters: with two moments and gradients 16 bytes a parameter, over 32 GPUs. Beside them
    the 16-bit layer at work and the next, or all 16-bit weights; and the fp32 gradients of one layer."""
    dropped, kept = (estimate(accumulated(*changes)).memory[0] for changes in ((), (KEPT,)))
    model = accumulated().model
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
    model = accumulated().model
    table, layer = model.vocab_size * model.hidden_size, layer_params(model)

    def use(*changes):
        return estimate(accumulated(*changes)).memory[0]

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
    # Dropped gradients come as activations go in a lone micro-batch; a second one finds all of them there.
    dropped = "stack.drops_gradients=true"
    one, two = (use(*ALONE, dropped, f"training.global_batch_size={number}") for number in (1, 2))
    assert two.gradients - one.gradients == pytest.approx(one.activations + one.logits)


def test_a_pipeline_that_keeps_holds_what_stage_1_holds():
    """torch.distributed.pipelining reduces once a step: gathered 16-bit weights and whole fp32 gradients."""
    kept = estimate(accumulated(*PIPELINE, KEPT))
    first = estimate(accumulated(*PIPELINE, "plan.zero_stage=1", "stack.fp32_shards=false"))
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
    scenario = accumulated(*changes)
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
    dropped, kept = (accumulated(*changes, *more) for more in ((), (KEPT,)))
    sent = [step_traffic(each, 0.0).data for each in (dropped, kept)]
    assert sent[1] <= sent[0] * (1 + 1e-12)
    one, other = (estimate(each) for each in (dropped, kept))
    assert max(use.total for use in other.memory) >= max(use.total for use in one.memory) * (1 - 1e-12)
    if dropped.plan.pp == 1:
        assert other.step_time_s <= one.step_time_s * (1 + 1e-9)


def activations(*changes):
    of_530b = ["plan.schedule=1f1b", "plan.num_chunks=1", *changes]
    found = estimate(load_scenario("scenarios/korthikanti-2022/530b-full.yaml", of_530b)).memory
    return [use.activations for use in found]


def test_the_first_rank_keeps_one_for_every_micro_batch_in_flight_and_the_last_none():
    """Korthikanti et al. 2022, appendix B: 2 s b h p bytes on the first of p ranks."""
    kept, freed = (activations(f"stack.keeps_sent_activations={value}") for value in ("true", "false"))
    each = 2 * 2048 * 20480
    assert [more - less for more, less in zip(kept, freed, strict=True)] == pytest.approx(
        [each * (35 - rank) for rank in range(34)] + [0]
    )


QWEN3 = {
    "model": "qwen3-0.6b",
    "cluster": {"node": "rtx-a6000-8", "num_nodes": 1, "name": "one node"},
    "stack": {"framework": "prime-rl", "version": "2026-06-24"},
    "plan": {"dp": 1, "microbatch_size": 1, "recompute": "full"},
    "training": {"global_batch_size": 2, "sequence_length": 65536},
}
GIB = 2**30


def largest_of_qwen3(dp=1, length=65536, **stack):
    changes = [f"plan.dp={dp}", f"training.global_batch_size={2 * dp}", f"training.sequence_length={length}"]
    return estimate(build_scenario(QWEN3, changes + [f"stack.{name}={value}" for name, value in stack.items()])).largest


# PrimeIntellect-ai/prime-rl:benchmarks/baselines@559b44772e of 24 June 2026, reserved on one RTX A6000 and on four. [GiB]
@pytest.mark.parametrize(("dp", "peak_gib"), [(1, 11.73), (4, 6.299)])
def test_published_peaks_of_prime_rl(dp, peak_gib):
    assert largest_of_qwen3(dp).reserved == pytest.approx(peak_gib * GIB, rel=0.05)


def test_on_one_gpu_the_update_is_what_needs_most():
    """Weights, gradients, two moments and the roots of one: 20 bytes a parameter, and nothing of the backward."""
    use, params = largest_of_qwen3(), 596_049_920
    held = use.weights + use.gradients + use.optimizer + use.activations + use.logits + use.working
    assert held == pytest.approx(20 * params, rel=1e-3)
    assert largest_of_qwen3(update_temporaries=0).allocated < use.allocated
    # On four the backward's activations need more than what the update would.
    assert largest_of_qwen3(4, update_temporaries=0) == largest_of_qwen3(4)


@given(dp=st.sampled_from([1, 2, 4, 8]), length=st.sampled_from([1024, 8192, 65536]), copies=st.integers(0, 2))
def test_waiting_takes_the_larger_of_two_moments(dp, length, copies):
    scenario = build_scenario(
        QWEN3,
        [
            f"plan.dp={dp}", f"training.global_batch_size={2 * dp}", f"training.sequence_length={length}",
            f"stack.update_temporaries={copies}",
        ],
    )  # fmt: skip
    waits = estimate(scenario).largest
    stays = estimate(scenario.replace(plan=scenario.plan.replace(optimizer_offload=0.0))).largest
    moments = stays.optimizer - waits.optimizer
    backward = stays.total - moments
    assert waits.total <= stays.total
    assert waits.total >= backward * (1 - 1e-9) or copies  # without it the backward alone needs so much
    at_update = waits.weights + waits.gradients + waits.optimizer + moments + copies * moments / 2
    assert waits.allocated >= at_update * (1 - 1e-9)
