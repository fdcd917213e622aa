"""What drawings show is what the engines said: idle shares, what follows the pipeline, memory, sends."""

from itertools import pairwise

import numpy as np
import pytest

from sim import schedule_names
from sim.errors import SpecError
from sim.report.scene import show_step
from sim.schedules.actions import U
from sim.schedules.passes import peak_alive

SETTINGS = {
    "plain": (),
    "overlapped": ("stack.overlap_grad_reduce=true", "stack.overlap_param_gather=true", "plan.zero_stage=1"),
    "sends beside compute": ("stack.overlap_p2p=true",),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("schedule", schedule_names())
def test_the_idle_shares_are_the_bubble(scene_of, schedule, settings):
    scene = scene_of(schedule, *settings)
    tied = scene.program.costs.tied_embedding / scene.answer.step_time_s
    idle = float((1 - scene.share).mean())
    if not scene.streams:  # the tied embedding's reduction keeps two ranks; all others wait for it
        assert scene.answer.bubble_fraction - 1e-9 <= idle <= scene.answer.bubble_fraction + tied + 1e-9
    else:
        exposed = float(scene.answer.timeline.exposed_reduce.mean()) * scene.answer.timeline.updates
        hidden = exposed / scene.answer.step_time_s if scene.program.hide_grad_reduce else 0.0
        assert idle == pytest.approx(scene.answer.bubble_fraction + hidden, abs=1e-6)
    assert (scene.share <= 1 + 1e-9).all()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb_v", "dualpipe", "breadth_first"])
def test_what_follows_fills_the_step_to_its_end(scene_of, schedule, settings):
    scene = scene_of(schedule, *settings)
    last = np.zeros(scene.program.order.num_ranks)
    np.maximum.at(last, scene.program.order.rank, scene.end)
    bars = scene.after()
    for rank in range(len(last)):
        mine = [bar for bar in bars if bar.rank == rank]
        assert mine[0].begin >= last[rank] - 1e-9
        assert all(after.begin >= before.end - 1e-9 for before, after in pairwise(mine))
        assert max(bar.end for bar in mine) <= scene.begin[rank] + scene.answer.step_time_s + 1e-9
    ends = [bar.end - scene.begin[bar.rank] for bar in bars]
    assert max(ends) == pytest.approx(scene.answer.step_time_s, rel=1e-9)


@pytest.mark.parametrize("schedule", schedule_names())
def test_actions_of_a_rank_do_not_overlap_and_sends_arrive_before_they_are_needed(scene_of, schedule):
    scene = scene_of(schedule)
    same = np.diff(scene.program.order.rank) == 0
    assert (scene.start[1:][same] >= scene.end[:-1][same] - 1e-12).all()
    assert (scene.compute_end <= scene.end + 1e-12).all()
    receiver, sender, begin, arrived = scene.sends()
    assert len(receiver)
    assert (scene.start[receiver] >= arrived - 1e-9).all()
    assert (begin >= scene.compute_end[sender] - 1e-9).all()


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb_h2", "dualpipe", "pipedream_2bw", "v_min"])
def test_the_memory_curve_has_the_peak_of_the_estimate_and_ends_empty(scene_of, schedule):
    scene = scene_of(schedule)
    for (times, held), use in zip(scene.kept(), scene.answer.memory, strict=True):
        assert held.max() == pytest.approx(use.activations, rel=1e-9)
        assert (np.diff(times) > 0).all()
        assert held[-1] == pytest.approx(0.0, abs=1.0)
    assert peak_alive(scene.program.order, scene.kept_bytes).max() == pytest.approx(
        max(held.max() for _, held in scene.kept())
    )


def test_a_stream_is_cut_before_a_drain_that_it_does_not_have(scene_of):
    scene = scene_of("pipedream_2bw")
    order = scene.program.order
    assert (order.kind == U).sum() == 3 * order.num_ranks
    first, second, third = np.unique(order.microbatch[order.kind == U])
    updates = scene.end[(order.kind == U) & (order.rank == 0)]
    assert scene.horizon == updates[1]
    assert (first, second, third) == (7, 15, 23)
    # From update to update of the first rank: a batch in the steady state.
    assert updates[1] - updates[0] == pytest.approx(scene.answer.step_time_s, rel=1e-6)


def test_chunks_copies_slices_and_batches_are_told_apart(scene_of):
    assert set(scene_of("zb_v").chunk) == {0, 1}
    wave = scene_of("dualpipe")
    assert set(wave.copy) == {0, 1}
    assert set(wave.chunk) == {0}
    assert set(scene_of("pipedream").batch) == {0, 1, 2}
    labels = set(scene_of("seq1f1b").labels())
    assert {"0a", "0b", "0c", "0d", "7d"} <= labels


def test_an_engine_without_times_is_refused(small):
    with pytest.raises(SpecError, match="gives totals"):
        show_step(small("1f1b"), "closed_form")


def test_engines_show_the_same(scene_of):
    dag, des = scene_of("zb_h1"), scene_of("zb_h1", engine="des")
    np.testing.assert_allclose(dag.start, des.start, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dag.compute_end, des.compute_end, rtol=1e-9)
