"""Gantt charts: what every pipeline rank does when, what follows, and what it keeps in memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import SpecError
from sim.report.lanes import draw_lanes, draw_time_axis, in_rows, legend_handles, mark_breaks, time_unit
from sim.report.scene import Scene
from sim.report.window import Window, choose_window
from sim.schedules.actions import F
from sim.schedules.registry import get_schedule, is_file
from sim.units import show, show_time

Array = np.ndarray
ENDINGS = (".png", ".svg")
PLACES_PER_INCH = 24.0
"""Forwards side by side in an inch of axis that can still be told apart."""
FAR = 1.7
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""
NARROWEST, WIDEST = 4.0, 100.0
"""Inches."""


def draw_gantt(
    scene: Scene,
    paths: Sequence[Path],
    *,
    between: tuple[float | None, float | None] = (None, None),
    width_in: float = 11.0,
) -> None:
    """Write a Gantt chart of a step with its memory below.

    Parameters
    ----------
    paths : sequence of Path
        .png or .svg.
    between : (from, to)
        A stretch of the step; without, all of it, or its beginning and end where it is too long to be read. [s]
    width_in : float
        [inches]

    Raises
    ------
    SpecError
        A stretch that is none, a width out of range, or a path that cannot be written.
    """
    pyplot = _pyplot(paths, width_in)
    window = window_of([scene], width_in, between)
    ranks = scene.program.order.num_ranks
    lanes_in = float(np.clip(0.34 * ranks, 0.7, 7.5))
    figure, (lanes, memory) = pyplot.subplots(
        2,
        1,
        sharex=True,
        figsize=(width_in, lanes_in + 2.75 + 0.35 * (width_in < 9)),
        layout="constrained",
        height_ratios=(lanes_in, 1.15),
    )
    figure.get_layout_engine().set(h_pad=0.03, hspace=0.02)
    point_in = 72.0 * 0.84 * width_in / window.width
    seen = draw_lanes(lanes, scene, window, points_per_s=point_in, lane_points=72.0 * lanes_in / ranks)
    _name_ranks(lanes, scene, lanes_in)
    _memory(memory, scene, window, width_in)
    for axes in (lanes, memory):
        mark_breaks(axes, window, labelled=axes is lanes)
    draw_time_axis(memory, window, scene.horizon, about=max(4, int(width_in)))
    lanes.tick_params(axis="x", length=0)
    columns = 2 if width_in < 8 else 4 if width_in < 10 else 6
    handles = legend_handles(scene, seen)
    figure.legend(handles=in_rows(handles, columns), loc="outside lower left", ncols=columns, frameon=False, fontsize=8)
    figure.suptitle(_title(scene), x=0.01, ha="left", fontsize=12 if width_in >= 8 else 10, fontweight="bold")
    lanes.set_title(_subtitle(scene, width_in), loc="left", fontsize=8.5, color="#444444")
    _save(figure, paths)


def draw_comparison(scenes: Sequence[Scene], paths: Sequence[Path], *, width_in: float = 11.0) -> None:
    """Write the Gantt charts of several schedules, one below the other on one time axis.

    Parameters and raises as for `draw_gantt`.
    """
    pyplot = _pyplot(paths, width_in)
    window = window_of(scenes, width_in)
    heights = [float(np.clip(0.085 * scene.program.order.num_ranks, 0.42, 0.95)) for scene in scenes]
    figure, rows = pyplot.subplots(
        len(scenes),
        1,
        sharex=True,
        squeeze=False,
        figsize=(width_in, sum(heights) + 0.31 * len(scenes) + 1.5),
        layout="constrained",
        height_ratios=heights,
    )
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.0)
    handles: dict[str, Any] = {}
    fastest = min(scene.answer.step_time_s for scene in scenes)
    for axes, scene, height in zip(rows[:, 0], scenes, heights, strict=True):
        moved = _one_step(scene)
        point_in = 72.0 * 0.92 * width_in / window.width
        lane_points = 72.0 * height / scene.program.order.num_ranks
        seen = draw_lanes(
            axes, scene, window, points_per_s=point_in, lane_points=lane_points, shift=moved, versions=False
        )
        for handle in legend_handles(scene, seen, durations=False):
            handles.setdefault(handle.get_label(), handle)
        step = scene.answer.step_time_s
        if step > window.spans[-1][1] * (1 + 1e-9):
            axes.text(window.width, -0.6, f"goes on to {show_time(step)} →", fontsize=7, ha="right", va="bottom")
        else:
            axes.axvline(float(window.place(step)), color="black", linewidth=1.2)
        slower = "" if step <= fastest * (1 + 1e-9) else f" (+{step / fastest - 1:.1%})"
        axes.set_title(_headline(scene, slower, width_in), loc="left", fontsize=8.5 if width_in >= 8 else 7, pad=2)
        mark_breaks(axes, window, labelled=scene is scenes[0])
        axes.set_yticks([])
        axes.tick_params(axis="x", length=0)
    last = rows[-1, 0]
    draw_time_axis(last, window, window.spans[-1][1], about=max(4, int(width_in)))
    last.tick_params(axis="x", length=3)
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    columns = 2 if width_in < 8 else 5
    figure.legend(
        handles=in_rows(list(handles.values()), columns),
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(_shared_title(scenes), x=0.01, ha="left", fontsize=12 if width_in >= 8 else 9, fontweight="bold")
    _save(figure, paths)


def window_of(
    scenes: Sequence[Scene], width_in: float, between: tuple[float | None, float | None] = (None, None)
) -> Window:
    """What of the time axis is drawn."""
    several = len(scenes) > 1
    ends = [scene.answer.step_time_s if several and scene.streams else scene.horizon for scene in scenes]
    if several:  # one schedule that is far slower than the others would make them small
        ends = [end for end in ends if end <= FAR * np.median(ends)]
    forwards = [float(np.median((scene.end - scene.start)[scene.program.order.kind == F])) for scene in scenes]
    places = 0.84 * width_in * PLACES_PER_INCH
    fill = float(np.median([fill_time(scene) for scene in scenes]))
    first_end = min(ends) if several else None
    alike = several or repeats(scenes[0])
    typical = float(np.median(forwards))
    return choose_window(max(ends), typical, fill, places, between=between, first_end=first_end, repeats=alike)


def repeats(scene: Scene) -> bool:
    """Whether the middle of a step is like its neighbourhood: not so where all forwards come before all backwards."""
    name = scene.scenario.plan.schedule
    chosen = None if is_file(name) else get_schedule(name)
    return chosen is not None and (chosen.period is not None or chosen.asynchronous)


def fill_time(scene: Scene) -> float:
    """From the step's beginning until the first backward has come through; not much later than the last rank begins."""
    order = scene.program.order
    backwards = np.flatnonzero(order.kind != F)
    first = np.full(order.num_ranks, np.inf)
    np.minimum.at(first, order.rank[backwards], scene.end[backwards])
    begins = np.full(order.num_ranks, np.inf)
    np.minimum.at(begins, order.rank, scene.start)
    return float(min(first.max(), 5 * begins.max()))


