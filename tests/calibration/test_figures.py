"""A calibration drawn: only what was measured, and a dot for every measurement; and one that has little time."""

from pathlib import Path

import numpy as np
import pytest

import flopcast_calibration
from flopcast_calibration.build import calibrate
from flopcast_calibration.measurement import MeasurementSet
from flopcast_calibration.node import measured_cluster
from flopcast_calibration.readers import read_measurements
from flopcast_calibration.report import profile_figure, residual_figure
from sim import Profile, ProfileError
from sim.specs import load_preset

DATA = Path(flopcast_calibration.__file__).parent / "data"


@pytest.fixture(scope="module")
def dgx():
    logs = (read_measurements(DATA / name) for name in ("dgx-a100-all-reduce.txt", "dgx-a100-gemm.csv"))
    data = MeasurementSet({"device": "A100-SXM4-80GB"}, tuple(item for log in logs for item in log.measurements))
    node = measured_cluster(data.machine, "dgx-a100-80gb")
    base = Profile.read(load_preset("profiles", "a100"), "profile a100")
    return calibrate("dgx", data, node, base, draws=1), node, data


def test_a_log_and_a_table_make_a_profile_near_the_shipped_one(dgx):
    result, _, data = dgx
    assert len(data.measurements) == 22
    shipped = Profile.read(load_preset("profiles", "a100"), "profile a100")
    assert result.profile.gemm.max_efficiency == pytest.approx(shipped.gemm.max_efficiency, abs=0.03)
    # 8 GB on 8 GPUs: 234.6 of 300 GB/s of bus bandwidth (stas00/ml-engineering).
    link, moved = result.profile.nvlink, 2 * 7 / 8 * 8e9
    reached = link.efficiency / (1 + (link.half_volume_bytes / moved) ** link.exponent)
    assert reached == pytest.approx(234.6 / 300, abs=0.02)


def test_panels_are_of_what_was_measured(dgx):
    result, node, data = dgx
    figure = profile_figure(result.profile, node, data)
    assert [panel.get_title() for panel in figure.axes] == ["matrix multiplies", "all-reduce (lines: fitted)"]
    with pytest.raises(ProfileError, match="nothing to draw"):
        profile_figure(result.profile, node, MeasurementSet({}, ()))


def test_a_dot_for_every_measurement(dgx):
    figure = residual_figure(dgx[0])
    dots = [line.get_xdata() for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert [len(each) for each in dots] == [8, 14]
    assert dots[1] == pytest.approx(100 * np.expm1(dgx[0].fits["nvlink"].residuals))
