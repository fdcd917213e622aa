"""Hooks of DeepSpeed's stage 3 around experts that a loop visits one by one."""

import pytest
from asked import asked

from sim import estimate
from sim.pricing.zero import HOOK_LAUNCHES

LAYERS = 4


def scenario(version, zero_stage=3, recompute="full", **stack):
    model, cluster = {"preset": "qwen3-30b-a3b", "num_layers": LAYERS}, {"preset": "superpod-a100", "num_nodes": 2}
    plan = {"dp": 16, "ep": 1, "zero_stage": zero_stage, "microbatch_size": 1, "recompute": recompute}
    return asked(
        model, cluster, plan, stack={"framework": "deepspeed", "version": version, **stack}, batch=16, sequence=2048
    )


def step_s(*args, **changes):
    return estimate(scenario(*args, **changes)).step_time_s


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("full", 2)])
def test_each_weight_of_a_looped_expert_takes_its_hooks(recompute, forwards):
    """Three weights an expert, 128 experts; a recomputation runs the forward's hooks again."""
    stack = scenario("2025-04").stack
    forward, backward = HOOK_LAUNCHES
    hooks = forwards * forward * stack.kernel_launch_s + backward * stack.backward_launch_s
    looped, at_once = (
        step_s("2025-04", recompute=recompute, gathers_per_layer=pieces) for pieces in (stack.gathers_per_layer, 1)
    )
    assert looped - at_once == pytest.approx(LAYERS * 128 * 3 * hooks, rel=0.01)
