"""Schedules side by side: every one has its row or its reason, and the columns say what other parts of flopcast say."""

import pytest

from sim import estimate, schedule_names
from sim.report.gantt import gantt_text
from sim.report.schedules import compare_schedules, comparison_view, plan_changes
from sim.report.terminal import console
from tests.rows import rows


@pytest.fixture(scope="module")
def comparison(small):
    return compare_schedules(small())


def text_of(view):
    out = console()
    with out.capture() as capture:
        out.print(view)
    return capture.get()


def test_every_schedule_has_its_row_or_its_reason(comparison, small):
    assert {row.name for row in comparison.rows} == set(schedule_names())
    odd = compare_schedules(small("1f1b", "training.global_batch_size=14"))
    named = {row.name for row in odd.rows} | {name for name, _ in odd.left_out}
    assert named == set(schedule_names())
    reasons = dict(odd.left_out)
    assert "multiple of" in reasons["interleaved"]
    assert "multiple of 2" in reasons["chimera"]
    assert "at least 8" in reasons["dualpipe"]
    assert all(name in text_of(comparison_view(odd)) for name in named)


def test_rows_are_estimates_fastest_first(comparison, small):
    times = [row.answer.step_time_s for row in comparison.rows]
    assert times == sorted(times)
    for row in comparison.rows[:3]:
        assert row.answer.step_time_s == estimate(small(row.name)).step_time_s


def test_what_was_set_is_told(comparison, small):
    changes = {row.name: row.changes for row in comparison.rows}
    assert changes["1f1b"] == {}
    assert changes["zb_v"] == {"num_chunks": 2}
    assert changes["modular"] == {"num_chunks": 4}
    assert changes["seq1f1b"] == {"sequence_slices": 4}
    shown = text_of(comparison_view(comparison))
    assert "plan.num_chunks=4 for modular" in shown
    # What the plan says stands where it can, and is taken back where it cannot.
    interleaved = small("interleaved").replace(plan=small("interleaved").plan.replace(num_chunks=4, microbatch_group=8))
    assert plan_changes(interleaved, "breadth_first") == {"microbatch_group": None}
    assert plan_changes(interleaved, "1f1b") == {"num_chunks": 1, "microbatch_group": None}
    assert plan_changes(interleaved, "interleaved") == {}
    three = interleaved.replace(plan=interleaved.plan.replace(num_chunks=2, microbatch_group=None))
    assert plan_changes(three, "hanayo") == {}


@rows("width", [40, 80, 200])
@rows("schedule", ["1f1b", "zb_v", "dualpipe", "pipedream_2bw", "seq1f1b"])
def test_the_terminal_timeline_fits_and_shows_every_rank(view_of, schedule, width):
    lines = gantt_text(view_of(schedule), width).plain.splitlines()
    lanes = [line for line in lines if line.startswith("rank ") and line.rstrip().endswith("%")]
    assert len(lanes) == 4
    assert all(len(line) <= width for line in lanes)
    assert all("F" in line for line in lanes)
    assert any(line.startswith("each column is what runs at its middle") for line in lines)


def test_the_terminal_timeline_of_many_ranks_says_what_it_leaves_out(scenarios):
    from sim import load_scenario
    from sim.report.gantt import step_view

    text = gantt_text(step_view(load_scenario(scenarios / "gpt-1t-3072-a100.yaml")), 80).plain
    assert "24 of 64 ranks are shown" in text
    assert any(line.split() == ["0", "104", "s"] for line in text.splitlines())
