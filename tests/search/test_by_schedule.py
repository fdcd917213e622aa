"""The best plan of every schedule: bounds that hold, bests that are the best, and words about what is not."""

from dataclasses import replace

import numpy as np
import pytest
from asked import asked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from open_space import search

from sim.errors import FlopcastError, SpecError
from sim.estimate import estimate
from sim.schedules import get_schedule, schedule_names
from sim.schedules.actions import F, I
from sim.schedules.build import build_order
from sim.schedules.order import make_order
from sim.schedules.passes import peak_in_flight
from sim.search.by_schedule import BoundedPlans, schedules_named, search_schedules, spaces_under
from sim.search.formula import price_space
from sim.search.space import build_space

MIXTURE = {"num_experts": 4, "experts_per_token": 2, "expert_intermediate_size": 512, "gated_mlp": True, "bias": False,
           "num_layers": 10, "num_dense_layers": 1}  # fmt: skip
SHAPES = {
    "hybrid": {
        "model": MIXTURE,
        "plan": {"ep": 2, "dp": 4, "sharding_group": 2, "zero_stage": 3, "reshard_after_forward": False,
                 "embedding_as_layer": True, "head_as_layer": True},
    },
    "uneven_ends": {
        "model": {"num_layers": 19, "dropout": 0.1},
        "plan": {"uneven_layers": True, "head_as_layer": True},
    },
}  # fmt: skip


def small(model=None, plan=None, batch=16, layers=12):
    """A model of a few layers, whose pipelines straddle nodes of eight A100."""
    shape = {"num_layers": layers, "hidden_size": 512, "num_heads": 8, "vocab_size": 51200, **(model or {})}
    stack, plan = {"preset": "megatron-core", "overlap_grad_reduce": True}, {"dp": 2, **(plan or {})}
    return asked(shape, "selene", plan, stack=stack, profile="a100", batch=batch, sequence=512, precision="fp16")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_plan_of_any_schedule_is_faster_or_leaner_than_its_bounds(shape):
    """A few plans of every schedule, over all categories and sizes."""
    random = np.random.default_rng(list(SHAPES).index(shape))
    space = build_space(small(**SHAPES[shape]), (6, 16), fixed={"cp": (1, 2)})
    some = random.choice(len(space.categories), size=8, replace=False)
    space = replace(space, categories=tuple(space.categories[number] for number in some))
    for name in schedules_named("all"):
        for variant in spaces_under(space, name)[-1:]:
            plans = BoundedPlans(variant, "step_time", np.inf)
            if not len(plans.row):
                continue
            for plan in random.integers(len(plans.row), size=1 + bool(plans.schedule.candidates)).tolist():
                answer, lean, least_s = estimate(plans.scenario_of(plan)), plans.nbytes[plan], plans.seconds[plan]
                assert plan in plans.weigh(plans.order_of[plan])
                assert least_s <= plans.seconds[plan] <= answer.step_time_s * (1 + 1e-9), (name, answer.scenario.plan)
                assert lean <= plans.nbytes[plan] <= answer.largest.total * (1 + 1e-9), (name, answer.scenario.plan)
                if not plans.schedule.candidates:  # it has one order
                    assert plans.nbytes[plan] == pytest.approx(answer.largest.total, rel=1e-9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from([name for name in schedule_names() if get_schedule(name).candidates]),
    ranks=st.integers(2, 5),
    chunks=st.sampled_from([2, 4]),
    count=st.integers(1, 14),
    times=st.tuples(*[st.integers(100, 3000).map(lambda n: n / 1000)] * 3, st.integers(0, 500).map(lambda n: n / 1000)),
)
def test_orders_chosen_by_times_keep_to_their_candidates(name, ranks, chunks, count, times):
    """One of the candidates; but for weight gradients, which stand elsewhere without more being kept."""
    chosen = get_schedule(name)
    chunks = chunks if chosen.chunks == "many" else chosen.chunks
    order = build_order(name, ranks, chunks, count, times=(1.0, *times[1:]))
    fits = []
    for number in range(len(chosen.candidates)):
        rows = chosen.candidates[number](ranks, chunks, count)
        base = make_order(name, rows, ranks * chunks, count)
        kept = (peak_in_flight(order) <= peak_in_flight(base)).all()
        alike = all(
            np.array_equal(*(row[(row[:, 1] == F) | (row[:, 1] == I)] for row in (rows[rank], order.row(rank))))
            if (order.kind == I).any()
            else np.array_equal(rows[rank], order.row(rank))
            for rank in range(ranks)
        )
        fits.append(kept and alike)
    assert any(fits)