def _one_step(scene: Scene) -> float:
    """Where the step that is drawn begins: of a stream without flush, a stretch of its steady state. [s]"""
    return max(0.0, scene.horizon - scene.answer.step_time_s) if scene.streams else 0.0


def _title(scene: Scene) -> str:
    answer = scene.answer
    period = "a batch every" if scene.streams else "step"
    return (
        f"{scene.scenario.model.name}, {scene.scenario.plan.schedule}: {period} {show_time(answer.step_time_s)}, "
        f"bubble {answer.bubble_fraction:.1%}"
    )


def _subtitle(scene: Scene, width_in: float) -> str:
    plan, answer = scene.scenario.plan, scene.answer
    chunks = f" × {plan.num_chunks} chunks" if plan.num_chunks > 1 else ""
    slices = f" in {plan.sequence_slices} slices" if plan.sequence_slices > 1 else ""
    parts = [
        f"{answer.num_gpus:,} × {scene.scenario.cluster.gpu.name}",
        f"tp {plan.tp} · pp {plan.pp}{chunks} · dp {plan.dp}",
        f"{answer.num_microbatches:,} micro-batches of {plan.microbatch_size}{slices} a step",
    ]
    notes = []
    if scene.streams:
        notes.append("no flush: the first two batches, later ones follow in the same rhythm")
        exposed = scene.answer.timeline.exposed_reduce.max() if scene.program.hide_grad_reduce else 0.0
        if exposed > 0:
            notes.append(f"each batch's time includes {show_time(float(exposed))} of exposed reduction, not drawn")
    if scene.begin.max() > 0:
        notes.append("a rank begins its next step without waiting for the others, so grey shows each rank's own step")
    lines = [" · ".join(parts)] if width_in >= 9 else [" · ".join(parts[:2]), parts[2]]
    return "\n".join([*lines, *notes]) + "\n"


