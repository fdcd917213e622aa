"""The balanced pipeline layout is the cut whose slowest stage is fastest, and what it gains is shown."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import estimate, load_scenario
from sim.errors import SpecError
from sim.search.balance import balance_layout, cut_evenly, layout_text
from sim.specs.plan import layout_stages

SCENARIOS = Path(__file__).parents[2] / "scenarios"
DEEPSEEK = SCENARIOS / "papers" / "deepseek-v3-2048-h800.yaml"


def sums(seconds, ends):
    return [sum(seconds[begin:end]) for begin, end in zip((0, *ends[:-1]), ends, strict=True)]


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=9), st.integers(2, 9))
def test_the_cut_is_the_best_of_all(seconds, stages):
    stages = min(stages, len(seconds))
    count = len(seconds)
    every = [(*cut, count) for cut in combinations(range(1, count), stages - 1)]
    best = min(max(sums(seconds, ends)) for ends in every)
    found = sums(seconds, cut_evenly(np.array(seconds), stages))
    assert len(found) == stages
    assert max(found) == pytest.approx(best)
    as_good = [sums(seconds, ends) for ends in every if max(sums(seconds, ends)) <= best * (1 + 1e-9)]
    assert sum(each**2 for each in found) == pytest.approx(min(sum(each**2 for each in one) for one in as_good))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=12))
def test_layouts_are_written_short_and_read_back(layers):
    stages = [f"E{'t' * layers[0]}", *("t" * number for number in layers[1:-1]), f"{'t' * layers[-1]}L"]
    assert layout_stages(layout_text(stages)) == tuple(stages)
    assert layout_stages(layout_text(["t"] * len(layers))) == ("t",) * len(layers)


def test_the_balanced_layout_of_deepseek_v3():
    """Three layers without experts in front; behind, a module of multi-token prediction and the head, which take as long as
    four layers."""
    scenario = load_scenario(DEEPSEEK, ["plan.schedule=1f1b"])
    found = balance_layout(scenario)
    assert found.layout.startswith("Et*5|")
    assert found.layout.endswith("mL")
    assert found.answer.step_time_s < 0.8 * found.before.step_time_s
    assert found.bound_s <= found.answer.step_time_s
    again = estimate(load_scenario(DEEPSEEK, ["plan.schedule=1f1b", "plan.uneven_layers=false",
                                              f"plan.pipeline_layout={found.layout}"]))  # fmt: skip
    assert again.step_time_s == found.answer.step_time_s


def test_a_layout_needs_stages_and_blocks_for_them():
    file = SCENARIOS / "gpt3-175b-1024-a100.yaml"
    with pytest.raises(SpecError, match=r"plan\.pp is 1; set it above 1"):
        balance_layout(load_scenario(file, ["plan.pp=1", "plan.num_chunks=1", "plan.schedule=1f1b", "plan.dp=8"]))
