"""The search of layered plans: bounds that hold, and the plan that trying every one would find."""

from itertools import product

import numpy as np
import pytest
from asked import asked
from rows import rows

from sim.errors import SpecError
from sim.estimate import estimate
from sim.scaling.step_times import confirm
from sim.search.by_schedule import layered_plans
from sim.specs import ParallelPlan


def small(cluster="selene", stack="lamy-poirier", batch=16, plan=None, **model):
    shape = {"name": "small", "num_layers": 8, "hidden_size": 2048, "num_heads": 16, "vocab_size": 51200} | model
    return asked(shape, cluster, plan or {}, stack=stack, profile="a100", batch=batch, sequence=1024)


GROUPS = {"dp": 4, "sharding_group": 4, "zero_stage": 3, "reshard_after_forward": False}
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_intermediate_size": 1024, "gated_mlp": True, "bias": False}
UNLIKE = {"num_layers": 7, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}
CUT = {"tp": 2, "etp": 2, "sequence_parallel": True}
BOUNDED = [  # cluster, stack, model, plan, what the bound is of the step of most plans
    ("ethernet-25", "lamy-poirier", {}, {}, 0.97),
    ("selene", "megatron-core", {}, {}, 0.97),
    ("ethernet-25", "llama3", {}, {}, 0.97),
    ("selene", "lamy-poirier", {}, {"placement": "pp-tp-cp-dp"}, 0.9),  # of few links it is known where they are
    ("ethernet-25", "megatron-core", {}, GROUPS, 0.9),  # mostly traffic at visits, which the bound knows less well
    ("ethernet-25", "megatron-core", EXPERTS | {"num_layers": 7, "num_dense_layers": 2, "num_mtp_layers": 1}, {}, 0.0),
    ("selene", "megatron-core", EXPERTS | UNLIKE, CUT, 0.0),
    ("ethernet-25", "megatron-core", UNLIKE | {"tied_embeddings": True}, {"head_as_layer": True}, 0.0),
    ("ethernet-25", "megatron-core", EXPERTS | {"num_layers": 9}, GROUPS, 0.0),
]


@rows(("cluster", "stack", "model", "plan", "typical"), BOUNDED)
def test_no_step_is_shorter_than_its_bound(cluster, stack, model, plan, typical):
    """Of plans under context parallelism too, and over the experts' degrees."""
    scenario = small(cluster, stack, plan=plan, **model)
    table = layered_plans(scenario, gpus=(2, 32), fixed={"cp": (1, 2)})
    columns = table.space.columns
    replicas = (columns.dp * columns.cp)[table.prices.row]
    assert (replicas % plan.get("sharding_group", 1) == 0).all()
    assert {*columns.cp[table.prices.row].tolist()} == {1, 2}
    assert {*columns.ep[table.prices.row].tolist()} == ({1, 2, 4, 8} if scenario.model.num_experts else {1})
    some = np.random.default_rng(0).choice(len(table.prices), 8, replace=False)
    answers = [estimate(table.scenario_at(int(place))) for place in some]
    ratios = table.prices.step_time_s[some] / [answer.step_time_s for answer in answers]
    assert ratios.max() <= 1.0 + 1e-9
    assert np.median(ratios) > typical
    assert table.prices.memory_bytes[some] == pytest.approx([answer.largest.total for answer in answers], rel=1e-9)
    cut = [answer.scenario.plan for answer in answers] if scenario.plan.etp > 1 else []
    assert all(each.etp == each.tp for each in cut)


def plans_by_hand(scenario, gpus):
    """Every layered plan on so many GPUs, by the rules of the records alone: those that go together."""
    model, batch = scenario.model, scenario.training.global_batch_size
    degrees, found = (1, 2, 4, 8), []
    for tp, cp, dp, ep, sp, zero in product(degrees, (1, 2), degrees, degrees, (False, True), range(4)):
        if gpus % (tp * cp * dp) or (zero and dp * cp == 1 and (ep == tp or not model.num_experts)):
            continue
        pp = gpus // (tp * cp * dp)
        rounds = -(-model.num_layers // pp)
        for chunks, size in product(range(2, rounds + 1), (1, 2, 4, 8)):
            whole = model.num_layers % pp == 0
            if batch % (dp * size) or batch // (dp * size) < pp or (whole and rounds % chunks):
                continue
            modular = chunks == rounds
            plan = {
                "tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "num_chunks": chunks, "microbatch_size": size,
                "zero_stage": zero, "sequence_parallel": sp, "recompute": "full", "uneven_layers": not (whole or modular),
                "schedule": "modular" if modular else "breadth_first",
            }  # fmt: skip
            try:
                found.append(scenario.replace(plan=ParallelPlan(**plan)))
            except (SpecError, ValueError):
                continue
    return found


@pytest.mark.parametrize(
    ("cluster", "model"),
    [
        ("selene", {"num_layers": 5}),
        pytest.param("ethernet-25", EXPERTS | {"num_layers": 5, "num_dense_layers": 1}, marks=pytest.mark.thorough),
    ],
    ids=["dense", "experts"],
)
def test_the_best_is_the_best_of_all_plans_by_hand(cluster, model):
    """Uneven rounds, context and expert parallelism: every plan of eight GPUs, run."""
    scenario = small(cluster, "megatron-core", batch=8, plan={"uneven_layers": True}, **model)
    table = layered_plans(scenario, gpus=(8, 8), fixed={"cp": (1, 2), "recompute": "full"})
    by_hand = plans_by_hand(scenario, 8)
    assert table.plans_priced == len(by_hand)
    answers = [estimate(each) for each in by_hand]
    fit = {answer.scenario.plan: answer.step_time_s for answer in answers if answer.fits}
    rows = {table.scenario_at(place).plan: place for place in range(len(table.prices))}
    assert rows.keys() == fit.keys()
    assert any(plan.schedule == "modular" and plan.num_stages > 5 for plan in fit)
    best, runs = confirm([table], 8)
    assert best.step_time_s == pytest.approx(min(fit.values()), rel=1e-9)
    assert runs < len(fit) / 4
