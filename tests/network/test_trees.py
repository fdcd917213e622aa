"""Scatter/gather always helps; rails and cables matter where links are scarce; the formulas know what shared links take."""

import pytest
from trees import on_tree

from sim import simulate

SMALLER = ["plan.pp=16", "plan.dp=12", "training.global_batch_size=384"]  # of the 1T run, to be quick


@pytest.fixture
def asked(scenarios):
    """Step times by the formulas and with links shared, of a tree and a case."""

    def answer(tree, case):
        found = simulate(on_tree(scenarios / "gpt-1t-3072-a100.yaml", tree, case, SMALLER), contention=True)
        return found.noiseless_s, found.mean_s

    return answer


def test_on_a_full_tree_only_scatter_gather_shows(asked):
    _, own = asked("full, adaptive", "as it is")
    assert asked("full, adaptive", "no scatter/gather")[1] > 1.01 * own
    for case in ("no rails", "pipeline ranks closer than replicas", "nodes anywhere in the machine"):
        assert asked("full, adaptive", case)[1] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("tree", ["full, ecmp", "1:8, adaptive"])
def test_with_few_cables_or_hashes_that_collide_rails_and_scatter_gather_save_more(tree, asked):
    own, without, no_rails = (asked(tree, case) for case in ("as it is", "no scatter/gather", "no rails"))
    assert without[0] > 1.01 * own[0]
    assert no_rails[0] > 1.003 * own[0]
    assert own[0] >= asked("full, adaptive", "as it is")[0] * (1 - 1e-9)
    for formula, shared in (own, without, no_rails):
        assert shared == pytest.approx(formula, rel=0.002)
