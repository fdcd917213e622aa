"""Lamy-Poirier's family and thresholds: the sheet's recomputed numbers, and the claims of the abstract as ratios."""

import numpy as np
import pytest

from flopcast_validation.strategies.question import (
    data_parallel_intensity,
    family,
    gather_intensity,
    needed_intensity,
    pipeline_bubble,
    pipeline_intensity,
    tensor_intensity,
    training_time,
)
from sim.engines import Program, run
from sim.schedules import build_order

A100, DAY, YEAR = 312e12, 86400.0, 365.25 * 86400.0
X160 = family(160)
TENSOR = float(needed_intensity(A100, 600e9) / tensor_intensity(X160.hidden_size, 16))


def test_x160():
    assert (X160.hidden_size, X160.sequence_length) == (25600, 2560)
    assert X160.params == pytest.approx(1.258e12, rel=1e-3)
    assert X160.critical_batch_sequences == pytest.approx(2417, abs=1)
    assert X160.critical_batch_tokens == pytest.approx(6.19e6, rel=2e-3)
    assert X160.critical_batch_sequences == pytest.approx(82.0 * 160 ** (2 / 3), rel=2e-4)
    assert X160.training_flop == pytest.approx(6.22e24, rel=2e-3)
    assert training_time(X160, 1, 0, A100) / YEAR == pytest.approx(632, rel=2e-3)


@pytest.mark.parametrize(
    ("bandwidth", "threshold"),
    [(2039e9, 153), (1555e9, 201), (600e9, 520), (63e9, 4952), (50e9, 6240), (6.25e9, 49_920)],
    ids=["HBM", "HBM of 40 GB", "NVLink", "PCIe", "InfiniBand", "25 GbE"],
)
def test_thresholds_of_an_a100(bandwidth, threshold):
    assert needed_intensity(A100, bandwidth) == pytest.approx(threshold, abs=0.5)


def test_what_hides_for_x160():
    assert tensor_intensity(25600, 16) == 5120
    assert pytest.approx(0.102, abs=5e-4) == TENSOR
    assert tensor_intensity(25600, 16, recompute_collectives=True) == pytest.approx(5120 * 2 / 3)
    assert tensor_intensity(25600, 1) == np.inf
    assert pipeline_intensity(25600) == 307_200 > needed_intensity(A100, 6.25e9)
    one = data_parallel_intensity(X160.sequence_length)
    assert needed_intensity(A100, 50e9) / one == pytest.approx(3.25)
    assert needed_intensity(A100, 6.25e9) / one == pytest.approx(26.0)
    assert data_parallel_intensity(2560, 26) == 26 * one
    assert gather_intensity(2560) == one * 2 / 3


@pytest.mark.parametrize(("pp", "layers", "microbatches"), [(5, 160, 5), (32, 160, 32), (4, 8, 9)])
def test_the_schedule_played_has_the_modular_pipelines_bubble(pp, layers, microbatches, costs_of):
    chunks = layers // pp
    order = build_order("breadth_first", pp, chunks, microbatches)
    step = run(Program(order, costs_of(pp, [1.0] * layers, [3.0] * layers)), "dag").step_time_s
    assert step / (4.0 * chunks * microbatches) - 1 == pytest.approx(pipeline_bubble(pp, microbatches, chunks))


@pytest.mark.parametrize(
    ("gpus", "bubble", "tensor", "days"),
    [
        (483, 0, 0, 1.31 * 365.25),
        (2240, 0.924, 0, 198),
        (2415, 0.025, 0, 98),
        (7728, 0, TENSOR, 33),
        (35_840, 0.924, TENSOR, 13.0),
        (38_640, 0.025, TENSOR, 6.7),
        (38_400, 0.194, TENSOR, 7.8),
    ],
    ids=["data", "pipeline baseline", "pipeline improved", "tensor", "3d baseline", "3d improved", "3d on 25 GbE"],
)
def test_times_of_the_reconstructed_table(gpus, bubble, tensor, days):
    assert training_time(X160, gpus, bubble + tensor, A100) / DAY == pytest.approx(days, rel=7e-3)
