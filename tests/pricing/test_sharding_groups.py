"""ZeRO within groups that hold copies of each other's shards: between one group of all and every GPU for itself."""

import numpy as np
import pytest
from counts import layer_expert_params
from open_space import search

from sim import build_scenario, estimate
from sim.costs.collectives import all_reduce, reduce_scatter
from sim.errors import InfeasiblePlan
from sim.pricing.cells import plans_of
from sim.pricing.zero import move_seconds, reduced_to_shards
from sim.traffic.exchanges import step_collectives, step_traffic
from sim.work.sums import total_params

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
