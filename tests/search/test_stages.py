"""Layouts of stages: the cut whose slowest stage is fastest, what is found is as fast as said, and nothing beats a bound."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from asked import asked
from hypothesis import given
from hypothesis import strategies as st
from open_space import search

from sim import estimate, load_scenario
from sim.errors import FlopcastError, SpecError
from sim.search.explain import rank_plan
from sim.search.stages import balance_layout, cut_evenly, layout_text, search_stages
from sim.specs.plan import layout_stages


def every_cut(count, stages):
    """All ways to cut so many blocks in a row: where each stage begins and ends."""
    return [tuple(pairwise((0, *cut, count))) for cut in combinations(range(1, count), stages - 1)]


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=9), st.integers(2, 9))
def test_the_cut_is_the_best_of_all(seconds, stages):
    stages = min(stages, len(seconds))
    sums = [[sum(seconds[begin:end]) for begin, end in cut] for cut in every_cut(len(seconds), stages)]
    found = [sum(seconds[begin:end]) for begin, end in pairwise((0, *cut_evenly(np.array(seconds), stages)))]
    best = min(map(max, sums))
    assert len(found) == stages
    assert max(found) == pytest.approx(best)
    as_good = [sum(each**2 for each in one) for one in sums if max(one) <= best * (1 + 1e-9)]
    assert sum(each**2 for each in found) == pytest.approx(min(as_good))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=12))
def test_layouts_are_written_short_and_read_back(layers):
    stages = [f"E{'t' * layers[0]}", *("t" * number for number in layers[1:-1]), f"{'t' * layers[-1]}L"]
    assert layout_stages(layout_text(stages)) == tuple(stages)
    assert layout_stages(layout_text(["t"] * len(layers))) == ("t",) * len(layers)


def test_the_balanced_layout_of_deepseek_v3(scenarios):
    """Three layers without experts in front; behind, a module of multi-token prediction and the head, which take as long as
    four layers."""
    file, words = scenarios / "papers" / "deepseek-v3-2048-h800.yaml", ["plan.schedule=1f1b"]
    found = balance_layout(load_scenario(file, words))
    assert found.layout.startswith("Et*5|")
    assert found.layout.endswith("mL")
    assert found.bound_s <= found.answer.step_time_s < 0.8 * found.before.step_time_s
    typed = [*words, "plan.uneven_layers=false", f"plan.pipeline_layout={found.layout}"]
    assert estimate(load_scenario(file, typed)).step_time_s == found.answer.step_time_s
    with pytest.raises(SpecError, match=r"plan\.pp is 1; set it above 1"):
        balance_layout(small())


def small(num_layers=4, **plan):
    """A model whose head is as heavy as layers, on few GPUs."""
    model = {"num_layers": num_layers, "hidden_size": 1024, "num_heads": 16, "vocab_size": 128000, "gated_mlp": True,
             "tied_embeddings": False}  # fmt: skip
    return asked(model, "superpod-h100", {"dp": 4, **plan}, profile="h100", batch=8, sequence=2048)


def step_times(scenarios):
    """Steps of scenarios whose plans can be run and fit, by plan."""
    found = {}
    for scenario in scenarios:
        try:
            answer = estimate(scenario())
        except FlopcastError:
            continue
        found |= {answer.scenario.plan: answer.step_time_s} if answer.fits else {}
    return found


def test_no_layout_goes_below_the_bound():
    """Every layout of every plan, one by one: none beats the bound, and none of the best plans' is faster."""
    scenario, row = small(), "EttttL"
    even = search(scenario, top=3)
    found = search_stages(even)
    assert found.stages.found.runs
    plans = [even.scenario_at(place).plan for place in range(even.plans_priced)]
    layouts = [
        plan.replace(uneven_layers=False, pipeline_layout="|".join(row[begin:end] for begin, end in cut))
        for plan in plans
        if plan.pp > 1 and plan.schedule == "1f1b" and plan.recompute == "none"
        for cut in every_cut(len(row), plan.num_stages)
    ]
    fastest = min(step_times(lambda plan=plan: scenario.replace(plan=plan) for plan in layouts).values())
    assert fastest >= found.stages.found.bound * (1 - 1e-9)
    assert found.best[0].answer.step_time_s <= fastest * (1 + 1e-9)


def test_chunks_that_hold_different_kinds_of_layers_are_found():
    """Layers with and without a window take turns, so that chunks of one layer are not alike.

    Every such plan, one by one: none beats the bound, and none is faster than the best.
    """
    model = {"preset": "gpt-oss-20b", "num_layers": 6}
    scenario = asked(model, "superpod-h100", {"dp": 8}, batch=32, sequence=8192)
    found = search(scenario, top=2, fixed={"pp": 2, "ep": 1, "tp": 1, "recompute": "none"})
    assert found.stages.chunks
    bases = map(found.scenario_at, range(found.plans_priced))
    chunked = {"schedule": "interleaved", "num_chunks": 3}
    times = step_times(lambda base=base: base.replace(plan=base.plan.replace(**chunked)) for base in bases)
    assert min(times.values()) >= found.stages.found.bound * (1 - 1e-9)
    assert found.best[0].answer.step_time_s <= min(times.values()) * (1 + 1e-9)
    assert found.best[0].scenario.plan.num_chunks == 3
    explained = rank_plan(found, scenario.replace(plan=next(iter(times))))
    assert "chunks hold different kinds of layers" in explained.ruled_out


def test_a_layout_of_its_own_is_explained():
    scenario = small(12, pp=4, dp=1, pipeline_layout="Et|t|t*2|t*8L")
    ranked = rank_plan(search(scenario, top=1, layouts=True), scenario)
    assert "a search deals the layers itself, with --layouts by balanced layouts" in ranked.ruled_out
    assert any("pipeline_layout" in step.changes for step in ranked.steps)
