"""Grids on a time axis: idle slots, and a text that can be read back."""

import pytest

from sim import build_order
from sim.errors import SpecError
from sim.report.schedules import format_aligned, parse_times
from sim.schedules.actions import parse_grid
from tests.rows import rows


def test_1f1b_as_the_paper_draws_it():
    text = format_aligned(build_order("1f1b", 2, 1, 2), (1, 2, None))
    assert text.splitlines() == [
        "rank 0 | 0F0 0F1   .   . 0B0       . 0B1",
        "rank 1 |   . 1F0 1B0     1F1 1B1       .   .",
        "# 9 units; idle on each rank: 3, 3",
    ]


@rows(
    ("schedule", "size", "times"),
    [
        ("1f1b", (4, 1, 8), (1, 2, None)),
        ("interleaved", (4, 2, 8), (2, 3, None)),
        ("zb_v", (4, 2, 8), (1, 1, 1)),
        ("dualpipe", (4, 1, 8), (2, 2, 1)),
        ("chimera", (4, 1, 4), (1, 2, None)),
    ],
)
def test_what_is_shown_reads_back_as_the_same_order(schedule, size, times):
    order = build_order(schedule, *size)
    assert tuple(map(tuple, parse_grid(format_aligned(order, times)))) == order.actions


def test_zero_bubble_is_zero_for_equal_times():
    # Each rank of ZB-V waits for its first forward, and the others for it at the end: p - 1 units in all.
    last = format_aligned(build_order("zb_v", 4, 2, 12), (1, 1, 1)).splitlines()[-1]
    assert last == "# 75 units; idle on each rank: 3, 3, 3, 3"


def test_updates_stand_where_they_happen():
    text = format_aligned(build_order("pipedream_2bw", 2, 1, 2, batches=1), (1, 2, None))
    assert text.splitlines()[0].endswith("|")
    assert "| is an update" in text


@rows("text", ["1", "1,2,3,4", "a,b", "1,-2", "0,1", "1,51", "1.5,2", ""])
def test_times_that_are_none(text):
    with pytest.raises(SpecError, match="--times"):
        parse_times(text)


def test_halves_need_three_times():
    with pytest.raises(SpecError, match="all three"):
        format_aligned(build_order("zb_h1", 2, 1, 4), (1, 2, None))
