"""Numbers of the papers that no other test asserts, or that they print and their own formulas do not give."""

import numpy as np
import pytest
from rows import rows

from sim.scaling.loss_laws import critical_batch, get_law

A100, PETAFLOP_DAY = 312e12, 8.64e19


def test_kaplans_compute_optimal_exponents():
    """N ~ C^0.73, B ~ C^0.24, S ~ C^0.03, which are all of C; and D ~ C^0.26 or so."""
    law = get_law("kaplan-2020")
    budgets = np.array([1.0, 10.0]) * PETAFLOP_DAY
    batch = critical_batch("kaplan-2020", loss=law.frontier(budgets))
    assert np.log10(batch[1] / batch[0]) == pytest.approx(0.24, abs=5e-3)
    size, data = law.allocation(budgets), budgets / 6 / law.allocation(budgets)
    assert np.log10(size[1] / size[0]) == pytest.approx(0.73)
    assert np.log10(data[1] / data[0]) == pytest.approx(0.26, abs=0.011)
    assert pytest.approx(1.0) == 0.73 + 0.24 + 0.03


@rows(("law", "exponent"), [("zhang-2024", 0.47), ("bergsma-2025", 0.462), ("bergsma-2025-best", 0.383)])
def test_batches_grow_with_data_as_published(law, exponent):
    batches = critical_batch(law, tokens=np.array([1e11, 1e12]))
    assert np.log10(batches[1] / batches[0]) == pytest.approx(exponent)
