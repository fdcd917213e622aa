"""Lamy-Poirier's strategies in a terminal and as figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
from rich.text import Text

from flopcast_validation.strategies.plans import StrategyBest
from flopcast_validation.strategies.question import (
    DOMAIN,
    FamilyModel,
    data_parallel_intensity,
    formula_days,
    gather_intensity,
    needed_intensity,
    pipeline_intensity,
    tensor_intensity,
)
from sim.canvas import new_figure
from sim.report.figures import open_panels, place_title, plain_axis
from sim.report.scaling import notes as notes
from sim.report.terminal import title
from sim.specs import Scenario
from sim.table import Table, rows_table
from sim.units import show, show_short, significant

ORDERS = {"baseline": "standard", "improved": "layered"}
_COLOURS = {"baseline": "#D55E00", "improved": "#0072B2"}
_SHORT = {"data + pipeline": "data, pipe", "data + tensor": "data, tensor", "data + pipeline + tensor": "all three"}


def strategies_view(shape: FamilyModel, scenario: Scenario, entries: Sequence[StrategyBest]) -> Iterator[Any]:
    """The best plan of every strategy, what fills the leanest one's memory, and which traffic hides."""
    yield title(
        f"X_{shape.x}",
        f"  {show_short(shape.params)} parameters, critical batch {shape.critical_batch_sequences:,.0f} sequences of "
        f"{shape.sequence_length:,} tokens, 100,000 steps",
    )
    network = show(8 * scenario.cluster.inter_node_bandwidth_bytes_per_s, "bit/s")
    yield Text(f"A100 in NVLink domains of {scenario.cluster.nvlink_domain_gpus}, {network} a GPU", style="dim")
    yield ""
    heads = ("strategy", "order", "GPUs", "dp·pp·tp", "m", "ZeRO", "of peak", "time", "formula")
    yield rows_table(heads, [_row(entry, shape) for entry in entries], left=heads[:2], gap=1)
    best = [entry.answer for entry in entries if entry.answer is not None and entry.method == "improved"]
    if best:
        use, available = best[-1].largest.to_dict(), best[-1].memory_available_bytes
        total, state = use.pop("total"), use["weights"] + use["gradients"] + use["optimizer"]
        parts = ", ".join(f"{name} {show(value, 'B')}" for name, value in use.items() if value > 0)
        yield ""
        yield Text(f"Memory of the last plan: {show(total, 'B')} of {show(available, 'B')}", style="bold")
        yield Text(f"weights, gradients and optimizer take {state / available:.1%} of the GPU; {parts}")
    yield ""
    yield Text("Which traffic hides behind arithmetic", style="bold")
    yield _hiding(shape, scenario, best[-1].num_microbatches if best else 1)


def _row(entry: StrategyBest, shape: FamilyModel) -> tuple[str, ...]:
    name = _SHORT.get(entry.strategy, entry.strategy) + ", ZeRO 3" * entry.partitioned
    if entry.answer is None:
        return name, ORDERS[entry.method], "–", "does not fit", "", "", "", "", ""
    answer, plan = entry.answer, entry.answer.scenario.plan
    gpus = f"{answer.num_gpus:,}{'' if answer.fits else '*'}{'†' if plan.offloaded_layers else ''}"
    cells = (
        f"{plan.dp}·{plan.pp}·{plan.tp}",
        f"{answer.num_microbatches:,}",
        f"{plan.zero_stage}",
        f"{answer.hfu:.0%}",
    )
    return name, ORDERS[entry.method], gpus, *cells, _time(entry.days), _time(formula_days(answer, shape))


def _time(days: float) -> str:
    if isnan(days):
        return "–"
    return f"{significant(days / 365.25)} y" if days > 1000 else f"{significant(days)} d"


def _hiding(shape: FamilyModel, scenario: Scenario, count: int) -> Table:
    """Intensity of each traffic over what its link needs: above 1 it hides.

    count : micro-batches of the layered plan.
    """
    peak = scenario.cluster.gpu.peak(scenario.training.peak_precision)
    network = 2.0 * scenario.cluster.inter_node_bandwidth_bytes_per_s
    nvlink = 2.0 * scenario.cluster.node.nvlink_bandwidth_bytes_per_s
    length, rows = shape.sequence_length, []
    for name, intensity, bandwidth in (
        ("gradients, standard", data_parallel_intensity(length), network),
        (f"gradients, layered, m = {count}", data_parallel_intensity(length, count), network),
        (f"weights gathered, layered, m = {count}", gather_intensity(length, count), network),
        ("pipeline, a layer a stage", pipeline_intensity(shape.hidden_size), network),
        ("tensor, 16 GPUs", tensor_intensity(shape.hidden_size, 16), nvlink),
    ):
        needed = needed_intensity(peak, bandwidth)
        verdict = "hides" if intensity >= needed else f"{needed / intensity:.2f} of its compute"
        if name.startswith("tensor"):  # nothing is concurrent with it
            verdict = f"adds {needed / intensity:.1%}"
        rows.append((name, f"{intensity:,.0f}", f"{needed:,.0f}", verdict))
    return rows_table(("traffic", "FLOP/byte", "link needs", ""), rows, left=("traffic", ""))


