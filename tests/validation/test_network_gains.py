"""Scatter/gather always helps; rails and a full tree matter where links are scarce."""

import pytest

from validation.network_gains import network_rows


def test_on_a_full_tree_only_scatter_gather_shows():
    rows = {row.case: row for row in network_rows(["full, adaptive"])}
    own = rows["as it is"].shared_s
    assert rows["no scatter/gather"].shared_s > 1.03 * own
    for case in ("no rails", "pipeline ranks closer than replicas", "nodes anywhere in the machine"):
        assert rows[case].shared_s == pytest.approx(own, rel=1e-6)


def test_with_few_cables_scatter_gather_saves_more_than_its_formula_says():
    own, without = network_rows(["1:4, adaptive"], ["as it is", "no scatter/gather"])
    assert without.shared_s - own.shared_s > without.formula_s - own.formula_s
