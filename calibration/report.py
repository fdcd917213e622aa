"""A profile drawn: measured points against the fitted curves, with the roofline and the peak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from flopcast_calibration.build import Calibration
from flopcast_calibration.fit.kernels import NUMBER_BYTES, gemm_times
from flopcast_calibration.fit.solve import columns
from flopcast_calibration.measurement import MeasurementSet
from flopcast_calibration.points import gemm_points, link_points, memory_points
from sim.canvas import new_figure
from sim.costs.collectives import Fabric, all_reduce
from sim.errors import ProfileError
from sim.network.placement import Group
from sim.specs import ClusterSpec, Profile

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MEASURED, _FITTED, _LIMIT = "#000000", "#0072B2", "#999999"
FARTHEST = 60.0
"""Residuals beyond this are drawn at the edge. [%]"""


def profile_figure(profile: Profile, cluster: ClusterSpec, data: MeasurementSet, *, width_in: float = 13.5) -> Any:
    """Measured points against the fitted curves, of what was measured: multiplies, memory-bound kernels, all-reduces.

    `width_in` is that of a figure of three panels [inches]. Where none of the three was measured, it is a ProfileError.
    """
    chosen = [
        draw
        for draw, points in (
            (_gemm_panel, gemm_points(data)),
            (_memory_panel, memory_points(data)),
            (_all_reduce_panel, _all_reduces(data, cluster)),
        )
        if len(points)
    ]
    if not chosen:
        raise ProfileError("no multiplies, memory-bound kernels or all-reduces were measured; there is nothing to draw")
    figure = new_figure(width_in * len(chosen) / 3, 4.0)
    for panel, draw in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        draw(panel, profile, cluster, data)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(
        f"{profile.name}: {data.machine.get('device', profile.gpu)}, {data.machine.get('date', '')}".rstrip(", ")
    )
    return figure


def residual_figure(calibration: Calibration, *, width_in: float = 9.0) -> Any:
    """How far every fit is from each of its own measurements, a dot a measurement; the band is ±10 %."""
    figure = new_figure(width_in, 0.9 + 0.42 * len(calibration.fits))
    axes = figure.subplots()
    axes.axvspan(-10, 10, color="#EFEFEF", zorder=0)
    axes.axvline(0, color=_LIMIT, linewidth=1, zorder=1)
    widest = 0.0
    for place, fit in enumerate(calibration.fits.values()):
        percent = 100 * np.expm1(fit.residuals)
        off = 0.28 * np.sin(np.arange(len(percent)) * 2.4)  # apart, so that dots do not hide each other
        axes.plot(np.clip(percent, -FARTHEST, FARTHEST), place + off, "o", ms=3.5, alpha=0.6, color=_FITTED, mew=0)
        axes.plot([np.median(percent)] * 2, [place - 0.36, place + 0.36], color="#D55E00", linewidth=2)
        widest = max(widest, float(np.abs(percent).max(initial=0.0)))
    axes.set_yticks(range(len(calibration.fits)), [f"{part} ({fit.count})" for part, fit in calibration.fits.items()])
    axes.invert_yaxis()
    reach = min(FARTHEST, max(15.0, 1.1 * widest))
    axes.set_xlim(-reach, reach)
    beyond = f"; dots at the edge are beyond ±{FARTHEST:.0f} %" if widest > FARTHEST else ""
    axes.set_xlabel(f"fitted time over measured time, less one [%]{beyond}")
    axes.set_title("a dot a measurement; red: the median", fontsize=9, loc="left", color="#444444")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _gemm_panel(panel: Any, profile: Profile, cluster: ClusterSpec, data: MeasurementSet) -> None:
    precision, points = next(iter(gemm_points(data).items()))
    gpu = cluster.gpu
    m, n, k, batch, time = columns(points, "m", "n", "k", "batch", "time_s")
    flop = 2 * m * n * k * batch
    width = NUMBER_BYTES[precision]
    fitted = gemm_times(points, gpu, precision, profile.gemm, profile.memory.efficiency)
    intensity = flop / (width * batch * (m * k + k * n + m * n))
    peak = gpu.peak(precision)
    scale, unit = (1e12, "TFLOP/s") if peak >= 1e12 else (1e9, "GFLOP/s")
    panel.loglog(intensity, flop / time / scale, "o", ms=4, mfc="none", color=_MEASURED, label="measured")
    panel.loglog(intensity, flop / fitted / scale, "x", ms=4, color=_FITTED, label="fitted")
    grid = np.geomspace(intensity.min(), intensity.max(), 200)
    roof = np.minimum(peak, grid * gpu.memory_bandwidth_bytes_per_s)
    panel.loglog(
        grid, roof / scale, color=_LIMIT, ls="--", lw=1, label=f"roofline, {precision} peak {peak / scale:.3g}"
    )
    panel.set_xlabel("FLOPs a byte of operands and result")
    panel.set_ylabel(unit)
    panel.set_title("matrix multiplies", fontsize=10)
    for axis in (panel.xaxis, panel.yaxis):
        _plain_ticks(axis)


def _plain_ticks(axis: Any) -> None:
    """Numbers as people write them on a logarithmic axis that spans little more than a decade."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(StrMethodFormatter(""))
    axis.set_tick_params(labelsize=8)


