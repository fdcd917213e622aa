"""What drawings show is what the engines said: idle shares, what follows the pipeline, memory, sends."""

import numpy as np
import pytest

from sim import schedule_names
from sim.engines.tasks import ONCE
from sim.schedules.passes import peak_in_flight
from tests.rows import rows

SETTINGS = {
    "plain": (),
    "overlapped": ("stack.overlap_grad_reduce=true", "stack.overlap_param_gather=true", "plan.zero_stage=1"),
    "sends beside compute": ("stack.overlap_p2p=true",),
}


@rows("settings", SETTINGS.values(), ids=list(SETTINGS))
@rows("schedule", schedule_names())
def test_the_idle_shares_are_the_bubble(view_of, schedule, settings):
    view = view_of(schedule, *settings)
    tied = view.program.costs.tied_embedding_s / view.answer.step_time_s
    idle = float((1 - view.share).mean())
    if not view.streams:  # the tied embedding's reduction keeps two ranks; all others wait for it
        assert view.answer.bubble_fraction - 1e-9 <= idle <= view.answer.bubble_fraction + tied + 1e-9
    else:
        exposed = float(view.answer.timeline.exposed_reduce_s.mean()) * view.answer.timeline.updates
        hidden = exposed / view.answer.step_time_s if view.program.hide_grad_reduce else 0.0
        assert idle == pytest.approx(view.answer.bubble_fraction + hidden, abs=1e-6)
    assert (view.share <= 1 + 1e-9).all()


@rows("settings", SETTINGS.values(), ids=list(SETTINGS))
@rows("schedule", ["1f1b", "zb_v", "dualpipe", "breadth_first"])
def test_what_follows_fills_the_step_to_its_end(view_of, schedule, settings):
    view = view_of(schedule, *settings)
    last = np.zeros(view.program.order.num_ranks)
    np.maximum.at(last, view.program.order.rank, view.timeline.end)
    bars, begun = view.bars(ONCE), view.timeline.begun_s
    for rank in range(len(last)):
        begin, end = bars.begin_s[bars.rank == rank], bars.end_s[bars.rank == rank]
        assert begin[0] >= last[rank] - 1e-9
        assert (begin[1:] >= end[:-1] - 1e-9).all()
        assert end[-1] <= begun[rank] + view.answer.step_time_s + 1e-9
    assert (bars.end_s - begun[bars.rank]).max() == pytest.approx(view.answer.step_time_s, rel=1e-9)


@rows("schedule", schedule_names())
def test_actions_of_a_rank_do_not_overlap_and_sends_arrive_before_they_are_needed(view_of, schedule):
    view = view_of(schedule)
    same = np.diff(view.program.order.rank) == 0
    assert (view.timeline.start[1:][same] >= view.timeline.end[:-1][same] - 1e-12).all()
    assert (view.compute_end <= view.timeline.end + 1e-12).all()
    receiver, sender, begin, arrived = view.sends()
    assert len(receiver)
    assert (view.timeline.start[receiver] >= arrived - 1e-9).all()
    assert (begin >= view.compute_end[sender] - 1e-9).all()


@rows("schedule", ["1f1b", "interleaved", "zb_h2", "dualpipe", "pipedream_2bw", "v_min"])
def test_the_memory_curve_has_the_peak_of_the_estimate_and_ends_empty(view_of, schedule):
    view = view_of(schedule)
    for (times, held), use in zip(view.kept(), view.answer.memory, strict=True):
        assert held.max() == pytest.approx(use.activations, rel=1e-9)
        assert (np.diff(times) > 0).all()
        assert held[-1] == pytest.approx(0.0, abs=1.0)
    assert peak_in_flight(view.program.order, view.kept_bytes).max() == pytest.approx(
        max(held.max() for _, held in view.kept())
    )


def test_chunks_copies_slices_and_batches_are_told_apart(view_of):
    assert set(view_of("zb_v").chunk) == {0, 1}
    assert set(view_of("dualpipe").chunk) == {0}
    for schedule, shades in {"zb_v": [0, 1], "dualpipe": [0, 0.75], "pipedream": [0, 1]}.items():
        assert np.unique(view_of(schedule).paleness()).tolist() == shades
    assert np.unique(view_of("seq1f1b").paleness()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    labels = set(view_of("seq1f1b").labels())
    assert {"0a", "0b", "0c", "0d", "7d"} <= labels
