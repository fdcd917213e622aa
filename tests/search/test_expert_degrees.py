"""Expert parallelism in searches and answers: an axis like the others, named where a wider degree would help."""

from pathlib import Path

import pandas as pd
import pytest
from asked import asked
from open_space import search

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import estimate
from sim.search.explain import why_not

QWEN = Path(__file__).parents[2] / "scenarios" / "qwen3-235b-a22b-256-h100.yaml"


def mixture(ep=1, **model):
    """16 GPUs whose memory the experts fill."""
    shape = {
        "num_layers": 8, "hidden_size": 4096, "num_heads": 32, "vocab_size": 32000, "gated_mlp": True,
        "intermediate_size": 14336, "num_experts": 32, "experts_per_token": 2, "bias": False, "position": "rotary",
        **model,
    }  # fmt: skip
    return asked(shape, "superpod-h100", {"dp": 16, "ep": ep})


def table(result):
    """Every plan with its price, in the order of the plans."""
    frame = result.to_frame()
    return frame.sort_values([*frame.columns], ignore_index=True)


@pytest.fixture(scope="module")
def found():
    return search(mixture(), top=3, confirm=8)


def test_a_search_is_one_search_of_every_degree(found):
    """The same plans at the same prices, whatever the scenario's own degree is; so also the same best."""
    # Room is made for plans that may be among the best, which depends on the others: only the space is the same.
    rows = pd.concat([search(mixture(16), fixed={"ep": ep}, room=()).to_frame() for ep in (1, 2, 4, 8, 16)])
    together = table(search(mixture(), room=()))
    assert together["ep"].unique().tolist() == [1, 2, 4, 8, 16]  # 32 do not divide 16 GPUs
    pd.testing.assert_frame_equal(together, rows.sort_values([*rows.columns], ignore_index=True), rtol=1e-12)
    assert found.plans_priced >= found.space.num_plans == len(rows)


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
    best = found.best[0].scenario.plan.ep
    other = why_not(found, {"ep": 8 if best != 8 else 16})
    assert other.rank > 1
    assert [step.changes["ep"] for step in other.steps if "expert parallelism" in step.techniques]
    assert (
        "plan.ep = 3: it must divide the 32 experts; degrees that do: 1, 2, 4, 8, 16, 32"
        in why_not(found, {"ep": 3}).ruled_out
    )
    assert "plan.ep = 32 must divide tp · cp · dp" in why_not(found, {"ep": 32}).ruled_out
    with pytest.raises(SpecError, match=r"plan\.ep"):
        why_not(found, {"ep": 0})