@pytest.fixture(scope="module")
def tiny():
    """A search over all plans of one category on 2 and 4 GPUs, so few that every one can be run."""
    result = search(small(batch=8, layers=4), gpus=(2, 4), top=3)
    number = [(each.recompute, each.zero_stage) for each in result.space.categories].index(("selective", 2))
    one = (result.space.categories[number],)
    space = replace(result.space, fixed={"sequence_parallel": False}, categories=one)
    return replace(result, space=space, categories=space.categories, prices=price_space(space))


@pytest.fixture(scope="module")
def every(tiny):
    """Of every schedule the answers of all its plans."""
    answers = {}
    for name in schedules_named("all"):
        found = []
        for variant in spaces_under(tiny.space, name):
            for category, row in zip(*(each.tolist() for each in variant.plans), strict=True):
                found.append(estimate(variant.scenario_of(row, variant.categories[category])))
        answers[name] = found
    return answers


@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_the_best_of_each_schedule_is_the_best_of_all_its_plans(tiny, every, objective):
    """Against every plan of every schedule, run one by one; under a limit that rules some of them out."""

    def worth(answer):
        return answer.step_time_s * (answer.num_gpus if objective == "cost" else 1)

    limit = float(np.quantile([answer.largest.total for found in every.values() for answer in found], 0.6))
    result = search_schedules(replace(tiny, objective=objective, memory_limit_bytes=limit))
    assert {each.schedule for each in result.schedules} == set(every)
    for each in result.schedules:
        fits = [answer for answer in every[each.schedule] if answer.largest.total <= limit]
        assert each.found.plans == len(every[each.schedule])
        if not fits:
            assert each.best is None
            assert each.found.proven
            continue
        assert each.found.proven
        assert each.found.gap == 0.0
        assert each.found.runs < max(4, 0.5 * len(every[each.schedule]))
        assert worth(each.best.answer) == pytest.approx(min(map(worth, fits)), rel=1e-9)
        assert each.best.answer.largest.total <= limit
    bests = [worth(each.best.answer) for each in result.schedules if each.best is not None]
    assert bests == sorted(bests)
    first = min(bests[0], *(worth(each.answer) for each in tiny.best))
    assert worth(result.best[0].answer) == pytest.approx(first, rel=1e-9)


def test_what_is_set_is_set_under_every_schedule():
    result = search(small(batch=8, layers=4), gpus=(4, 4), top=1, fixed={"recompute": "full", "tp": 1})
    (found,) = search_schedules(result, "zb_h1").schedules
    assert (found.best.scenario.plan.recompute, found.best.scenario.plan.tp) == ("full", 1)


def test_sequences_are_cut_into_slices_that_divide_them():
    scenario = small()
    odd = scenario.replace(training=scenario.training.replace(sequence_length=510))
    assert [each.slices for each in spaces_under(build_space(odd, (8, 8)), "seq1f1b")] == [2]


def test_schedules_without_a_plan_say_why(tiny):
    lean = search_schedules(replace(tiny, memory_limit_bytes=1e6), "v_min,dualpipe")
    assert [each.best for each in lean.schedules] == [None, None]
    assert all(each.found.proven for each in lean.schedules)
    assert "fits in 1.00 MB; the leanest needs" in lean.schedules[0].reason
    long = search(small(batch=2, layers=4), gpus=(2, 2), top=1)
    (none,) = search_schedules(long, "dualpipe").schedules
    assert (none.found.plans, none.reason) == (0, "no plan of the space keeps its rules")
    (part,) = search_schedules(tiny, "v_min", most_runs=1).schedules
    assert (part.found.runs, part.found.proven) == (1, False)
    assert 0.0 < part.found.gap < 1.0


def test_schedules_that_are_not_searched(tiny, tmp_path):
    grid = tmp_path / "own.grid"
    grid.write_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n", encoding="utf-8")
    for names, says in (
        ("zb_v,zb_w", r"unknown schedule 'zb_w'; did you mean"),
        ("zb_v,", "zb_v,zb_h1, or all"),
        ("zb_v,pipedream_2bw", "gradients come late"),
        (f"zb_v,{grid}", "is the grid of one size"),
    ):
        with pytest.raises(FlopcastError, match=says):
            search_schedules(tiny, names)
    with pytest.raises(SpecError, match="most_runs = 0"):
        search_schedules(tiny, "zb_v", most_runs=0)
    assert "pipedream_2bw" not in schedules_named("all")
