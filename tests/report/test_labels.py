"""Words in figures of a search: none hides another, and axes suit what is on them."""

from pathlib import Path

import numpy as np
import pytest
from open_space import sweep

from sim.canvas import new_figure
from sim.report.figures import place_labels
from sim.specs import load_scenario
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
