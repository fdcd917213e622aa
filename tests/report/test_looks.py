"""Words hide no other and are cut nowhere, axes suit what is on them, and colours can be read on light and dark."""

import io
from pathlib import Path

import numpy as np
import pytest
from open_space import sweep
from rich.console import Console

from sim.canvas import new_figure
from sim.report.facts import GROUPS
from sim.report.figures import LOOKS, ink, luminance, place_labels
from sim.report.html.page import DIM, MEMORY, THEMES
from sim.specs import load_scenario
from sim.table import Table
from tests.rows import rows

SMALL = Path(__file__).parents[2] / "scenarios" / "korthikanti-2022" / "22b-selective.yaml"


@pytest.fixture(scope="module")
def small():
    return load_scenario(SMALL)


def test_labels_hide_neither_each_other_nor_points_and_stay_inside():
    rng = np.random.default_rng(0)
    places = rng.uniform(0.0, 1.0, (40, 2))
    figure = new_figure(5, 4)
    panel = figure.subplots()
    panel.set(xlim=(0, 1), ylim=(0, 1))
    place_labels(panel, [(x, y, f"{number:,} GPUs") for number, (x, y) in enumerate(places.tolist())])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in panel.texts]
    assert len(boxes) > 10
    there = panel.transData.transform(places)
    for number, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[:number])
        assert not box.count_contains(there)
        assert panel.get_window_extent().count_overlaps([box]) == 1
    assert panel.texts[0].get_text() == "0 GPUs"  # the first has the first choice


def test_values_of_a_sweep_stand_one_after_the_other(small):
    near = sweep(small, "cluster.inter_node_bandwidth=0.001,25,26,800 Gbit/s", confirm=1, gpus=(32, 32)).plot()
    assert near.axes[0].lines[0].get_xdata() == pytest.approx([0, 1, 2, 3])
    assert near.axes[0].get_yscale() == "log"
    even = sweep(small, "cluster.inter_node_bandwidth=25..100 Gbit/s", confirm=1, gpus=(32, 32)).plot()
    assert even.axes[0].get_yscale() == "linear"


@rows(
    ("objective", "counts"),
    [
        ("cost", ("cost [GPU-seconds a step]", lambda answer: answer.step_time_s * answer.num_gpus)),
        ("days", ("time of the run [days]", lambda answer: answer.training_time_s / 86400)),
    ],
)
def test_a_sweep_draws_what_its_objective_counts(small, objective, counts):
    if objective == "days":
        small = small.replace(training=small.training.replace(tokens=3e11))
    swept = sweep(small, "gpus=8,16", confirm=1, objective=objective)
    panel, (name, count) = swept.plot().axes[0], counts
    assert panel.get_ylabel() == name
    assert panel.lines[0].get_ydata() == pytest.approx([count(point.best.answer) for point in swept.points])


ROWS = [("zb_v", "14.0 s", "+0.0%", "6.91 GB"), ("interleaved", "14.8 s", "", "123.45 GB")]


def printed(width):
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("schedule", "step time", "slower", "activations\nkept"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in ROWS:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@rows("width", [20, 30, 44, 60, 100])
def test_every_value_is_there_and_no_line_is_too_long(width):
    lines = printed(width)
    text = "\n".join(lines)
    assert "…" not in text
    assert all(cell in text for row in ROWS for cell in row)
    assert max(map(len, lines)) <= width


def test_where_there_is_room_it_is_a_table():
    assert len(printed(60)) == 4  # a heading of two lines
    assert len(printed(30)) > 4
    assert any("step time" in line and "14.8 s" in line for line in printed(30))


def contrast(one, other):
    """How well one colour is read on another, 1 (not at all) to 21 (black on white): WCAG 2.2's ratio."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(over, under, share):
    """What is seen of a colour that is so opaque over another."""
    pairs = [(int(over[at : at + 2], 16), int(under[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * top + (1 - share) * below):02x}" for top, below in pairs)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the example of many a guide: just too pale
    assert luminance("#ffffff") == pytest.approx(1.0)
    assert mixed("#000000", "#ffffff", 0.5) == "#808080"


@rows("theme", THEMES)
@rows("what", ["ink", "wrong", "accent"])
def test_what_is_written_can_be_read(theme, what):
    colours = THEMES[theme]
    assert contrast(colours[what], colours["paper"]) >= 4.5
    # Code and bars lie on a veil of grey over the paper.
    assert contrast(colours[what], mixed("#808080", colours["paper"], 0.13)) >= 4.5
    assert contrast(mixed(colours["ink"], colours["paper"], DIM), colours["paper"]) >= 4.5


@rows("colour", sorted({*(kind.colour for kind in (*GROUPS.values(), *LOOKS.values())), *MEMORY.values()}))
def test_numbers_in_bars_can_be_read(colour):
    assert contrast(ink(colour), colour) >= 4.5
