"""Context- and expert-parallel degrees in searches: axes like the others, named where a wider degree would help."""

import pandas as pd
import pytest
from asked import asked
from open_space import search

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.search.explain import why_not


def dense(length=32768, **plan):
    return asked("llama3-8b", "superpod-h100", {"dp": 8, **plan}, batch=32, sequence=length)


def mixture(ep=1, **model):
    """16 GPUs whose memory the experts fill."""
    shape = {
        "num_layers": 8, "hidden_size": 4096, "num_heads": 32, "vocab_size": 32000, "gated_mlp": True,
        "intermediate_size": 14336, "num_experts": 32, "experts_per_token": 2, "bias": False, "position": "rotary",
        **model,
    }  # fmt: skip
    return asked(shape, "superpod-h100", {"dp": 16, "ep": ep})


@pytest.fixture(scope="module")
def found():
    return search(mixture(), top=3, confirm=8)


def test_context_degrees_that_a_search_tries_are_said():
    result = search(dense(), top=1, confirm=2)
    words = "tried with cp 1, 2 or 4, which leaves pieces of 8,192 tokens or more; -s plan.cp=[…] names others"
    assert any(words in each for each in result.assumptions)
    for scenario, fixed, degrees in (
        (dense(dp=1, cp=8), {}, {1, 2, 4, 8}),  # its own too
        (dense(), {"cp": 1}, {1}),
        (dense(length=30720), {}, {1, 2}),  # 32,768 tokens would be cut in 4
    ):
        tried = search(scenario, fixed=fixed, top=1, confirm=1).space.columns.cp
        assert set(tried.tolist()) == degrees
    with pytest.raises(InfeasiblePlan, match=r"plan\.cp = 7: it must divide the sequence"):
        search(dense(), fixed={"cp": 7})


def test_a_search_is_one_search_of_every_degree(found):
    """The same plans at the same prices, whatever the scenario's own degree is; so also the same best."""
    # Room is made for plans that may be among the best, which depends on the others: only the space is the same.
    each_alone = pd.concat([search(mixture(16), fixed={"ep": ep}, room=()).to_frame() for ep in (1, 2, 4, 8, 16)])
    together = search(mixture(), room=()).to_frame()
    ordered = [each.sort_values([*each.columns], ignore_index=True) for each in (together, each_alone)]
    assert ordered[0]["ep"].unique().tolist() == [1, 2, 4, 8, 16]  # 32 do not divide 16 GPUs
    pd.testing.assert_frame_equal(*ordered, rtol=1e-12)
    assert found.plans_priced >= found.space.num_plans == len(together)


def test_what_fits_nowhere_without_expert_parallelism_says_so():
    scenario = mixture(num_layers=4, num_experts=64)
    with pytest.raises(
        InfeasiblePlan, match=r"ep 1\). To go on, deal the 64 experts over more GPUs \(-s plan.ep=\[2,4,8,16\]; without"
    ):
        search(scenario, fixed={"ep": 1})
    assert search(scenario, top=1, confirm=1).best[0].scenario.plan.ep > 1
    with pytest.raises(InfeasiblePlan, match=r"What would help: plan\.ep=16 \("):
        estimate(scenario).require_fit()


def test_why_not_another_degree(found):
    """The best plan of that degree, ranked; or the rule against it."""
    other = why_not(found, {"ep": 8 if found.best[0].scenario.plan.ep != 8 else 16})
    assert other.rank > 1
    assert [step.changes["ep"] for step in other.steps if "expert parallelism" in step.techniques]
    odd = why_not(found, {"ep": 3}).ruled_out
    assert "plan.ep = 3: it must divide the 32 experts; degrees that do: 1, 2, 4, 8, 16, 32" in odd
    assert "plan.ep = 32 must divide tp · cp · dp" in why_not(found, {"ep": 32}).ruled_out
    with pytest.raises(SpecError, match=r"plan\.ep"):
        why_not(found, {"ep": 0})
