"""Refit a shipped profile's values from published measurements: `python -m flopcast_calibration.refit FOLDER`.

FOLDER holds gemm.csv (gpu, dtype, m, n, k, batch, tflops), gemm_shapes.csv (a table as `calibrate fit` reads, of
several GPUs) and collectives.csv (gpu, nodes, gpus, collective, bytes, time_us). The values printed for A100 and V100
are those in `sim/presets/profiles`, but for the multiplies of V100 SXM2, which are `calibrate fit`'s on its rows of
gemm_shapes.csv; the other GPUs have too few public points, or reduce in the switch, which the cost functions do not
model: their profiles are anchored by hand.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flopcast_calibration.fit.kernels import GemmPoint, fit_alignment, fit_gemm
from flopcast_calibration.fit.links import AllReducePoint, fit_all_reduce
from flopcast_calibration.fit.solve import Fit
from flopcast_calibration.layer import FACTS, fit_layer, read_layer_points
from flopcast_calibration.points import gemm_point
from flopcast_calibration.readers.table import read_each_device
from sim.costs.compute import gemm_time
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.loading import resolve
from sim.specs.profile import GemmParams

#: profile -> (node preset, the measurements' GPU name starts with, its dtypes, precision)
SOURCES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "a100": ("dgx-a100-80gb", ("A100 SXM",), ("fp16", "bf16"), "fp16"),
    "p100": ("xc50", ("P100",), ("fp32",), "fp32"),
    "v100": ("dgx-1v", (), (), "fp16"),
    "v100-sxm3": ("dgx-1v", ("V100",), ("fp16 inputs, tensor cores", "fp16"), "fp16"),
    "h100": ("dgx-h100", ("H100 SXM", "H100"), ("bf16", "fp16"), "bf16"),
    "h200": ("dgx-h200", ("H200",), ("bf16", "fp16"), "bf16"),
    "b200": ("dgx-b200", ("B200",), ("bf16", "fp16"), "bf16"),
    "b300": ("dgx-b300", ("B300",), ("bf16", "fp16"), "bf16"),
}
_SMALLEST_MULTIPLY = 1e8
"""Below this the published times are launch latency of another library. [FLOP]"""
_SMALLEST_REDUCE = 2.0**15
"""Below this time does not depend on size any more. [bytes]"""


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def gemm_points(path: Path, gpu: tuple[str, ...], dtypes: tuple[str, ...]) -> list[GemmPoint]:
    """Measured multiplies of one GPU with a stated shape."""
    points = []
    for row in _rows(path):
        if (
            not row["gpu"].startswith(gpu)
            or row["dtype"] not in dtypes
            or not (row["m"] and row["n"] and row["k"] and row["tflops"])
        ):
            continue
        m, n, k = float(row["m"]), float(row["n"]), float(row["k"])
        flop = 2 * m * n * k * float(row["batch"] or 1)
        if flop >= _SMALLEST_MULTIPLY and not float(row["batch"] or 1) > 1:
            points.append(GemmPoint(m, n, k, flop / (float(row["tflops"]) * 1e12)))
    return points


def all_reduce_points(path: Path, gpu: str) -> list[AllReducePoint]:
    """Measured all-reduces inside one node of one GPU."""
    return [
        AllReducePoint(int(row["gpus"]), float(row["bytes"]), float(row["time_us"]) * 1e-6)
        for row in _rows(path)
        if row["gpu"] == gpu.upper()
        and row["nodes"] == "1"
        and row["collective"] == "all_reduce"
        and row["time_us"]
        and row["bytes"]
        and float(row["bytes"]) >= _SMALLEST_REDUCE
    ]


def refit(profile: str, folder: Path) -> dict[str, tuple[int, Fit]]:
    """Number of points and fit, for gemm and nvlink, of one shipped profile; a part without data is left out."""
    node, gpus, dtypes, precision = SOURCES[profile]
    cluster = ClusterSpec.read(resolve({"name": node, "node": node, "num_nodes": 1}, "cluster"), node)
    fits: dict[str, tuple[int, Fit]] = {}
    multiplies = gemm_points(folder / "gemm.csv", gpus, dtypes)
    if multiplies:
        fits["gemm"] = len(multiplies), fit_gemm(multiplies, cluster.gpu, precision)
    reduces = all_reduce_points(folder / "collectives.csv", profile)
    if reduces:
        fits["nvlink"] = len(reduces), fit_all_reduce(reduces, cluster)
    return fits


def refit_alignment(folder: Path) -> tuple[int, Fit]:
    """Number of points and fit of the A100's bounds on unaligned multiplies; its other values stay.

    The table does not say the card's memory: streams of 1.41 TB/s are nine tenths of what 40 GB have.
    """
    log = read_each_device(folder / "gemm_shapes.csv")["A100-SXM4"]
    points = [gemm_point(item) for item in log.measurements]
    node, profile = "dgx-a100-40gb", Profile.read(load_preset("profiles", "a100"), "a100")
    gpu = ClusterSpec.read(resolve({"name": node, "node": node, "num_nodes": 1}, "cluster"), node).gpu
    return len(points), fit_alignment(points, gpu, "fp16", profile.gemm, profile.memory.efficiency)


def leave_shape_out(profile: str, folder: Path, most: int = 30) -> np.ndarray:
    """Error (predicted over measured time − 1) of multiplies whose shape was left out of the fit.

    Of more than `most` shapes an even sample is left out, one at a time.
    """
    node, gpus, dtypes, precision = SOURCES[profile]
    gpu = ClusterSpec.read(resolve({"name": node, "node": node, "num_nodes": 1}, "cluster"), node).gpu
    points = gemm_points(folder / "gemm.csv", gpus, dtypes)
    shapes = sorted({(point.m, point.n, point.k) for point in points})
    errors: list[float] = []
    for shape in shapes[:: max(1, len(shapes) // most)] if len(shapes) > 1 else ():
        fit = fit_gemm([point for point in points if (point.m, point.n, point.k) != shape], gpu, precision)
        gemm = GemmParams.model_construct(**fit.params, kernel_floor_s=2e-6)
        for point in points:
            if (point.m, point.n, point.k) == shape:
                time_s = gemm_time(point.m, point.n, point.k, 1.0, precision, 2.0, gpu, gemm, 0.85)
                errors.append(float(time_s) / point.time_s - 1.0)
    return np.array(errors)


def main(arguments: list[str]) -> None:
    """Print every profile's refitted values, and the errors on multiplies of shapes left out."""
    folder = Path(arguments[0])
    for profile in SOURCES:
        for part, (count, fit) in refit(profile, folder).items():
            print(_line(profile, part, count, fit))
        errors = np.abs(leave_shape_out(profile, folder))
        if len(errors):
            median, high = np.median(errors), np.quantile(errors, 0.9)
            print(
                f"{profile} gemm, shape left out: {len(errors)} points, median {median:.1%}, 90th percentile {high:.1%}"
            )
        else:
            print(f"{profile} gemm, shape left out: too few public shapes")
    print(_line("a100", "alignment", *refit_alignment(folder)))
    layers = read_layer_points(FACTS / "korthikanti-2022-table-4.yaml")
    print(_line("a100", "layer", 2 * len(layers), fit_layer(layers)))


def _line(profile: str, part: str, count: int, fit: Fit) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in fit.params.items())
    return f"{profile} {part}: {count} points, median error {fit.median_error:.1%}: {values}"


if __name__ == "__main__":
    main(sys.argv[1:])
