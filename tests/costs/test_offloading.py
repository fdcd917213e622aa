"""Offloading: what copies to the host and updates on its processors take, and what they free."""

import pytest

from sim import estimate
from sim.costs.block import COPY_SHARE, Host
from sim.specs import build_scenario
from sim.work.optimizer import host_update, state_bytes

QWEN3 = {  # Qwen3 30B on two nodes of H100, as Megatron-Bridge's card on offloading has it; batch and length are not in it
    "model": "qwen3-30b-a3b",
    "cluster": {"node": "dgx-h100", "num_nodes": 2, "name": "two nodes"},
    "training": {"global_batch_size": 16, "sequence_length": 2048, "precision": "bf16"},
    "plan": {"tp": 2, "pp": 2, "ep": 4, "dp": 4, "sequence_parallel": True, "zero_stage": 1},
    "stack": {"framework": "megatron-bridge"},
    "profile": "h100",
}
# NVIDIA-NeMo/Megatron-Bridge:skills/nemo-mbridge-perf-cpu-offloading/card.yaml@067f987df0: share on the CPU, step [s] and
# memory [GB]; the last with copies beside the update.
MEASURED = [
    (0.0, False, 0.996, 47.2),
    (0.25, False, 1.871, 43.4),
    (0.5, False, 2.484, 39.6),
    (0.75, False, 3.187, 35.6),
    (1.0, False, 4.189, 32.0),
    (1.0, True, 3.877, 32.0),
]


def qwen3(share, beside=False, **plan):
    return build_scenario(
        QWEN3,
        [
            f"plan.optimizer_offload={share}",
            f"stack.overlap_optimizer_offload={str(beside).lower()}",
            *(f"plan.{name}={value}" for name, value in plan.items()),
        ],
        "qwen3",
    )


@pytest.mark.parametrize(("share", "beside", "step", "memory_gb"), MEASURED[1:])
def test_the_published_series_of_optimizers_on_the_host(share, beside, step, memory_gb):
    without, with_it = estimate(qwen3(0.0)), estimate(qwen3(share, beside))
    longer = with_it.step_time_s - without.step_time_s
    assert longer == pytest.approx(step - MEASURED[0][2], rel=0.12)
    freed = max(use.total for use in without.memory) - max(use.total for use in with_it.memory)
    assert freed / 1e9 == pytest.approx(MEASURED[0][3] - memory_gb, abs=0.25)


def test_an_update_on_the_host_by_hand():
    scenario = qwen3(1.0)
    training, stack = scenario.training, scenario.stack
    moved = host_update(1e9, 2e9, stack, training)
    assert moved == (4e9, 4e9, 28e9)
    there = stack.replace(offload_masters=True)
    assert host_update(1e9, 2e9, there, training)[1] == 2e9
    host = Host.of(scenario.cluster.node, scenario.profile)
    assert host.out_s(4e9) == pytest.approx(4 / (COPY_SHARE * 64))
    assert host.update_s(28e9, 0.5) == pytest.approx(28 / 38.4)
    # Moments leave, and masters where the stack sends them too.
    assert state_bytes(1, 2, training, stack, 0.5) == 8
    assert state_bytes(1, 2, training, there, 0.5) == 6
    assert state_bytes(1, 2, training, there, 1.0) == 0


def test_more_layers_on_the_host_never_take_less_time_and_always_less_memory():
    answers = [estimate(qwen3(0.0, offloaded_layers=layers)) for layers in (0, 12, 24, 48)]
    steps = [answer.step_time_s for answer in answers]
    assert steps == sorted(steps)
    kept = [max(float(use.activations) for use in answer.memory) for answer in answers]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < 0.1 * kept[0]
    # Every stage has its share of the layers that leave; the largest rank may be another with none left.
    gone = [kept[0] - each for each in kept]
    assert gone == pytest.approx([gone[-1] * layers / 48 for layers in (0, 12, 24, 48)], rel=0.005)
