"""Updates that the host launches for every tensor by itself: Megatron-LM of 2019."""

import pytest

from sim import estimate, load_scenario
from sim.files import SCENARIOS
from sim.work.sums import held_blocks, num_tensors

V100 = SCENARIOS / "megatron-2019-1.2b-1-v100.yaml"


def test_a_layer_of_a_gpt_has_twelve_tensors():
    """Two norms with gain and bias, and four matrices with biases, of which query, key and value are one."""
    embedding, head, layer, _ = held_blocks(load_scenario(V100).model)
    assert [num_tensors(block.operations) for block in (layer, embedding, head)] == [12, 2, 3]


def test_an_update_takes_its_launches_however_few_parameters_a_gpu_holds():
    launched = 8 * 50e-6 * (40 * 12 + 4)
    for tp in (2, 8):
        scenario = load_scenario(V100, [f"plan.tp={tp}", f"cluster.node.gpus_per_node={tp}"])
        assert estimate(scenario).breakdown.seconds["optimizer"] == pytest.approx(launched, rel=0.01)
        fused = scenario.replace(stack=scenario.stack.replace(tensor_launches=0))
        assert estimate(fused).breakdown.seconds["optimizer"] < launched
        assert estimate(fused).step_time_s < estimate(scenario).step_time_s
