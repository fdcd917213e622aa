"""Drawings and traces show what the engines said; files are what their names say, traces keep to the Trace Event Format."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from sim import schedule_names
from sim.canvas import new_figure, write_figure
from sim.engines.tasks import ONCE
from sim.errors import SpecError
from sim.report.figures import save
from sim.report.gantt import comparison_figure, gantt_figure
from sim.report.gantt.figure import draw_lanes, legend_handles
from sim.report.gantt.trace import COMPUTE, write_trace
from sim.schedules.passes import peak_in_flight
from tests.rows import rows


@rows("schedule", schedule_names())
def test_every_action_is_a_bar_and_every_colour_is_named(view_of, schedule):
    view = view_of(schedule)
    panel, order = new_figure(11.0, 4.0).subplots(), view.program.order
    seen = draw_lanes(panel, view, (0.0, view.horizon), 0.84 * 11.0, order.num_ranks / 3)
    (bars,) = panel.collections
    assert len(bars.get_paths()) >= int((view.timeline.start < view.horizon).sum())
    labels = [handle.get_label() for handle in legend_handles([view], seen)]
    assert any(label.startswith("forward") for label in labels)
    assert labels[-1] == "idle"
    assert any("last rank to first" in label for label in labels) == (order.copies > 1)
    assert any("later chunks" in label for label in labels) == (order.num_stages > order.num_ranks * order.copies)
    assert any("every other batch" in label for label in labels) == view.streams


def test_files_are_what_their_names_say(view_of, tmp_path):
    png, svg = tmp_path / "step.PNG", tmp_path / "step.svg"
    for path in (png, svg):
        save(gantt_figure(view_of("zb_h1"), width_in=7), path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()[:1000]
    save(comparison_figure([view_of("1f1b"), view_of("chimera"), view_of("pipedream")]), png)
    assert png.stat().st_size > 10_000


def test_a_stretch_is_shown_as_asked_and_one_that_is_none_refused(view_of):
    view = view_of()
    assert gantt_figure(view, between=(0.5, None)).axes[0].get_xlim() == (0.5, view.horizon)
    assert gantt_figure(view, between=(None, 99.0)).axes[0].get_xlim() == (0.0, view.horizon)
    for between in ((0.4, 0.3), (11.0, None), (-1.0, 0.3), (0.2, 0.2), (float("nan"), 0.3)):
        with pytest.raises(SpecError, match="no stretch of what there is to show"):
            gantt_figure(view, between=between)
    for width in (0.0, 1e6, float("nan")):
        with pytest.raises(SpecError, match="inches wide"):
            gantt_figure(view, width_in=width)


def test_what_comes_after_a_stream_is_left_out(view_of):
    """A stream without flush goes on; nothing of it is drawn backwards from where the chart ends."""
    view, panel = view_of("pipedream_2bw"), new_figure(9, 2).subplots()
    draw_lanes(panel, view, (0.0, view.horizon), 9, 2, shift=view.timeline.step_time_s / 2)
    across = [path.vertices[:, 0] for path in panel.collections[0].get_paths()]
    assert all(x[2] > x[0] for x in across)
    assert max(x.max() for x in across) < view.horizon


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_the_same_figure_is_the_same_bytes(tmp_path, ending):
    """No date is written, and no name is drawn at random."""
    written = []
    for name in ("one", "two"):
        figure = new_figure(4, 3)
        figure.subplots().plot([1, 2], [3, 4], "o-")
        write_figure(figure, tmp_path / f"{name}{ending}", 50)
        written.append((tmp_path / f"{name}{ending}").read_bytes())
    assert written[0] == written[1]
    assert b"dc:date" not in written[0]
    assert b"CreationDate" not in written[0]


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


REQUIRED = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float, "bp": str},
    "b": {"name": str, "cat": str, "id": int, "pid": int, "ts": float, "args": dict},
    "e": {"name": str, "cat": str, "id": int, "pid": int, "ts": float},
    "C": {"name": str, "pid": int, "ts": float, "args": dict},
}
OVERLAPPED = ("stack.overlap_grad_reduce=true", "stack.overlap_p2p=true", "plan.zero_stage=1")


def trace_of(view, tmp_path):
    path = tmp_path / "step.json"
    count = write_trace(view, path)
    trace = json.loads(path.read_text())
    assert count == len(trace["traceEvents"])
    assert trace["displayTimeUnit"] in ("ms", "ns")
    return trace["traceEvents"]


def check(events):
    """Raise where the events break a rule of the format; return the slices of each thread."""
    slices, counters, flows, sends = defaultdict(list), defaultdict(list), defaultdict(dict), defaultdict(dict)
    for event in events:
        for field, kind in REQUIRED[event["ph"]].items():
            value = event[field]
            assert isinstance(value, kind), (field, event)
            if kind is float:
                assert value >= 0
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event["ts"])
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] in "sfbe":
            pairs = (flows if event["ph"] in "sf" else sends)[event["id"]]
            assert event["ph"] not in pairs
            pairs[event["ph"]] = event
    for thread in slices.values():
        for before, after in pairwise(thread):  # in the order of time, one after the other
            assert round(after["ts"] * 1000) >= round((before["ts"] + before["dur"]) * 1000)
    for times in counters.values():
        assert times == sorted(times)
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        assert ends["s"]["pid"] != ends["f"]["pid"]
        for event in ends.values():
            assert any(event["ts"] == each["ts"] for each in slices[event["pid"], event["tid"]])
    for number, ends in sends.items():  # on the way between what sends and what waits
        assert set(ends) == {"b", "e"}
        assert flows[number]["s"]["ts"] <= ends["b"]["ts"] <= ends["e"]["ts"] <= flows[number]["f"]["ts"] + 1e-3
    return slices, flows


@rows("settings", [(), OVERLAPPED], ids=["plain", "overlapped"])
@rows("schedule", schedule_names())
def test_every_trace_keeps_the_rules(view_of, tmp_path, schedule, settings):
    view = view_of(schedule, *settings)
    events = trace_of(view, tmp_path)
    slices, flows = check(events)
    order = view.program.order
    assert len(flows) == len(view.sends()[0])
    compute = [event for (_, tid), thread in slices.items() if tid % 1000 == COMPUTE for event in thread]
    counted = Counter(event["args"]["kind"] for event in compute if "kind" in event["args"])
    assert sum(counted.values()) == len(order)
    assert {event["pid"] for event in compute} == set(range(order.num_ranks))
    names = {(event["pid"], event.get("tid")): event["args"] for event in events if event["ph"] == "M"}
    assert all((pid, tid) in names for pid, tid in slices)
