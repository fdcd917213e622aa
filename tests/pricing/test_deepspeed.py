"""DeepSpeed's ZeRO stage 3: what that of 2021 gathers when, and hooks around experts that a loop visits one by one."""

import pytest
from asked import asked

from sim import build_scenario, estimate
from sim.pricing.cells import plans_of
from sim.pricing.zero import HOOK_LAUNCHES, gathered_after_recompute, hooked_s, regathers
from sim.traffic.exchanges import step_collectives
from sim.work.layers import FIRST_KIND
from sim.work.sums import layer_params

DATA = {
    "model": "gpt3-175b", "cluster": {"preset": "selene", "num_nodes": 48},
    "plan": {"dp": 384, "microbatch_size": 4, "zero_stage": 3, "recompute": "full"},
    "training": {"global_batch_size": 1536, "sequence_length": 2048, "precision": "fp16"},
    "stack": {"framework": "deepspeed", "version": "2021"}, "profile": "a100",
}  # fmt: skip


def built(*changes):
    return build_scenario(DATA, changes)


def of_layers(scenario):
    return gathered_after_recompute(scenario.model.layer_kinds[0], scenario.model, scenario.stack)


def test_what_a_recomputed_layer_gathers_a_third_time():
    """Of 12 h² the last matrix's 4 h² are used next, and stay; before those of the one before it come 8 h², 1.2 billion."""
    scenario = built()
    kept = 4 * 12288**2 / layer_params(scenario.model)
    assert of_layers(scenario) == pytest.approx(1 - kept)
    assert regathers(plans_of(scenario))[FIRST_KIND, 0] == pytest.approx(2 - kept)
    far = built("stack.max_reuse_params=1e12")
    assert regathers(plans_of(far))[FIRST_KIND, 0] == pytest.approx(1.0)
    plain = built("plan.recompute=none", "plan.microbatch_size=1")
    assert regathers(plans_of(plain))[FIRST_KIND, 0] == 1.0


def test_the_third_gather_is_counted_where_it_is_priced():
    def gathered(scenario):
        found = [item for item in step_collectives(scenario) if item.name == "gather weights"]
        return sum(item.count * item.nbytes for item in found)

    scenario, far = built(), built("stack.max_reuse_params=1e12")
    whole = 2 * 96 * layer_params(scenario.model)
    third = of_layers(scenario)
    assert gathered(scenario) - gathered(far) == pytest.approx(whole * third)
    assert estimate(scenario).step_time_s > estimate(far).step_time_s


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
    assert hooked_s(plans_of(scenario("2026-04")), 0) == 0.0  # a grouped multiply's experts are one tensor
