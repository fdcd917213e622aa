"""What papers say one schedule gains over another comes out of the simulator."""

import numpy as np
import pytest

from flopcast_validation.gains import gains, out_of_order, report, zero_bubble_rows


@pytest.fixture(scope="module")
def claims():
    return {gain.title.partition(":")[0] + gain.title.rpartition(",")[2]: gain for gain in gains()}


@pytest.mark.parametrize(
    ("claim", "least", "most"),
    [
        ("Interleaved over 1F1B batch 24", 1.05, 1.20),
        ("Interleaved over 1F1B batch 60", 1.02, 1.10),
        ("Breadth-first over interleaved batch 16", 1.05, 1.5),
        ("Breadth-first over 1F1B batch 16", 1.2, 1.6),
        ("PipeDream-2BW over GPipe batch 128", 2.0, 4.0),
        ("PipeDream-2BW over 1F1B with flush batch 512", 1.15, 1.8),
        ("Chimera over GPipe 32 stages", 1.16, 2.34),
        ("Chimera over 1F1B with flush (DAPPLE) 32 stages", 1.16, 2.34),
    ],
)
def test_the_gain_is_of_the_published_size(claims, claim, least, most):
    assert least <= claims[claim].ratio <= most


def test_the_zero_bubble_papers_table():
    rows = zero_bubble_rows()
    assert len(rows) >= 39
    assert {row.schedule for row in rows} == {"1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v"}
    errors = np.abs([row.error for row in rows])
    assert errors.mean() < 0.065
    assert errors.max() < 0.11
    assert out_of_order(rows) == 0


def test_the_report_names_every_claim_and_row():
    text = "\n".join(report())
    assert "PipeDream-2BW over GPipe" in text
    assert text.count("zb_h2") == 9
