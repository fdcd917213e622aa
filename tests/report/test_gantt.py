"""Figures: every schedule can be drawn, files are what their names say, and what is drawn is what was played."""

import pytest

from sim import schedule_names
from sim.canvas import new_figure, write_figure
from sim.errors import SpecError
from sim.report.figures import save
from sim.report.gantt import comparison_figure, gantt_figure
from sim.report.gantt.figure import draw_lanes, legend_handles
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
