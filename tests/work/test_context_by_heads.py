"""Context parallelism by heads and by a ring: what both carry and move, what they leave as it is, and who can have it."""

import pytest
from counts import attention_core
from open_space import search

from sim.errors import InfeasiblePlan
from sim.specs import ModelSpec, StackSpec, load_scenario
from sim.work.pieces import Cut

MODEL = ModelSpec(num_layers=4, hidden_size=4096, num_heads=32, num_kv_heads=8, vocab_size=32000, position="rotary")


def cut(cp, **changes):
    return Cut(**{"tp": 2, "cp": cp, "microbatch_size": 1, "sequence_length": 8192, "sequence_parallel": False, **changes})  # fmt: skip


def core(by_heads, cp, **changes):
    return attention_core(MODEL, StackSpec(context_by_heads=by_heads, kernel_launch_s=0.0), cut(cp, **changes))


@pytest.mark.parametrize("cp", [2, 4])
def test_a_rank_hands_out_what_it_has_of_each_tensor(cp):
    work = core(True, cp)
    held = {"queries": 16, "keys": 4, "values": 4, "outputs": 16}  # heads of a tensor-parallel rank, 128 columns each
    for phase in (work.forward, work.input_grad):
        assert [item.kind for item in phase.collectives] == ["all_to_all"] * 4
        assert [item.nbytes for item in phase.collectives] == [2 * 8192 / cp * heads * 128 for heads in held.values()]
        assert not any(item.overlapped for item in phase.collectives)


def test_two_steps_of_a_ring_move_what_is_counted_by_hand():
    work = core(False, 2)
    (there,), (back,) = (
        [item for item in phase.operations if item.name.startswith("steps of the ring")]
        for phase in (work.forward, work.input_grad)
    )
    held, heads, shared = (
        2 * 8192 / 2,
        16 * 128,
        2 * 4 * 128,
    )  # bytes of a column, columns of queries, of keys and values
    # Scale the first output, add the other one; join keys and values, lay out half of those that come.
    assert there.nbytes == held * (2 * heads + 3 * heads + 2 * shared + shared)
    # Copy and add the queries' gradients; the ring's keys, joins, a copy and a sum of the keys' gradients.
    assert back.nbytes == held * (2 * heads + 3 * heads + (2 + 2 + 2) * shared + (1 + 2 + 3) * shared)
    assert (there.kernels, back.kernels) == (10, 12)


def test_a_search_deals_heads_evenly_too(scenarios):
    scenario = load_scenario(scenarios / "megatron-2021" / "7.5b.yaml", ["stack.context_by_heads=true"])
    found = search(scenario, fixed={"cp": (1, 2, 4)})
    plans = [each.scenario.plan for each in found.best]
    assert all(scenario.model.num_heads % (plan.tp * plan.cp) == 0 for plan in plans)
    with pytest.raises(InfeasiblePlan, match="deals 32 heads"):
        search(scenario, fixed={"cp": 64})
