"""Figures of what schedules buy: they hold what the comparison says, and names cover neither each other nor points."""

import pytest

from sim import build_scenario
from sim.errors import SpecError
from sim.report.schedules import (
    MOVE,
    WAIT,
    WORK,
    bubble_figure,
    causes_figure,
    compare_schedules,
    parts,
    tradeoff_figure,
)


@pytest.fixture(scope="module")
def ask():
    def make(microbatches):
        training = {"global_batch_size": microbatches, "sequence_length": 2048, "precision": "bf16"}
        asked = {"model": "gpt-39.1b", "cluster": "selene", "plan": {"tp": 8, "pp": 4, "dp": 1, "recompute": "full"}}
        return build_scenario({**asked, "training": training, "stack": "megatron-2022", "profile": "a100"})

    return make


@pytest.fixture(scope="module")
def everything(ask):
    return compare_schedules(ask(8))


def test_lines_are_the_bubbles_and_fall_with_micro_batches(ask):
    names = ["1f1b", "zb_v", "interleaved"]
    compared = {count: compare_schedules(ask(count), names) for count in (16, 4)}
    figure = bubble_figure(compared)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert set(lines) == set(names)
    assert list(lines["1f1b"]) == [
        100 * next(row.answer.bubble_fraction for row in compared[count].rows if row.name == "1f1b")
        for count in (4, 16)
    ]
    assert all(shares[1] < shares[0] for shares in lines.values())
    with pytest.raises(SpecError, match="no comparison to draw"):
        bubble_figure({})


def test_every_schedule_has_a_point_and_a_name_that_covers_nothing(everything):
    figure = tradeoff_figure(everything)
    figure.canvas.draw()
    axes = figure.axes[0]
    shown = " ".join(text.get_text() for text in axes.texts)
    assert all(row.name in shown for row in everything.rows)
    assert "chimera (weights 2×)" in shown
    boxes = [text.get_window_extent() for text in axes.texts]
    points = [axes.transData.transform(line.get_xydata()[0]) for line in axes.get_lines() if line.get_marker() == "o"]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert not any(box.contains(*point) for point in points)


def test_bars_add_up_to_the_step(everything):
    for row in everything.rows:
        seconds = parts(row.answer)
        assert set(seconds) == {WORK, MOVE, WAIT}
        assert sum(seconds.values()) == pytest.approx(row.answer.step_time_s)
        assert seconds[WAIT] == pytest.approx(row.answer.bubble_fraction * row.answer.step_time_s)
    figure = causes_figure(everything, longest=1.2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [row.name for row in everything.rows]
    cut = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith("→")]
    assert len(cut) == sum(
        row.answer.step_time_s > 1.2 * everything.rows[0].answer.step_time_s for row in everything.rows
    )
