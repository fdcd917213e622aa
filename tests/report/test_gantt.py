"""Figures: every schedule can be drawn, files are what their names say, and what is drawn is what was played."""

import numpy as np
import pytest

from sim import load_scenario, schedule_names
from sim.errors import SpecError
from sim.report.figures import check_paths, save
from sim.report.gantt import comparison_figure, gantt_figure, step_view
from sim.report.gantt.chart import transients, window_of
from sim.report.gantt.lanes import draw_lanes, legend_handles
from sim.report.palette import LOOKS, ink, shade


def lanes(view, width_in=11.0):
    """(axes, what was seen) of the lanes alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    window = window_of([view], 0.84 * 24 * width_in)
    seen = draw_lanes(axes, view, window, points_per_s=72 * 0.84 * width_in / window.width, lane_points=24.0)
    pyplot.close(figure)
    return axes, seen


@pytest.mark.parametrize("schedule", schedule_names())
def test_every_action_is_a_bar_and_every_colour_is_named(view_of, schedule):
    view = view_of(schedule)
    axes, seen = lanes(view)
    order = view.program.order
    bars = sum(len(collection.get_paths()) for collection in axes.collections)
    drawn = int((view.start < view.horizon).sum())
    assert bars >= drawn
    labels = [handle.get_label() for handle in legend_handles(view, seen)]
    assert any(label.startswith("forward") for label in labels)
    assert labels[-1] == "idle"
    assert any("last rank to first" in label for label in labels) == (order.copies > 1)
    assert any("later chunks" in label for label in labels) == (order.num_stages > order.num_ranks * order.copies)
    assert any("update after each" in label for label in labels) == view.streams


def test_files_are_what_their_names_say(view_of, tmp_path):
    png, svg = tmp_path / "step.PNG", tmp_path / "step.svg"
    save(gantt_figure(view_of("zb_h1"), width_in=7), [png, svg])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()[:1000]
    save(comparison_figure([view_of("1f1b"), view_of("chimera"), view_of("pipedream")]), [png])
    assert png.stat().st_size > 10_000


def test_a_long_step_is_broken_in_its_steady_state(scenarios):
    view = step_view(load_scenario(scenarios / "gpt-1t-3072-a100.yaml"))
    window = window_of([view], 0.84 * 24 * 11)
    (begin, end, left_out), fill, drain = window.breaks[0], *transients(view)
    assert window.spans[0][1] >= fill
    assert view.horizon - window.spans[1][0] >= drain
    assert left_out == pytest.approx(view.horizon - window.shown)
    assert 0 < end - begin < 0.05 * window.width


def test_forwards_before_backwards_are_never_broken(view_of):
    view = view_of("gpipe", "training.global_batch_size=512")
    assert len(window_of([view], 0.84 * 24 * 11).spans) == 1


def test_numbers_are_written_where_they_fit(view_of):
    wide, narrow = lanes(view_of("1f1b"))[0], lanes(view_of("1f1b", "training.global_batch_size=256"))[0]
    numbers = {text.get_text() for text in wide.texts}
    assert numbers == {str(number) for number in range(8)}
    assert len(narrow.texts) < 2 * 4 * 128


def test_versions_are_numbered_through_a_break(view_of):
    view = view_of("pipedream_2bw", "training.global_batch_size=256")
    assert [text.get_text() for text in lanes(view)[0].texts if "version" in text.get_text()] == ["version 2"]
    assert len(window_of([view], 0.84 * 24 * 11).breaks) == 1


def test_colours_can_be_told_apart_in_grey_too():
    def lightness(colour):
        red, green, blue = shade(colour, 0)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    together = [LOOKS[kind].colour for kind in "FBU"]  # forward, backward, update stand side by side
    values = sorted(lightness(colour) for colour in together)
    assert np.diff(values).min() > 0.1
    assert len({look.colour for look in LOOKS.values()}) == 11
    assert ink(shade(LOOKS["F"].colour, 0)) == "white"
    assert ink(shade(LOOKS["B"].colour, 0)) == "black"


def test_paths_are_checked_before_the_work(tmp_path):
    with pytest.raises(SpecError, match=r"must end in \.png or \.svg"):
        check_paths([tmp_path / "step.pdf"])
    with pytest.raises(SpecError, match="there is no folder"):
        check_paths([tmp_path / "nowhere" / "step.png"])
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        check_paths([tmp_path / "folder.png"])


@pytest.mark.parametrize("width", [0.0, -3.0, 1e6, float("nan")])
def test_a_width_that_cannot_be_drawn(view_of, width):
    with pytest.raises(SpecError, match="inches wide"):
        gantt_figure(view_of(), width_in=width)
