"""Messages that share links are never faster for it, and no loss is counted twice."""

import pytest

from sim import estimate, load_scenario, simulate
from sim.pricing.layouts import cost_model
from sim.schedules import get_schedule, schedule_names
from sim.specs.hardware import LevelSpec, NetworkSpec
from sim.work.sums import total_params

SMALL = ["plan.pp=8", "plan.dp=3", "training.global_batch_size=96"]
CORE = LevelSpec(ports=8000)


def on_tree(scenario, oversubscription=1.0, routing="adaptive", rails=True):
    leaf = LevelSpec(ports=40, below=2, oversubscription=oversubscription)
    network = NetworkSpec(levels={"leaf": leaf, "core": CORE}, rail_optimised=rails, routing=routing)
    return scenario.replace(cluster=scenario.cluster.replace(network=network))


@pytest.fixture(scope="module")
def small(scenarios):
    return load_scenario(scenarios / "gpt-1t-3072-a100.yaml", SMALL)


@pytest.mark.parametrize("name", [name for name in schedule_names()[::3] if not get_schedule(name).asynchronous])
def test_no_schedule_with_a_flush_is_refused(small, name):
    chosen = get_schedule(name)
    chunks = chosen.chunks if isinstance(chosen.chunks, int) else 2 if chosen.interleaves else 1
    chunks = 16 if name == "modular" else chunks  # a layer each
    slices = 2 if "slices" in chosen.options else 1
    plan = small.plan.replace(schedule=name, num_chunks=chunks, sequence_slices=slices)
    asked = on_tree(small.replace(plan=plan), 4.0)
    alone, played = estimate(asked).step_time_s, simulate(asked, contention=True).mean_s
    assert alone * (1 - 1e-9) <= played < 1.2 * alone


def test_a_fabric_measured_in_use_does_not_pay_twice(small):
    """Its own efficiencies are 14 % of the cards; links still carry what the profile's network reaches."""
    slow = small.replace(cluster=small.cluster.replace(network_efficiency=0.14, network_shared_efficiency=0.14))
    assert cost_model(slow).fabric.best_share == small.profile.network.efficiency
    assert simulate(slow, contention=True).mean_s == pytest.approx(estimate(slow).step_time_s, rel=1e-9)


def test_gradients_of_experts_cross_nodes_by_every_card(scenarios):
    """A GPU's experts have their copies at the same place of other nodes, so their rings use its own card in full.

    Everything else is in rings over all replicas, of which a node's eight cards carry one together.
    """
    settings = ["plan.pp=1", "plan.num_chunks=1", "plan.tp=1", "plan.ep=8", "plan.dp=32", "plan.schedule=1f1b"]
    settings += ["training.global_batch_size=32", "plan.pipeline_layout=", "plan.sequence_parallel=false"]
    asked = load_scenario(scenarios / "qwen3-235b-a22b-256-h100.yaml", settings)
    carried = {(row["level"], row["direction"]): row["bytes"] for row in simulate(asked, contention=True).levels}
    model, width = asked.model, 4 + 2  # gradients reduced in fp32, weights gathered in bf16
    experts = model.num_layers * 3 * model.hidden_size * model.expert_intermediate_size * model.num_experts
    others = total_params(model) - experts
    sent = width * (experts / 8 * 3 / 4 + others * 31 / 32 / 8)
    assert asked.stack.gradient_precision == "fp32"
    assert carried["nic", "up"] == pytest.approx(32 * sent, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "gpt3-175b-4096-a100",
        "korthikanti-2022/22b-selective",
        "megatron-2019-1.2b-1-v100",
        pytest.param("x160-38640-a100", marks=pytest.mark.thorough),
    ],
)
def test_a_group_does_not_meet_itself(scenarios, name):
    """Collectives that compute waits for and those beside it, on one GPU or on many, one after the other; but for the
    moments at which two kinds meet on a card."""
    scenario = load_scenario(scenarios / f"{name}.yaml")
    alone = estimate(scenario).step_time_s
    assert simulate(scenario, contention=True).mean_s == pytest.approx(alone, rel=1e-4)
