"""The panel below a Gantt chart: activations kept over the same time."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.report.scene import Scene
from sim.report.window import Window
from sim.units import show

Array = np.ndarray


def draw_memory(axes: Any, scene: Scene, window: Window, width_in: float) -> None:
    """Activations kept on the first, the middle and the last rank, and on the fullest."""
    curves = scene.kept()
    peaks = [float(held.max(initial=0.0)) for _, held in curves]
    last = len(curves) - 1
    chosen = sorted({0, last // 2, last})
    fullest = int(np.argmax(peaks))
    if peaks[fullest] > 1.001 * max(peaks[rank] for rank in chosen):
        chosen = sorted({*chosen, fullest})
    styles = [("#000000", "-", 1.3), ("#777777", "-", 1.3), ("#000000", (0, (4, 1.5)), 1.0), ("#777777", ":", 1.3)]
    top = max(peaks) or 1.0
    for rank, (colour, line, width) in zip(chosen, styles, strict=False):
        times, held = curves[rank]
        for begin, end in window.spans:
            before = held[times <= begin]
            level = before[-1:] if len(before) else np.zeros(1)
            here = (times > begin) & (times < end)
            t = np.concatenate([[begin], times[here], [end]])
            y = np.concatenate([level, held[here], held[here][-1:] if here.any() else level])
            label = f"rank {rank}: up to {show(peaks[rank], 'B')}" if begin == window.spans[0][0] else None
            axes.plot(
                _inside(window, t, begin, end), y, drawstyle="steps-post", color=colour, ls=line, lw=width, label=label
            )
    at = int(np.argmax(curves[fullest][1]))
    _mark_peak(axes, window, float(curves[fullest][0][at]), peaks[fullest])
    axes.set_ylim(0, 1.42 * top)
    scale = next((s for s in (1e12, 1e9, 1e6, 1e3) if top >= s), 1.0)
    unit = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "B"}[scale]
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.yaxis.get_major_locator().set_params(nbins=4)
    axes.set_ylabel(f"activations\nkept [{unit}]", fontsize=9)
    axes.tick_params(labelsize=8)
    size = 8 if width_in >= 8 else 6.5
    look = {"facecolor": "white", "edgecolor": "none", "framealpha": 1.0, "borderpad": 0.1}
    legend = axes.legend(loc="upper left", ncols=4, fontsize=size, borderaxespad=0.2, handlelength=1.6, **look)
    legend.set_zorder(10)  # above a break
    axes.spines[["top", "right"]].set_visible(False)


def _inside(window: Window, times: Array, begin: float, end: float) -> Array:
    """Places of moments of one stretch, without its edges slipping into a break."""
    return np.asarray(float(window.place(begin)) + np.clip(times, begin, end) - begin)


def _mark_peak(axes: Any, window: Window, time: float, peak: float) -> None:
    if any(begin <= time <= end for begin, end in window.spans):
        axes.plot(window.place(time), peak, "v", color="#D55E00", markersize=5, clip_on=False)
