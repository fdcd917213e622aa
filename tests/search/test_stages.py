"""Layouts and groups of micro-batches: what is found is as fast as said, and nothing beats the bound."""

from itertools import combinations, pairwise

from open_space import search

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.search.explain import rank_plan
from sim.search.stages import search_stages
from sim.specs.loading import build_scenario


def small(num_layers=4, batch=8):
    """A model whose head is as heavy as layers, on few GPUs."""
    model = {"num_layers": num_layers, "hidden_size": 1024, "num_heads": 16, "vocab_size": 128000, "gated_mlp": True,
             "tied_embeddings": False}  # fmt: skip
    return build_scenario(
        {"model": model, "cluster": "superpod-h100", "plan": {"dp": 4}, "stack": "megatron-core", "profile": "h100",
         "training": {"global_batch_size": batch, "sequence_length": 2048, "precision": "bf16"}}
    )  # fmt: skip


def every_layout(num_layers, stages):
    """All ways to cut the row of blocks."""
    row = "E" + "t" * num_layers + "L"
    for cuts in combinations(range(1, len(row)), stages - 1):
        ends = (0, *cuts, len(row))
        yield "|".join(row[begin:end] for begin, end in pairwise(ends))


def test_no_layout_goes_below_the_bound():
    """Every layout of every plan, one by one: none beats the bound, and none of the best plans' is faster."""
    scenario = small()
    even = search(scenario, top=3)
    found = search_stages(even)
    assert found.stages.found.runs
    fastest = []
    for place in range(even.plans_priced):
        base = even.scenario_at(place)
        plan = base.plan
        if plan.pp == 1 or plan.schedule != "1f1b" or plan.recompute != "none":
            continue
        plain = plan.replace(uneven_layers=False)
        for layout in every_layout(scenario.model.num_layers, plan.num_stages):
            answer = estimate(base.replace(plan=plain.replace(pipeline_layout=layout)))
            if answer.fits:
                fastest.append(answer.step_time_s)
    assert fastest
    assert min(fastest) >= found.stages.found.bound * (1 - 1e-9)
    assert found.best[0].answer.step_time_s <= min(fastest) * (1 + 1e-9)


def test_chunks_that_hold_different_kinds_of_layers_are_found():
    """Layers with and without a window take turns, so that chunks of one layer are not alike.

    Every such plan, one by one: none beats the bound, and none is faster than the best.
    """
    scenario = build_scenario(
        {"model": {"preset": "gpt-oss-20b", "num_layers": 6}, "cluster": "superpod-h100", "plan": {"dp": 8},
         "stack": "megatron-core", "training": {"global_batch_size": 32, "sequence_length": 8192, "precision": "bf16"}}
    )  # fmt: skip
    found = search(scenario, top=2, fixed={"pp": 2, "ep": 1, "tp": 1, "recompute": "none"})
    assert found.stages.chunks
    fastest = {}
    for place in range(found.plans_priced):
        base = found.scenario_at(place)
        try:
            answer = estimate(base.replace(plan=base.plan.replace(schedule="interleaved", num_chunks=3)))
        except FlopcastError:
            continue
        if answer.fits:
            fastest[answer.scenario.plan] = answer.step_time_s
    assert fastest
    assert min(fastest.values()) >= found.stages.found.bound * (1 - 1e-9)
    assert found.best[0].answer.step_time_s <= min(fastest.values()) * (1 + 1e-9)
    assert found.best[0].scenario.plan.num_chunks == 3
    own = next(iter(fastest))
    explained = rank_plan(found, scenario.replace(plan=own))
    assert "chunks hold different kinds of layers" in explained.ruled_out


def test_a_layout_of_its_own_is_explained():
    base = small(num_layers=12)
    changes = {"pp": 4, "dp": 1, "schedule": "1f1b", "num_chunks": 1, "pipeline_layout": "Et|t|t*2|t*8L"}
    scenario = base.replace(plan=base.plan.replace(**changes))
    result = search(scenario, top=1, layouts=True)
    ranked = rank_plan(result, scenario)
    assert "a search deals the layers itself, with --layouts by balanced layouts" in ranked.ruled_out
    assert any("pipeline_layout" in step.changes for step in ranked.steps)
