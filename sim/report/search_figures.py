"""Figures of a search: its plans by time and memory, their Pareto front, and what each value of each axis costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.canvas import new_figure
from sim.errors import InfeasiblePlan
from sim.report.figures import open_panels, place_labels, place_title, plain_axis
from sim.report.gantt.chart import time_unit
from sim.report.plans import HEADINGS, apart, cell, run_cost
from sim.search import SearchResult
from sim.search.sensitivity import ValueCost

WIDTH = 9.0
"""Width of a figure. [inches]"""
CAUSE_COLOURS = {
    "recompute": "#CC79A7",
    "tensor_parallel_comm": "#0072B2",
    "pipeline_bubble": "#E69F00",
    "data_parallel_comm": "#56B4E9",
    "expert_parallel_comm": "#882255",
    "beside_expert_comm": "#AA4499",
    "context_parallel_comm": "#DDCC77",
    "matmul_inefficiency": "#009E73",
    "pipeline_comm": "#D55E00",
    "stage_imbalance": "#F0E442",
    "stragglers": "#7F7F7F",
    "memory_bound": "#8C564B",
    "host_wait": "#332288",
    "offload": "#999933",
    "weights": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#56B4E9",
    "activations": "#CC79A7",
    "working": "#009E73",
    "logits": "#8C564B",
}
"""Colours of causes of time and of purposes of memory; a figure shows one kind or the other."""
OTHER_CAUSE, NOTHING = "#999999", "#D55E00"
TALLEST = 1.0
"""Losses beyond this share are cut off, and say how large they are."""
CLOUD = 20_000
"""Plans drawn behind a front."""
DEAREST = 2.0
"""Numbers of GPUs whose fastest plan costs more times the least are named, not drawn."""
UPRIGHT = 12
"""Bars of a panel whose labels have room side by side."""
NAMED = 5
"""Plans of a front that are named."""


def search_figure(result: SearchResult, width_in: float = WIDTH) -> Any:
    """Every plan that was priced by step time and memory, those that none beats, and the best few."""
    figure = new_figure(width_in, 0.52 * width_in)
    axes = figure.subplots()
    factor, unit = time_unit(float(np.median(result.step_time_s)))
    seconds, gigabytes, limit = result.step_time_s * factor, result.memory_bytes / 1e9, result.memory_limit_bytes / 1e9
    fits = result.memory_bytes <= result.memory_limit_bytes
    for there, colour, label in ((~fits, "#CCCCCC", "does not fit"), (fits, "#56B4E9", "fits")):
        axes.plot(gigabytes[there], seconds[there], ".", ms=2, color=colour, label=label, rasterized=True)
    front = result.pareto()
    front = front[np.argsort(gigabytes[front])]
    unbeaten = "no plan beats it in time, memory and GPUs"
    axes.plot(gigabytes[front], seconds[front], "o", ms=3.5, color="#0072B2", label=unbeaten)
    exact = [(each.answer.largest.total / 1e9, each.answer.step_time_s * factor) for each in result.best]
    axes.plot(*zip(*exact, strict=True), "D", ms=5, color="#D55E00", label=f"best {len(exact)}, by the exact engine")
    axes.axvline(limit, color="#333333", lw=1, ls="--")
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(None, min(12 * limit, 1.2 * gigabytes.max()))  # far beyond nothing is told
    axes.set_ylim(0.8 * seconds.min(), 2 * seconds[gigabytes < axes.get_xlim()[1]].max())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.set_xlabel("memory of the fullest GPU [GB]; dashed: what it has", fontsize=9)
    axes.set_ylabel(f"step time [{unit}]", fontsize=9)
    open_panels(axes)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8, markerscale=1.5)
    title = f"{result.space.scenario.name}: {result.plans_priced:,} plans"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    return figure


def draw_pareto(result: SearchResult, width_in: float = WIDTH) -> Any:
    """Plans that none beats in step time, memory, GPUs and cost; with several numbers of GPUs also what they cost."""
    front = result.pareto()
    if not len(front):
        raise InfeasiblePlan("no plan that is priced fits, so there is no front to draw; leave --figure out")
    gpus = result.space.gpus_of(result.row)
    sizes = np.unique(gpus[front])
    figure = new_figure(width_in if len(sizes) > 1 else 0.8 * width_in, 4.8)
    panels = figure.subplots(1, 2 if len(sizes) > 1 else 1, squeeze=False)[0]
    seconds, nbytes = result.step_time_s, result.memory_bytes / 1e9
    fits = np.flatnonzero(result.fits)
    fits = fits[:: max(1, len(fits) // CLOUD)]
    left = panels[0]
    shown = fits[seconds[fits] < 4 * seconds[front].max()]
    left.plot(nbytes[shown], seconds[shown], ".", color="0.85", ms=2, zorder=0, rasterized=True, label="plans that fit")
    from matplotlib import colormaps
    from matplotlib.patheffects import withStroke

    halo = withStroke(linewidth=2.5, foreground="white")
    shades = [colormaps["viridis"](share) for share in np.linspace(0, 0.8, len(sizes))]
    ends = []
    for size, shade in zip(sizes.tolist(), shades, strict=True):
        own = front[gpus[front] == size]
        own = own[np.argsort(nbytes[own])]
        left.step(nbytes[own], seconds[own], "o-", where="post", color=shade, lw=1.2, ms=4)
        ends.append((float(nbytes[own[-1]]), float(seconds[own[-1]]), f"{size:,} GPUs"))
    left.axvline(result.memory_limit_bytes / 1e9, color="0.3", lw=1, ls="--")
    whole = result.memory_limit_bytes == result.space.scenario.cluster.gpu.usable_bytes
    left.text(result.memory_limit_bytes / 1e9, 0.98, "memory of a GPU" if whole else "memory limit", fontsize=8,
              transform=left.get_xaxis_transform(), rotation=90, ha="right", va="top")  # fmt: skip
    left.set_ylim(0.9 * seconds[front].min(), 1.5 * seconds[front].max())
    left.set(yscale="log", xlabel="memory of the fullest GPU [GB]", ylabel="step time [s], closed form")
    plain_axis(left.yaxis)
    if len(sizes) == 1:
        _name_plans(left, result, front, nbytes, seconds)
        steps, cost_unit = run_cost(result.space.scenario)
        factor = steps * int(sizes[0])  # cost follows time where the number of GPUs is given
        right = left.secondary_yaxis("right", functions=(lambda s: s * factor, lambda cost: cost / factor))
        right.set_ylabel(f"cost [{cost_unit}]")
        plain_axis(right.yaxis)
        left.legend(frameon=False, fontsize=8)
    place_title(figure, f"{result.space.scenario.name}: plans that none beats in time, memory, GPUs and cost")
    if len(sizes) > 1:
        _costs(panels[1], result, front, sizes, shades)
        place_labels(left, ends, shades, size=7, path_effects=[halo], zorder=4)
    return figure


def _costs(panel: Any, result: SearchResult, front: np.ndarray, sizes: np.ndarray, shades: Sequence[Any]) -> None:
    """The fastest plan of each size: what the run takes and costs."""
    gpus, seconds = result.space.gpus_of(result.row), result.step_time_s
    steps, cost_unit = run_cost(result.space.scenario)
    known = result.space.scenario.training.tokens is not None
    time_unit = "time of the run [days]" if known else "step time [s]"
    times = np.array([seconds[front[gpus[front] == size]].min() * steps for size in sizes])
    costs = times * sizes
    unbeaten = np.array([not ((times <= t) & (costs <= c) & (times + costs < t + c)).any()
                         for t, c in zip(times, costs, strict=True)])  # fmt: skip
    order = np.flatnonzero(unbeaten)[np.argsort(times[unbeaten])]
    panel.step(
        times[order], costs[order], where="post", color="0.6", lw=1, zorder=0, label="none is faster and cheaper"
    )
    shown = costs <= DEAREST * costs.min()
    labels = []
    for number in np.argsort(times[shown]).tolist():
        size, time, cost = sizes[shown][number], float(times[shown][number]), float(costs[shown][number])
        shade = np.array(shades)[shown][number]
        panel.plot(time, cost, "o", color=shade, mfc=shade if unbeaten[shown][number] else "none", ms=6)
        labels.append((not unbeaten[shown][number], time, cost, f"{size:,}"))
    low, high = costs[shown].min(), costs[shown].max()
    panel.set_ylim(low * (low / high) ** 0.15 * 0.98, high * (high / low) ** 0.15 * 1.02)
    panel.legend(frameon=False, fontsize=8)
    panel.set(xscale="log", yscale="log", xlabel=f"fastest plan: {time_unit}", ylabel=f"cost [{cost_unit}]")
    left_out = ", ".join(f"{size:,}" for size in sizes[~shown].tolist())
    beyond = f"; beyond {DEAREST:g} times the least: {left_out}" if left_out else ""
    panel.set_title(f"fastest plan of each number of GPUs\n(hollow: beaten in both{beyond})", fontsize=9)
    for axis in (panel.xaxis, panel.yaxis):
        plain_axis(axis)
    place_labels(panel, [(time, cost, words) for _, time, cost, words in sorted(labels)])  # those that none beats first


def _name_plans(panel: Any, result: SearchResult, front: np.ndarray, nbytes: np.ndarray, seconds: np.ndarray) -> None:
    """A few plans of the front, evenly along it."""
    own = front[np.argsort(nbytes[front])]
    for number in np.unique(np.linspace(0, len(own) - 1, min(NAMED, len(own))).round().astype(int)).tolist():
        place = int(own[number])
        plan = result.scenario_at(place).plan
        degrees = {"tp": plan.tp, "pp": plan.pp, "mbs": plan.microbatch_size, "v": plan.num_chunks}
        degrees |= {"cp": plan.cp} if plan.cp > 1 else {}
        degrees |= {"ep": plan.ep} if result.space.scenario.model.num_experts else {}
        layout = " ".join(f"{name} {degree}" for name, degree in degrees.items())
        text = f"{layout}\n{plan.recompute}, ZeRO {plan.zero_stage}"
        side = "right" if number > 0.8 * len(own) else "left"
        panel.annotate(text, (nbytes[place], seconds[place]), xytext=(5 if side == "left" else 0, 5), ha=side,
                       textcoords="offset points", fontsize=7)  # fmt: skip


def draw_sensitivity(result: SearchResult, costs: Sequence[ValueCost], width_in: float = 1.2 * WIDTH) -> Any:
    """A panel an axis: the loss of the best plan with each value, coloured by what most of it is."""
    axes = list(dict.fromkeys(each.axis for each in costs))
    columns = min(3, len(axes))
    rows = -(-len(axes) // columns)
    figure = new_figure(width_in, 0.6 + 2.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    used: dict[str, str] = {}
    for panel, axis in zip(panels, axes, strict=False):
        _bars(panel, result, [each for each in costs if each.axis == axis], used)
        panel.set_title(HEADINGS[axis], fontsize=10)
    for panel in panels[len(axes) :]:
        panel.axis("off")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=cause.replace("_", " ")) for cause, colour in used.items()]
    best = result.best[0].scenario.plan
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8, title="most of it",
                  title_fontsize=9)  # fmt: skip
    title = (
        f"{result.space.scenario.name}: what each value loses by {result.objective.replace('_', ' ')} against the best "
        f"plan (tp {best.tp}, pp {best.pp}, micro-batch {best.microbatch_size}); ×: none fits"
    )
    place_title(figure, title)
    return figure


def _bars(panel: Any, result: SearchResult, rows: Sequence[ValueCost], used: dict[str, str]) -> None:
    losses = [each.loss for each in rows if each.loss is not None]
    top = min(TALLEST, max([0.05, *losses]))
    for place, each in enumerate(rows):
        if each.loss is None:
            panel.plot(place, 0, "x", color=NOTHING, ms=7, mew=2, clip_on=False)
            continue
        causes = {} if each.best is None else apart(result, each.best.answer).causes
        cause = max(causes, key=lambda name: causes[name]) if each.loss > 0 else ""
        colour = CAUSE_COLOURS.get(cause, OTHER_CAUSE)
        if cause:
            used[cause if cause in CAUSE_COLOURS else "another"] = colour
        panel.bar(place, 100 * min(each.loss, top), color=colour, width=0.75)
        label = "best" if each.is_best else f"{100 * each.loss:+.{0 if abs(each.loss) > 0.1 else 1}f}"
        weight = "bold" if each.is_best else "normal"
        size, turned = (7, 0) if len(rows) < 9 else (5.5, 0) if len(rows) <= UPRIGHT else (5.5, 90)
        height = 100 * (max(min(each.loss, top), 0) + (0.02 * top if turned else 0))
        panel.text(place, height, label, ha="center", va="bottom", fontsize=size, weight=weight, rotation=turned)
    panel.set_xticks(range(len(rows)), [cell(each.value) for each in rows], fontsize=7,
                     rotation=0 if len(rows) < 9 else 60)  # fmt: skip
    panel.set_ylim(min(0.0, 110 * min([0.0, *losses])), (115 if len(rows) <= UPRIGHT else 130) * top)
    panel.set_ylabel("more memory [%]" if result.objective == "memory_headroom" else "loss [%]", fontsize=8)
    panel.tick_params(axis="y", labelsize=7)
    open_panels(panel)
