"""Figures: every schedule can be drawn, files are what their names say, and what is drawn is what was played."""

import numpy as np
import pytest

from sim import load_scenario, schedule_names
from sim.errors import SpecError
from sim.report.figures import check_paths, transients, window_of
from sim.report.gantt import draw_gantt
from sim.report.lanes import draw_lanes
from sim.report.legend import legend_handles
from sim.report.palette import AFTER_COLOURS, KIND_COLOURS, ink, shade
from sim.report.scene import show_step
from sim.report.stacked import draw_comparison


def lanes(scene, width_in=11.0):
    """(axes, what was seen) of the lanes alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    window = window_of([scene], width_in)
    seen = draw_lanes(axes, scene, window, points_per_s=72 * 0.84 * width_in / window.width, lane_points=24.0)
    pyplot.close(figure)
    return axes, seen


@pytest.mark.parametrize("schedule", schedule_names())
def test_every_action_is_a_bar_and_every_colour_is_named(scene_of, schedule):
    scene = scene_of(schedule)
    axes, seen = lanes(scene)
    order = scene.program.order
    bars = sum(len(collection.get_paths()) for collection in axes.collections)
    drawn = int((scene.start < scene.horizon).sum())
    assert bars >= drawn
    labels = [handle.get_label() for handle in legend_handles(scene, seen)]
    assert any(label.startswith("forward") for label in labels)
    assert labels[-1] == "idle"
    assert any("last rank to first" in label for label in labels) == (order.copies > 1)
    assert any("later chunks" in label for label in labels) == (order.num_stages > order.num_ranks * order.copies)
    assert any("update after each" in label for label in labels) == scene.streams


def test_files_are_what_their_names_say(scene_of, tmp_path):
    png, svg = tmp_path / "step.PNG", tmp_path / "step.svg"
    draw_gantt(scene_of("zb_h1"), [png, svg], width_in=7)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()[:1000]
    draw_comparison([scene_of("1f1b"), scene_of("chimera"), scene_of("pipedream")], [png])
    assert png.stat().st_size > 10_000


def test_a_long_step_is_broken_in_its_steady_state(scenarios):
    scene = show_step(load_scenario(scenarios / "gpt-1t-3072-a100.yaml"))
    window = window_of([scene], 11.0)
    (begin, end, left_out), fill, drain = window.breaks[0], *transients(scene)
    assert window.spans[0][1] >= fill
    assert scene.horizon - window.spans[1][0] >= drain
    assert left_out == pytest.approx(scene.horizon - window.shown)
    assert 0 < end - begin < 0.05 * window.width


def test_forwards_before_backwards_are_never_broken(scene_of):
    scene = scene_of("gpipe", "training.global_batch_size=512")
    assert len(window_of([scene], 11.0).spans) == 1


def test_numbers_are_written_where_they_fit(scene_of):
    wide, narrow = lanes(scene_of("1f1b"))[0], lanes(scene_of("1f1b", "training.global_batch_size=256"))[0]
    numbers = {text.get_text() for text in wide.texts}
    assert numbers == {str(number) for number in range(8)}
    assert len(narrow.texts) < 2 * 4 * 128


def test_versions_are_numbered_through_a_break(scene_of):
    scene = scene_of("pipedream_2bw", "training.global_batch_size=256")
    assert [text.get_text() for text in lanes(scene)[0].texts if "version" in text.get_text()] == ["version 2"]
    assert len(window_of([scene], 11.0).breaks) == 1


def test_colours_can_be_told_apart_in_grey_too():
    def lightness(colour):
        red, green, blue = shade(colour, 0)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    together = [KIND_COLOURS[kind] for kind in (0, 1, 4)]  # forward, backward, update stand side by side
    values = sorted(lightness(colour) for colour in together)
    assert np.diff(values).min() > 0.1
    assert len(set(KIND_COLOURS.values()) | set(AFTER_COLOURS.values())) == 9
    assert ink(shade(KIND_COLOURS[0], 0)) == "white"
    assert ink(shade(KIND_COLOURS[1], 0)) == "black"


def test_paths_are_checked_before_the_work(tmp_path):
    with pytest.raises(SpecError, match=r"must end in \.png or \.svg"):
        check_paths([tmp_path / "step.pdf"])
    with pytest.raises(SpecError, match="there is no folder"):
        check_paths([tmp_path / "nowhere" / "step.png"])
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        check_paths([tmp_path / "folder.png"])


@pytest.mark.parametrize("width", [0.0, -3.0, 1e6, float("nan")])
def test_a_width_that_cannot_be_drawn(scene_of, tmp_path, width):
    with pytest.raises(SpecError, match="inches wide"):
        draw_gantt(scene_of(), [tmp_path / "step.png"], width_in=width)
