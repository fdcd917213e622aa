"""The search of layered plans: bounds that hold, and the plan that trying every one would find."""

import numpy as np
import pytest

from sim.estimate import estimate
from sim.search.layered import best_of, layered_table
from sim.specs import build_scenario


def small(cluster="selene", stack="lamy-poirier", batch=16, plan=None, **model):
    shape = {"name": "small", "num_layers": 8, "hidden_size": 2048, "num_heads": 16, "vocab_size": 51200} | model
    return build_scenario(
        {
            "model": shape,
            "cluster": cluster,
            "plan": plan or {},
            "training": {"global_batch_size": batch, "sequence_length": 1024, "precision": "bf16"},
            "stack": stack,
            "profile": "a100",
        }
    )


GROUPS = {"dp": 4, "sharding_group": 4, "zero_stage": 3, "reshard_after_forward": False}


@pytest.mark.parametrize(
    ("cluster", "stack", "plan", "typical"),
    [
        ("selene", "lamy-poirier", {}, 0.97),
        ("ethernet-25", "lamy-poirier", {}, 0.97),
        ("selene", "megatron-core", {}, 0.97),
        ("ethernet-25", "llama3", {}, 0.97),
        ("selene", "lamy-poirier", {"placement": "pp-tp-cp-dp"}, 0.9),  # of few links it is known where they are
        ("ethernet-25", "megatron-core", GROUPS, 0.94),  # mostly traffic at visits, which the bound knows less well
    ],
)
def test_no_step_is_shorter_than_its_bound(cluster, stack, plan, typical):
    table = layered_table(small(cluster, stack, plan=plan), gpus=(2, 64))
    assert (table.rows.dp % plan.get("sharding_group", 1) == 0).all()
    some = np.random.default_rng(0).choice(len(table.rows), 25, replace=False)
    answers = [estimate(table.scenario_at(int(place))) for place in some]
    ratios = np.array([table.bound_s[place] / answer.step_time_s for place, answer in zip(some, answers, strict=True)])
    assert ratios.max() <= 1.0 + 1e-9
    assert np.median(ratios) > typical
    needed = np.array([answer.largest.total for answer in answers])
    assert table.memory_bytes[some] == pytest.approx(needed, rel=0.05)
    assert (table.memory_bytes[some] <= needed * (1 + 1e-9)).all()


@pytest.mark.parametrize("cluster", ["selene", "ethernet-25"])
def test_pruning_finds_what_trying_all_finds(cluster):
    scenario = small(cluster)
    space = {"recomputes": ("full",), "sequence_parallel": (False,), "tensor": (1, 2), "pipeline": (2, 4)}
    table = layered_table(scenario, gpus=(16, 16), batches=(16, 24), **space)
    share = 1.0 / table.rows.batch
    everything = [estimate(table.scenario_at(place)) for place in range(len(table.rows))]
    worth = np.array([answer.step_time_s for answer in everything]) * share
    found, run = best_of(table, table.bound_s * share, lambda place: share[place], top=3)
    assert len(everything) > 80
    assert run < len(everything) / 4
    best = sorted(worth[[answer.fits for answer in everything]])[:3]
    assert [each.step_time_s / each.scenario.training.global_batch_size for each in found] == pytest.approx(best)


def test_layered_schedules_only_and_a_layer_a_stage_is_modular():
    table = layered_table(small(), gpus=(4, 4))
    plans = [table.scenario_at(place).plan for place in range(0, len(table.rows), 37)]
    assert {plan.schedule for plan in plans} == {"modular", "breadth_first"}
    assert all((plan.num_stages == 8) == (plan.schedule == "modular") for plan in plans)
    assert all(plan.num_gpus == 4 for plan in plans)
    counts = table.rows.num_microbatches
    assert (counts >= table.rows.pp).all()


def test_host_memory_makes_room():
    scenario = small()
    here, there = (layered_table(scenario, gpus=(8, 8), offloaded_layers=layers) for layers in (0, 8))
    assert there.memory_bytes.mean() < here.memory_bytes.mean()
    assert estimate(there.scenario_at(0)).largest.total == pytest.approx(there.memory_bytes[0], rel=0.05)
