"""Measured matrix multiplies beside predicted ones, by GPU, operation and alignment: `flopcast validate --kernels`.

Each is predicted twice: by the profile that ships for its GPU, and by that profile refitted to four fifths of the
file's shapes, of which it is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flopcast_calibration.fit.kernels import NUMBER_BYTES, bounds_met, fit_gemm, gemm_times, with_fitted
from flopcast_calibration.measurement import Measurement
from flopcast_calibration.node import fitting_nodes, measured_cluster
from flopcast_calibration.points import multiplies_of, precision_of
from flopcast_calibration.readers import read_measurements
from flopcast_calibration.readers.table import read_each_device
from flopcast_validation.tables import table_of
from sim.commands.options import finite
from sim.costs.compute import SECTOR, leading_divisors
from sim.errors import SpecError
from sim.specs import GpuSpec, Profile
from sim.specs.loading import profile_of_gpu

PARTS = 5
"""Parts of the shapes, each of which is predicted by a profile refitted to the others."""
FEWEST = 50
"""Multiplies of one GPU that a profile is refitted to at least."""


def score_kernels(path: Path, profile: Profile | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Every multiply of a file that `calibrate fit` reads, predicted; and sentences on what was assumed or left out.

    Columns of the multiplies: row (file and line), gpu, operation, alignment (what divides the leading dimensions,
    bytes), the shape, times [s], time_error (predicted over measured time, less one) and refitted_error, that of the
    refitted profile where enough were measured.

    `profile` replaces that of each GPU. A file of no known format, or a wrong value, is a ProfileError.
    """
    logs = read_each_device(path)
    if len(logs) < 2:
        log = read_measurements(path)
        logs = {str(log.machine.get("device", "")): log}
    scored, notes = [], []
    for device, log in logs.items():
        items = [item for item in log.measurements if item.kind in ("gemm", "bmm")]
        if len(items) < len(log.measurements):
            notes.append(f"{len(log.measurements) - len(items)} measurements are of other kernels than multiplies")
        try:
            gpu, said = _gpu(log.machine | {"device": device})
        except SpecError as error:
            notes.append(f"{len(items)} multiplies were not predicted: {error}")
            continue
        notes += said
        for precision in dict.fromkeys(map(precision_of, items)):
            of_one = [item for item in items if precision_of(item) == precision]
            if precision in gpu.peak_flop_per_s:
                scored.append(_of_one(of_one, device or gpu.name, gpu, precision, profile or profile_of_gpu(gpu)))
            else:
                notes.append(f"{len(of_one)} multiplies were not predicted: {gpu.name} has no peak in {precision}")
    return pd.concat(scored) if scored else pd.DataFrame(), notes


def _gpu(machine: dict[str, Any]) -> tuple[GpuSpec, list[str]]:
    """The GPU of a device's name; where several have it, that of the slowest memory."""
    device = str(machine["device"])
    fitting = [] if machine.get("node") else fitting_nodes(machine)
    if len(fitting) < 2:
        return measured_cluster(machine).gpu, []
    gpus = {gpu.name: gpu for gpu in (measured_cluster({}, node).gpu for node in fitting)}
    taken = min(gpus.values(), key=lambda gpu: gpu.memory_bandwidth_bytes_per_s)
    return taken, [f"{device} is taken for {taken.name} (of {', '.join(gpus)})"] if len(gpus) > 1 else []


def _of_one(items: Sequence[Measurement], device: str, gpu: GpuSpec, precision: str, profile: Profile) -> pd.DataFrame:
    """Multiplies of one GPU and precision."""
    points, memory, width = multiplies_of(items), profile.memory.efficiency, NUMBER_BYTES[precision]
    shipped = gemm_times(points, gpu, precision, profile.gemm.of(precision), memory)
    parts = points.groupby(["m", "n", "k", "batch"]).ngroup().to_numpy()  # shapes, numbered
    parts = np.random.default_rng(0).permutation(parts.max() + 1)[parts] % PARTS
    refitted, met = np.full(len(points), np.nan), bounds_met(points, width, profile.gemm.alignment)
    for part in range(PARTS) if len(points) >= FEWEST else ():
        fit = fit_gemm(
            points[parts != part], gpu, precision, kernel_floor_s=profile.gemm.kernel_floor_s, memory_efficiency=memory,
            alignment=profile.gemm.alignment, fitted=met,
        )  # fmt: skip
        own = points[parts == part]
        times = gemm_times(own, gpu, precision, with_fitted(profile.gemm, fit.params), memory)
        refitted[parts == part] = times / own.time_s - 1.0
    divided = (min(leading_divisors(each.m, each.n, each.k, width, each.layout)) for each in points.itertuples())
    return pd.DataFrame({
        "row": [item.source for item in items], "gpu": device,
        "operation": [str(item.shape.get("operation", item.kind)) for item in items],
        "alignment": [int(min(nbytes, SECTOR)) for nbytes in divided],
        **points[["m", "n", "k", "batch"]].astype(int), "layout": points.layout, "measured_s": points.time_s,
        "predicted_s": shipped, "time_error": shipped / points.time_s - 1.0, "refitted_error": refitted,
    })  # fmt: skip


KEYS = ["gpu", "operation", "alignment"]


def groups(scored: pd.DataFrame) -> list[Any]:
    """Rows of groups by GPU and alignment over all operations, then by operation as well, with medians of errors."""
    if scored.empty:
        return []
    errors = {"median_error": scored.time_error.abs(), "refitted_median_error": scored.refitted_error.abs()}
    rows, found = scored.assign(**errors, median_bias=scored.time_error), []
    for each in (rows.assign(operation="all"), rows):
        alike = each.groupby(KEYS)
        medians = alike[["median_error", "median_bias", "refitted_median_error"]].median()
        medians.insert(0, "count", alike.size())
        found.append(medians.reset_index())
    table = pd.concat(found)
    table["alignment"] = [f"{size} B" + " and more" * (size == SECTOR) for size in table.alignment]
    return list(table.itertuples(index=False, name="Group"))


COLUMNS = {
    "GPU": "gpu", "operation": "operation", "alignment": "alignment", "count": "count", "size": "median_error:.1%",
    "signed": "median_bias:+.1%", "refitted, left out": "refitted_median_error:.1%",
}  # fmt: skip


def view(scored: pd.DataFrame, notes: Sequence[str]) -> Iterator[Any]:
    """The groups as a table, and what was assumed."""
    yield f"{len(scored)} multiplies: predicted over measured time − 1, in the median"
    yield table_of(COLUMNS, groups(scored), left=("GPU", "operation"), gap=1)
    yield from notes


def to_dict(scored: pd.DataFrame) -> dict[str, Any]:
    """Every multiply and every group, as data."""
    found: dict[str, Any] = finite(
        {"rows": scored.to_dict("records"), "groups": [row._asdict() for row in groups(scored)]}
    )
    return found
