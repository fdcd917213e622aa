"""Scatter/gather always helps, rails and cables matter where links are scarce, layers need no fast network for long."""

from pathlib import Path

import pytest

from flopcast_validation.network_gains import PUBLISHED_BISECTION, bisection_rows, layered_rows, network_rows
from sim.units import show

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
SMALLER = ["plan.pp=16", "plan.dp=12", "training.global_batch_size=384"]  # of the 1T run, to be quick


def test_on_a_full_tree_only_scatter_gather_shows():
    rows = {row.case: row for row in network_rows(["full, adaptive"], changes=SMALLER)}
    own = rows["as it is"].shared_s
    assert rows["no scatter/gather"].shared_s > 1.01 * own
    for case in ("no rails", "pipeline ranks closer than replicas", "nodes anywhere in the machine"):
        assert rows[case].shared_s == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("tree", ["full, ecmp", "1:8, adaptive"])
def test_with_few_cables_or_hashes_that_collide_rails_and_scatter_gather_save_more_and_the_formulas_know(tree):
    own, without, no_rails = network_rows([tree], ["as it is", "no scatter/gather", "no rails"], SMALLER)
    (plain,) = network_rows(["full, adaptive"], ["as it is"], SMALLER)
    assert without.formula_s > 1.01 * own.formula_s
    assert no_rails.formula_s > 1.003 * own.formula_s
    assert own.formula_s >= plain.formula_s * (1 - 1e-9)
    for row in (own, without, no_rails):
        assert row.shared_s == pytest.approx(row.formula_s, rel=0.002)


@pytest.mark.thorough
def test_layered_accumulation_needs_no_infiniband_while_replicas_have_many_microbatches():
    layered, plain = layered_rows([35], ["layered, ZeRO 3", "1F1B, ZeRO 1"])
    assert (layered.fits, plain.fits) == (True, False)
    assert layered.ethernet_s < 1.2 * layered.infiniband_s
    assert plain.ethernet_s > 1.25 * plain.infiniband_s
    assert layered.ethernet_s < plain.infiniband_s * 1.1
    assert f"{layered.infiniband_s:.1f} s | {layered.ethernet_s:.1f} s" in PAGE
    (shortest,) = layered_rows([483], ["layered, ZeRO 3"])
    assert shortest.ethernet_s > 5 * shortest.infiniband_s  # five micro-batches a replica: there it does
    assert f"{shortest.infiniband_s:.1f} s | {shortest.ethernet_s:.1f} s" in PAGE


def test_the_readme_has_the_bisection_bandwidths():
    text = " ".join(PAGE.split())
    for name, rate in bisection_rows().items():
        off = rate / PUBLISHED_BISECTION[name] - 1
        assert f"{show(rate, 'B/s', 3)} ({100 * abs(off):.0f} % {'less' if off < 0 else 'more'})" in text
