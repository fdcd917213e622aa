"""Figures: every schedule can be drawn, files are what their names say, and what is drawn is what was played."""

import pytest

from sim import load_scenario, schedule_names
from sim.errors import SpecError
from sim.report.figures import save
from sim.report.gantt import comparison_figure, gantt_figure, step_view
from sim.report.gantt.chart import spans_of, transients
from sim.report.gantt.figure import draw_lanes, legend_handles
from tests.rows import rows

PLACES = 0.84 * 24 * 11.0


def lanes(view):
    """(panels, what was seen) of the lanes alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    spans = spans_of([view], PLACES)
    figure, row = pyplot.subplots(1, len(spans), squeeze=False)
    seen = draw_lanes(row[0], view, spans, 0.84 * 11.0, view.program.order.num_ranks / 3)
    pyplot.close(figure)
    return row[0], seen


@rows("schedule", schedule_names())
def test_every_action_is_a_bar_and_every_colour_is_named(view_of, schedule):
    view = view_of(schedule)
    (panel,), seen = lanes(view)
    order = view.program.order
    bars = sum(len(shape.get_path().codes) // 5 for shape in panel.patches)
    bars += sum(len(updates.get_paths()) for updates in panel.collections)
    drawn = int((view.start < view.horizon).sum())
    assert bars >= drawn
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


def test_a_long_step_is_broken_in_its_steady_state(scenarios):
    view = step_view(load_scenario(scenarios / "gpt-1t-3072-a100.yaml"))
    (begin, head), (tail, end) = spans_of([view], PLACES)
    fill, drain = transients(view)
    assert (begin, end) == (0.0, view.horizon)
    assert head >= fill
    assert end - tail >= drain
    assert head + end - tail < 0.8 * end
    panels, _ = lanes(view)
    assert [panel.get_xlim() for panel in panels] == [(begin, head), (tail, end)]
    assert panels[0].texts[-1].get_text().endswith("left out")


def test_a_stretch_is_shown_as_asked_and_one_that_is_none_refused(view_of):
    view = view_of()
    assert spans_of([view], 200.0, (0.5, None)) == ((0.5, view.horizon),)
    assert spans_of([view], 200.0, (None, 99.0)) == ((0.0, view.horizon),)
    for between in ((0.4, 0.3), (11.0, None), (-1.0, 0.3), (0.2, 0.2), (float("nan"), 0.3)):
        with pytest.raises(SpecError, match="no stretch of what there is to show"):
            spans_of([view], 200.0, between)


@rows("width", [0.0, -3.0, 1e6, float("nan")])
def test_a_width_that_cannot_be_drawn(view_of, width):
    with pytest.raises(SpecError, match="inches wide"):
        gantt_figure(view_of(), width_in=width)
