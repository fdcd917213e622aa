"""Sliders: what is embedded is what `estimate` says, also where a plan does not fit or cannot be."""

import json
import re

import pytest

from sim import estimate, load_scenario
from sim.errors import FlopcastError
from sim.report.html.page import in_page, report_page, sliders_of
from sim.search.grid import price_grid, read_axes
from sim.units import show, show_time
from tests.report.pages import Tags, can_be_heard, is_self_contained

SCENARIO = "gpt3-175b-1024-a100.yaml"


@pytest.fixture(scope="module")
def grid(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    texts = ["plan.tp=4,8", "plan.pp=8,16,64", "plan.microbatch_size=1,2", "cluster.inter_node_bandwidth=100,400Gbit/s"]
    return price_grid(scenario, read_axes(scenario, [*texts, "training.global_batch_size=768,1536"]))


@pytest.fixture(scope="module")
def page(grid):
    return report_page(estimate(grid.scenario), why_no_plans="not looked for", grid=grid)


@pytest.fixture(scope="module")
def embedded(page):
    (text,) = ["".join(code) for each, code in Tags(page).scripts if each.get("type") == "application/json"]
    return json.loads(text)


def test_the_page_needs_nothing_else_and_can_be_heard(page):
    is_self_contained(page, scripts=1)
    can_be_heard(page)
    assert len(page.encode()) < 1_000_000


def test_the_embedded_grid_is_what_estimate_says(embedded, scenarios):
    sizes = [len(axis["values"]) for axis in embedded["axes"]]
    seen = set()
    for number in range(0, len(embedded["points"]), 11):
        places, rest = [], number
        for size in reversed(sizes):
            rest, place = divmod(rest, size)
            places.insert(0, place)
        axes = zip(embedded["axes"], places, strict=True)
        settings = [axis["sets"][place] for axis, place in axes if place != axis["own"]]
        point = embedded["points"][number]
        if isinstance(point, int):
            with pytest.raises(FlopcastError) as mistake:
                estimate(load_scenario(scenarios / SCENARIO, settings))
            assert embedded["texts"][point].splitlines()[0] in str(mistake.value)
            seen.add("cannot be")
            continue
        step, low, high, rate, tokens, mfu, memory, overfull, follows, seconds = point
        answer = estimate(load_scenario(scenarios / SCENARIO, [*settings, *embedded["texts"][follows].split()]))
        found = [step, low, high, rate, tokens, mfu, sum(memory), sum(seconds)]
        assert found == pytest.approx(
            [
                answer.step_time_s,
                *answer.step_time_interval_s,
                answer.total_flop_per_s,
                answer.tokens_per_s,
                answer.mfu,
                answer.largest.total,
                answer.step_time_s,
            ],
            rel=1e-9,
        )
        causes = {
            name.replace(" ", "_"): value for (name, _, _), value in zip(embedded["causes"], seconds, strict=True)
        }
        assert causes == pytest.approx({name: answer.breakdown.seconds[name] for name in causes}, rel=1e-9, abs=1e-12)
        assert (overfull < 0) == answer.fits
        seen.add("fits" if answer.fits else "too large")
    assert seen == {"cannot be", "fits", "too large"}


def test_without_a_script_one_change_at_a_time_is_there(page, grid):
    text = is_self_contained(page, scripts=1)
    assert re.search(r'<div class="sliders"[^>]* hidden>', page)
    for number in range(len(grid.axes)):
        for point in grid.along(number):
            if point.answer is not None:
                assert show_time(point.answer.step_time_s) in text
                assert show(point.answer.memory_bytes, "B") in text
    assert "cannot be: plan.pp · plan.num_chunks" in text


def test_texts_cannot_leave_the_json():
    evil = "</script><script>alert(1)</script>&amp;\u2028"
    text = in_page({"texts": [evil]})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"texts": [evil]}


def test_axes_have_names_and_stand_at_the_scenario(scenarios):
    scenario = load_scenario(scenarios / SCENARIO)
    found = sliders_of(price_grid(scenario, read_axes(scenario, ["plan.tp=4,8", "stack.fragmentation=0.01,0.1"])))
    assert [axis.name for axis in found.axes] == ["Tensor parallel", "Fragmentation"]
    assert found.axes[0].values[found.axes[0].own] == "8"