def _headline(scene: Scene, slower: str, width_in: float) -> str:
    """One schedule of several, in a line."""
    plan, answer = scene.scenario.plan, scene.answer
    peak = max(use.activations for use in answer.memory)
    sizes = [f"{plan.num_chunks} chunks"] if plan.num_chunks > 1 else []
    sizes += [f"{plan.sequence_slices} slices"] if plan.sequence_slices > 1 else []
    order = scene.program.order
    sizes += [f"{order.copies} copies of the weights"] if order.copies > 1 else []
    versions, late = scene.versions()
    sizes += [f"up to {versions.max()} weight versions, gradients up to {late.max()} late"] if scene.streams else []
    name = f"$\\bf{{{plan.schedule.replace('_', chr(92) + '_')}}}$" if plan.schedule.isidentifier() else plan.schedule
    noun = "a batch every" if scene.streams else "step"
    detail = f"  ({', '.join(sizes)})" if sizes else ""
    space = "\n" if detail and width_in < 8 else ""
    return (
        f"{name}  {noun} {show_time(answer.step_time_s)}{slower} · bubble {answer.bubble_fraction:.1%} · "
        f"activations up to {show(peak, 'B')}{space}{detail}"
    )


def _shared_title(scenes: Sequence[Scene]) -> str:
    scenario, answer = scenes[0].scenario, scenes[0].answer
    plan = scenario.plan
    return (
        f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}: one step under "
        f"{len(scenes)} schedule{'s' if len(scenes) > 1 else ''}\n"
        f"tp {plan.tp} · pp {plan.pp} · dp {plan.dp} · {answer.num_microbatches:,} micro-batches of "
        f"{plan.microbatch_size}; fastest first"
    )


def _name_ranks(axes: Any, scene: Scene, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = scene.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = sorted({*range(0, ranks, every)} - ({ranks - 1 - i for i in range(1, every)} if every > 1 else set()))
    shown = sorted({*shown, ranks - 1})
    axes.set_yticks(shown, [f"rank {rank}" if ranks <= 12 else str(rank) for rank in shown], fontsize=8)
    axes.set_ylabel("" if ranks <= 12 else "pipeline rank", fontsize=9)
    idle = np.clip(1 - scene.share, 0.0, 1.0)
    versions, _ = scene.versions()
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if scene.streams else "") for rank in shown]
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(shown, text, fontsize=8, color="#444444")
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle" if not scene.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=axes.transAxes, fontsize=8, va="bottom", ha="left", color="#444444")


def _memory(axes: Any, scene: Scene, window: Window, width_in: float) -> None:
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
    legend = axes.legend(loc="upper left", ncols=4, frameon=False, fontsize=size, borderaxespad=0.1, handlelength=1.6)
    legend.set_zorder(10)  # above a break
    axes.spines[["top", "right"]].set_visible(False)


def _inside(window: Window, times: Array, begin: float, end: float) -> Array:
    """Places of moments of one stretch, without its edges slipping into a break."""
    return np.asarray(float(window.place(begin)) + np.clip(times, begin, end) - begin)


def _mark_peak(axes: Any, window: Window, time: float, peak: float) -> None:
    if any(begin <= time <= end for begin, end in window.spans):
        axes.plot(window.place(time), peak, "v", color="#D55E00", markersize=5, clip_on=False)


def _pyplot(paths: Sequence[Path], width_in: float) -> Any:
    check_paths(paths)
    if not NARROWEST <= width_in <= WIDEST:
        raise SpecError(f"a figure {width_in:g} inches wide cannot be drawn; choose {NARROWEST:g} to {WIDEST:g}")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check_paths(paths: Sequence[Path], endings: Sequence[str] = ENDINGS) -> None:
    """Raise where a file could not be written, before the work is done.

    Raises
    ------
    SpecError
        Another ending, or a folder that does not exist.
    """
    for path in paths:
        if path.suffix.lower() not in endings:
            raise SpecError(f"{str(path)!r} must end in {' or '.join(endings)}")
        if path.is_dir():
            raise SpecError(f"{str(path)!r} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise SpecError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")


def _save(figure: Any, paths: Sequence[Path]) -> None:
    from matplotlib import pyplot

    try:
        for path in paths:
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)


__all__ = ["check_paths", "draw_comparison", "draw_gantt", "time_unit", "window_of"]
