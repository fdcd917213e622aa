"""Many plans at once cost what each costs alone, and the space holds exactly the plans that the rules allow."""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from asked import asked
from hypothesis import settings
from open_space import price_all
from rows import forms

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.pricing.deal import stages_alike
from sim.search.by_schedule import spaces_under
from sim.search.fields import RECOMPUTES
from sim.search.space import Category, build_space
from sim.specs import load_scenario
from sim.specs.hardware import NetworkSpec

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = (
    "gpt3-175b-4096-a100",
    "gpt-1t-3072-a100",
    "megatron-2021/1.7b",
    "megatron-2021/1008b",
    "korthikanti-2022/22b-selective",
    "korthikanti-2022/1t-full",
)
STACKS = ("megatron-core", "megatron-2019", "deepspeed-zero3")
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward")
OVERLAPPING = [dict(zip(OVERLAPS, flags, strict=True)) for flags in product((False, True), repeat=len(OVERLAPS))]
KINDS = list(product(RECOMPUTES, range(4)))


def chosen(plan, turn):
    """Five categories: a third of the ways to recompute and ZeRO stages, each time others."""
    return [Category.of(plan, *kind) for kind in KINDS[turn % 3 :: 3]]


def test_modules_of_the_scenario_are_what_selective_recomputes():
    """Alone and among many, in the space's plans and in the rank of a plan."""
    base = load_scenario(SCENARIOS / "gpt3-175b-4096-a100.yaml")
    plan = base.plan.replace(recompute="selective", recompute_modules=("mlp", "core_attn"))
    gaps, _ = differences(base.replace(plan=plan), (64, 64), 1)
    assert gaps.max() < 1e-9
    space = build_space(base.replace(plan=plan), (64, 64))
    chosen = next(each for each in space.categories if each.recompute == "selective")
    assert set(space.scenario_of(0, chosen).plan.recompute_modules) == {"mlp", "core_attn"}


PLANS = 2 if settings().max_examples > 100 else 1
"""Random plans of a category: more of them where laws draw more examples too (--hypothesis-profile=thorough)."""


def differences(scenario, gpus, turn, **options):
    """Largest relative differences in time and memory from one-by-one estimates of random plans of each category.

    Times of pipelines are bounds, so that they differ by what they are above the exact ones, or by all if far below.
    """
    random, wanted = np.random.default_rng(turn), tuple(chosen(scenario.plan, turn))
    scenario = scenario.replace(stack=scenario.stack.replace(**OVERLAPPING[5 * turn % len(OVERLAPPING)]))
    space = replace(build_space(scenario, gpus, **options), categories=wanted)
    worst, met = np.zeros(2), []
    for which, rows, seconds, needed in price_all(space):
        for place in random.integers(len(rows), size=PLANS).tolist():
            alone = estimate(space.scenario_of(int(rows[place]), wanted[which]))
            apart = (seconds[place] / alone.step_time_s - 1, needed[place] / alone.largest.total - 1)
            plan = alone.scenario.plan
            if not stages_alike(scenario.model, plan, plan.pp, plan.num_chunks):
                # Several kinds of layers, unevenly met: a bound of the time, and of the memory from above.
                assert -0.35 < apart[0] < 1e-9, plan
                assert -1e-9 < apart[1] < 0.35, plan
                continue
            near = plan.pp > 1 and apart[0] > -0.1
            worst = np.maximum(worst, np.abs((max(apart[0], 0.0) if near else apart[0], apart[1])))
            met.append(alone.scenario.plan.ep)
    assert len(met) >= PLANS * len(wanted) * (0.4 if len(scenario.model.layer_kinds) > 1 else 1)
    assert len(set(met)) > 1 or not scenario.model.num_experts
    return worst


def small(model=None, plan=None, stack="megatron-core"):
    """A model of twelve layers on up to 64 A100, whose nodes pipelines and tensor groups may straddle."""
    shape = {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 51200, **(model or {})}
    stack = {"preset": stack, "overlap_grad_reduce": True}
    return asked(
        shape, "selene", {"dp": 2, **(plan or {})},
        stack=stack, profile="a100", batch=48, sequence=1536, precision="fp16",
    )  # fmt: skip