def sizes_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Time against model size."""
    cells = []
    for row in rows:
        slow, fast = (row[method] for method in ORDERS)
        gpus = [f"{each['num_gpus']:,}" if each.get("num_gpus") else "–" for each in (slow, fast)]
        degree = str(fast["plan"]["tp"]) if fast.get("plan") else "–"
        ratio = slow["days"] / fast["days"]
        cells.append((
            f"X_{row['x']}", show_short(row["params"]), f"{row['batch']:,}", _time(slow["days"]), gpus[0],
            _time(fast["days"]), gpus[1] + "*" * (fast.get("fits") is False), degree,
            "–" if isnan(ratio) else f"{ratio:.2f}",
        ))  # fmt: skip
    yield Text("The shortest training of X_x, 100,000 steps at the critical batch", style="bold")
    yield rows_table(("model", "params", "batch", "standard", "GPUs", "layered", "GPUs", "tp", "ratio"), cells)


def refused(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What models need that fit in no memory."""
    for row in rows:
        best = row.get("improved", {})
        if best.get("fits") is False:
            yield f"*: X_{row['x']} {best['refused']}; timed all the same"


CAUSES = {
    "compute": ("#009E73", "flop_at_peak", "matmul_inefficiency", "attention_overhead", "memory_bound", "host_wait"),
    "recompute": ("#8FD0B5", "recompute"),
    "tensor parallel": ("#CC79A7", "tensor_parallel_comm"),
    "bubble and imbalance": ("#56B4E9", "pipeline_bubble", "stage_imbalance", "pipeline_comm"),
    "data parallel": ("#E69F00", "data_parallel_comm"),
    "optimizer": ("#3B3B3B", "optimizer"),
}
"""Where days go: a colour, and parts of the breakdown."""


def strategies_figure(shape: FamilyModel, scenario: Scenario, entries: Sequence[StrategyBest]) -> Any:
    """Days of every strategy, baseline and improved, and where the best plans' time goes."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    _draw_days(left, shape, entries)
    shown = [entry for entry in entries if entry.answer is not None and entry.strategy.count("+") == 2]
    labels = [ORDERS[entry.method] + "\nZeRO 3" * entry.partitioned for entry in shown]
    shares, bottom = [entry.answer.breakdown.shares() for entry in shown if entry.answer], np.zeros(len(shown))
    for name, (colour, *parts) in CAUSES.items():
        values = [entry.days * sum(share[part] for part in parts) for entry, share in zip(shown, shares, strict=True)]
        right.bar(labels, values, bottom=bottom, color=colour, label=name, width=0.6)
        bottom += values
    right.set(ylabel="days", ylim=(0, 1.35 * bottom.max(initial=0.0) or None))
    right.set_title("all three: where the days go", fontsize=9)
    right.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    open_panels(left, right)
    network = show(8 * scenario.cluster.inter_node_bandwidth_bytes_per_s, "bit/s")
    place_title(figure, f"X_{shape.x}, {show_short(shape.params)} parameters on A100 with {network} a GPU", 12)
    return figure


def _draw_days(panel: Any, shape: FamilyModel, entries: Sequence[StrategyBest]) -> None:
    """A bar for every plan, and a stroke where the formula has it."""
    names = list(dict.fromkeys(entry.strategy + ", ZeRO 3" * entry.partitioned for entry in entries))
    formula = [formula_days(entry.answer, shape) for entry in entries]
    # A logarithmic axis begins at a day, or at the power of ten below all bars and strokes.
    begin = 10.0 ** np.floor(np.log10(np.nanmin([1.0, *formula, *(entry.days for entry in entries)])))
    for entry, by_formula in zip(entries, formula, strict=True):
        row = names.index(entry.strategy + ", ZeRO 3" * entry.partitioned) + 0.19 * (-1, 1)[entry.method == "improved"]
        place, colour = {"va": "center", "fontsize": 8}, _COLOURS[entry.method]
        if entry.answer is None:
            panel.annotate(" does not fit", (begin, row), color=colour, **place)
            continue
        panel.barh(row, entry.days, height=0.36, color=colour)
        words = f" {significant(entry.days)} d, {entry.answer.num_gpus:,} GPUs"
        panel.annotate(words, (entry.days, row), **place)
        panel.plot([by_formula], [row], "|", color="black", ms=10)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(xscale="log", xlabel="days, without failures")
    panel.set_xlim(begin, panel.get_xlim()[1] * 8)
    panel.set_title("red: standard order, blue: layered; strokes: by formula, GPUs at peak", fontsize=9)


def sizes_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Shortest training time against model size, on one network or several."""
    figure = new_figure(8, 4.6)
    panel, params = figure.subplots(), np.array([row["params"] for row in rows])
    for method, colour in _COLOURS.items():
        days, formula = (np.array([row[method][name] for row in rows]) for name in ("days", "formula_days"))
        here = np.isfinite(days)
        homeless = here & np.array([row[method].get("fits") is False for row in rows])
        panel.plot(params[here], days[here], "o-", color=colour, label=f"{ORDERS[method]} order, best plans")
        panel.plot(params[here], formula[here], ":", color=colour, label=f"{ORDERS[method]}, by formula, GPUs at peak")
        if homeless.any():
            label = "fits in no plan's memory, timed all the same"
            panel.plot(params[homeless], days[homeless], "o", color=colour, mfc="white", label=label)
    for row in rows:
        best = row["improved"]
        if not isnan(best["days"]):
            name = f"X_{row['x']}" + f", tp {best['plan']['tp']}" * (best["plan"]["tp"] > DOMAIN)
            place = {"xytext": (4, -12), "textcoords": "offset points", "fontsize": 8}
            panel.annotate(name, (row["params"], best["days"]), **place)
    panel.set(xscale="log", yscale="log", xlabel="parameters", ylabel="days, without failures")
    plain_axis(panel.yaxis)
    open_panels(panel, grid="both")
    panel.legend(frameon=False, fontsize=8)
    panel.set_title("The shortest training of X_x: 100,000 steps at the critical batch, A100", fontsize=11, loc="left")
    return figure