def _memory_panel(panel: Any, profile: Profile, cluster: ClusterSpec, data: MeasurementSet) -> None:
    points = memory_points(data)
    nbytes, time = columns(points, "nbytes", "time_s")
    bandwidth = cluster.gpu.memory_bandwidth_bytes_per_s
    grid = np.geomspace(max(nbytes.min(), 1.0), nbytes.max(), 100)
    for colour, sort in zip(_COLOURS, sorted(set(points["sort"])), strict=False):
        mine = (points["sort"] == sort).to_numpy()
        fitted = grid / (bandwidth * profile.memory.share(sort)) + profile.gemm.kernel_floor_s
        panel.loglog(nbytes[mine], nbytes[mine] / time[mine] / 1e9, "o", ms=4, mfc="none", color=colour, label=sort)
        panel.loglog(grid, grid / fitted / 1e9, color=colour, lw=1)
    panel.axhline(bandwidth / 1e9, color=_LIMIT, ls="--", lw=1, label="memory bandwidth")
    _plain_ticks(panel.yaxis)
    panel.set_xlabel("bytes moved")
    panel.set_ylabel("GB/s")
    panel.set_title("memory-bound kernels (lines: fitted)", fontsize=10)


def _all_reduces(data: MeasurementSet, cluster: ClusterSpec) -> pd.DataFrame:
    linked = link_points(data, cluster)
    return linked[(linked.domains == 1) & (linked.operation == "all_reduce")]


def _all_reduce_panel(panel: Any, profile: Profile, cluster: ClusterSpec, data: MeasurementSet) -> None:
    points = _all_reduces(data, cluster)
    fabric = Fabric.of(cluster, profile)
    for colour, (ranks, mine) in zip(
        _COLOURS, points.sort_values(["nbytes", "time_s"]).groupby("num_ranks"), strict=False
    ):
        nbytes, time = columns(mine, "nbytes", "time_s")
        factor = 2 * (ranks - 1) / ranks / 1e9
        grid = np.geomspace(nbytes.min(), nbytes.max(), 100)
        panel.loglog(nbytes, factor * nbytes / time, "o", ms=4, mfc="none", color=colour, label=f"{ranks} ranks")
        panel.loglog(grid, factor * grid / all_reduce(grid, Group(ranks, ranks), fabric), color=colour, lw=1)
    _plain_ticks(panel.yaxis)
    panel.set_xlabel("bytes of the buffer")
    panel.set_ylabel("bus bandwidth [GB/s]")
    panel.set_title("all-reduce (lines: fitted)", fontsize=10)