EXPERTS = {"num_experts": 12, "experts_per_token": 2, "expert_intermediate_size": 768, "gated_mlp": True}
DEALT = {"embedding_as_layer": True, "head_as_layer": True}
MIXTURES = {
    "mixtral": (EXPERTS, {}),
    "odd": (EXPERTS | {"bias": False, "num_experts": 45}, {}),
    "deepseek": (
        EXPERTS | {"num_layers": 10, "num_dense_layers": 1, "shared_expert_intermediate_size": 768, "bias": False,
                   "key_value_rank": 128, "query_rank": 192, "head_dim": 96, "rotary_head_dim": 32, "value_head_dim": 64},
        DEALT,
    ),
}  # fmt: skip


SHARDED = {"dp": 4, "zero_stage": 3, "sharding_group": 4}
MODELS = {**MIXTURES, "dense": ({}, {}), "sharded": ({}, SHARDED)}
FEW_CABLES = {"leaf": {"ports": 40, "below": 2, "oversubscription": 4}, "core": {"ports": 8000}}
"""Four cables down for one up."""


def behind_few_cables(scenario, nodes, fragmentation=0.0, **tree):
    network = NetworkSpec.read({"rail_optimised": False, "levels": FEW_CABLES, **tree}, "network")
    cluster = scenario.cluster.replace(num_nodes=nodes, fragmentation=fragmentation, network=network)
    return scenario.replace(cluster=cluster)


def cases():
    """(name, scenario, most and fewest GPUs, context-parallel degrees) of every kind of layout and model."""
    for file in FILES:
        scenario = load_scenario(SCENARIOS / f"{file}.yaml")
        yield file, scenario, (scenario.plan.num_gpus,) * 2, (1, 4)
    # Tensor degrees of 3 and 6 straddle nodes of eight; dropout and dealt heads make the outer stages differ.
    shapes = {"plain": {}, "dropout": {"model": {"dropout": 0.1}}, "untied": {"model": {"tied_embeddings": False}},
              "as layers": {"model": {"num_layers": 10}, "plan": DEALT}}  # fmt: skip
    for (shape, changes), stack in zip(shapes.items(), (*STACKS, STACKS[0]), strict=True):
        yield f"{shape} {stack}", small(**changes, stack=stack), (1, 48), (1, 3)
    for name, (model, plan) in MIXTURES.items():  # degrees across nodes, and over other tensor-parallel groups
        yield name, small(model=model, plan=plan), (1, 48), (1, 2)
    model, plan = MIXTURES["mixtral"]
    for routing in ("adaptive", "ecmp"):  # every layout has shares of its own, of cards that its groups and sends use
        yield routing, behind_few_cables(small(model=model, plan=plan), 8, routing=routing), (16, 32), (1, 2)
    # On a tree of few cables whose nodes are scattered: links that leave a node stand anywhere in a pipeline.
    for number, placement in enumerate(("tp-cp-pp-dp", "pp-tp-dp-cp", "dp-pp-cp-tp")):
        for name in (list(MODELS)[number], list(MODELS)[-1 - number]):
            model, plan = MODELS[name]
            scenario = small(model=model, plan={**plan, "placement": placement})
            yield f"{placement} {name}", behind_few_cables(scenario, 16, 0.5), (1, 16), (1, 2)
    # Groups that shard, with weights kept and dropped.
    for name, kept in (("mixtral", True), ("deepseek", False), ("dense", True)):
        model, plan = MODELS[name]
        own = {"reshard_after_forward": not kept}
        yield f"groups {name} {kept}", small(model=model, plan={**plan, **SHARDED, **own}), (1, 48), (1, 2)
    on_h100 = partial(asked, cluster="superpod-h100", plan={}, batch=96, sequence=8192)
    for preset in ("deepseek-v3-16b", "qwen3-30b-a3b", "gpt-oss-120b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b"):
        yield preset, on_h100(preset), (96, 96), (1,)
    yield "multi-token prediction", on_h100({"preset": "deepseek-v3-16b", "num_mtp_layers": 1}), (96, 96), (1,)
    yield "adapters", on_h100("llama3-8b", adapter_rank=16), (96, 96), (1,)


