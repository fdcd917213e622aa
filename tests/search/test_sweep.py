"""Sweeps: what an axis says, that a point is a search of the changed scenario, and that better machines are not slower."""

from pathlib import Path

import numpy as np
import pytest
from open_space import search, sweep
from rows import rows

from sim.search.sweep import parse_axis
from sim.specs import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = SCENARIOS / "korthikanti-2022" / "22b-selective.yaml"
NETWORK = "cluster.inter_node_bandwidth"


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(SMALL)


@rows(
    ("text", "values", "spacing"),
    [
        (f"{NETWORK}=25..800Gbit/s", [25, 50, 100, 200, 400, 800], "geometric"),
        (f"{NETWORK}=25 Gbit/s..800 Gbit/s:3", [25, 141.421356237, 800], "geometric"),
        (f"{NETWORK}=100..400Gbit/s", [100, 175, 250, 325, 400], "linear"),  # a factor of four is not beyond four
        (f"{NETWORK}=12.5,50 GB/s", [12.5, 50], "listed"),
        ("training.sequence_length=1k..8k", [1024, 2048, 4096, 8192], None),
        ("gpus=256..1024", [256, 512, 1024], None),  # equal steps would be 448, 640 and 832 GPUs, which hold no layout
        ("training.global_batch_size=1536..6144:4", [1536, 3072, 4608, 6144], None),
        ("cluster.num_nodes=1..64", [1, 2, 4, 8, 16, 32, 64], None),
        ("cluster.num_nodes=1..3", [1, 2, 3], None),  # rounded, each once
        ("profile.nvlink.efficiency=0.5..0.9:3", [0.5, 0.7, 0.9], None),
    ],
)
def test_values_of_an_axis(text, values, spacing):
    axis = parse_axis(text)
    assert axis.values == pytest.approx(values)
    assert spacing in (None, axis.spacing)
    assert len(parse_axis("cluster.num_nodes=10..1000").values) == 9


def test_a_point_is_a_search_of_the_changed_scenario(scenario):
    swept = sweep(scenario, f"{NETWORK}=50,100Gbit/s", gpus=(64, 64), confirm=3)
    changed = load_scenario(SMALL, [f"{NETWORK}=50 Gbit/s"])
    best = search(changed, gpus=(64, 64), top=1, confirm=3).best[0]
    assert swept.points[0].best.answer.step_time_s == pytest.approx(best.answer.step_time_s, rel=1e-12)
    assert swept.points[0].best.scenario.plan == best.scenario.plan


def test_better_machines_are_not_slower(scenario):
    """Every plan of the weaker machine runs on the better one, and no slower."""
    swept = sweep(
        scenario, [f"{NETWORK}=25..400Gbit/s:3", "cluster.node.gpu.memory=24,40,80 GB"], gpus=(32, 32), confirm=3
    )
    times = np.array([p.best.answer.step_time_s if p.best else np.inf for p in swept.points]).reshape(3, 3)
    assert np.isfinite(times).any()
    for axis in (0, 1):
        worse, better = np.delete(times, -1, axis), np.delete(times, 0, axis)
        assert (better <= worse * (1 + 1e-9)).all()


def test_the_size_is_an_axis_too(scenario):
    sizes = sweep(scenario, "gpus=8,7", confirm=2)
    assert sizes.points[0].best.answer.num_gpus == 8
    assert "nearest numbers that can be made" in sizes.points[1].infeasible
    nodes = sweep(scenario, "cluster.num_nodes=1,2", confirm=2)
    assert [point.best.answer.num_gpus for point in nodes.points] == [8, 16]
    assert any("all GPUs of its cluster" in note for note in nodes.notes)


def test_infeasible_points_stand_with_their_reason(scenario):
    swept = sweep(scenario, "cluster.node.gpu.memory=8,80 GB", confirm=2)
    assert swept.points[0].best is None
    assert "memory rules them all out" in swept.points[0].infeasible
    frame = swept.to_frame()
    assert list(frame["infeasible"].notna()) == [True, False]
    assert frame["step_time_s"].notna().tolist() == [False, True]
    swept = sweep(scenario, "training.sequence_length=2048,4096", confirm=2)
    assert "learned positions" in swept.points[1].infeasible