@pytest.mark.slow
@forms("some", (3, 12, 21, 30), range(100))
def test_prices_equal_estimates(some):
    """Of random plans of every case and category, memory and times without a pipeline to 1e-9; no time is above."""
    found = {}
    for turn, (name, scenario, gpus, context) in enumerate(cases()):
        if turn in some:
            found[name] = differences(scenario, gpus, turn, fixed={"cp": context}).max()
    assert {name: apart for name, apart in found.items() if not apart < 1e-9} == {}


@pytest.mark.parametrize("number", [0, 10])
def test_prices_of_layers_that_no_pipeline_divides(number):
    """29 layers on 2 to 16 ranks, some of which hold one more: never above the exact step, and the same memory."""
    scenario, random = small(model={"num_layers": 29, "dropout": 0.1}), np.random.default_rng(number)
    scenario = scenario.replace(stack=scenario.stack.replace(**OVERLAPPING[number]))
    space = replace(build_space(scenario, (8, 64), fixed={"cp": (1, 2)}), categories=tuple(chosen(scenario.plan, 0)))
    apart = []
    for which, rows, seconds, needed in price_all(space):
        place = random.integers(len(rows))
        alone = estimate(space.scenario_of(int(rows[place]), space.categories[which]))
        assert needed[place] == pytest.approx(alone.largest.total, rel=1e-9)
        apart += [seconds[place] / alone.step_time_s] if alone.scenario.plan.uneven_layers else []
    assert len(apart) > 3
    assert max(apart) <= 1 + 1e-9
    assert min(apart) > 0.9
    assert np.median(apart) > 0.999


VARIANTS = ("zb_v", "dualpipe", "hanayo", "zb_interleaved", "modular")


@pytest.mark.parametrize("model", [{}, {**EXPERTS, "bias": False}, {**EXPERTS, "bias": False, "num_dense_layers": 3}])
def test_space_holds_what_the_rules_allow(model):
    """A plan of random numbers is in the space, and in those of other schedules, exactly where it can be estimated."""
    scenario, random = small(model=model), np.random.default_rng(3)
    whole = build_space(scenario, (1, 64), fixed={"cp": (1, 2, 3)})
    choices = {
        "tp": (1, 2, 3, 4, 5, 6), "cp": (1, 2, 3), "pp": (1, 2, 3, 4, 5), "dp": (1, 2, 3, 5, 8),
        "ep": (1, 1, 2, 3, 4, 6, 8, 12) if model else (1,), "microbatch_size": (1, 2, 3, 7),
        # Chunks of different kinds of layers are not in the space: another search has them.
        "num_chunks": (1,) if "num_dense_layers" in model else (1, 1, 2, 3), "sequence_parallel": (False, True),
    }  # fmt: skip
    for space in (whole, *(spaces_under(whole, name)[0] for name in VARIANTS if not model)):
        rows = zip(*(getattr(space.columns, name).tolist() for name in (*choices, "schedule")), strict=True)
        allowed = {(*numbers, space.schedules[kind]) for *numbers, kind in rows}
        seen = {True: 0, False: 0}
        for _ in range(1000 if model else 400):
            numbers = {name: random.choice(values).item() for name, values in choices.items()}
            if numbers["tp"] * numbers["cp"] * numbers["pp"] * numbers["dp"] > 64:
                continue
            numbers["schedule"] = random.choice(space.schedules).item()
            try:
                estimate(scenario.replace(plan=scenario.plan.replace(**numbers)))
                feasible = True
            except FlopcastError:
                feasible = False
            # Without a pipeline all orders but layered ones are that of 1F1B, or keep more. Rounds here are complete.
            name, stages = numbers["schedule"], numbers["pp"] * numbers["num_chunks"]
            alone = numbers["pp"] == 1 and name != "1f1b" and (name != "modular" or stages == 1)
            searched = feasible and not alone and (name != "modular" or stages == scenario.model.num_layers)
            assert (tuple(numbers.values()) in allowed) is searched, numbers
            seen[feasible] += 1
        assert seen[True] > (0 if len(space.schedules) == 1 else 20)
        assert seen[False] > 20
