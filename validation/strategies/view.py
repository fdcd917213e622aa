"""Lamy-Poirier's strategies in a terminal and as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
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
from sim.report.scaling import notes
from sim.specs import Scenario
from sim.table import Table, plain_table
from sim.units import show, show_short, significant

ORDERS = {"baseline": "standard", "improved": "layered"}
_COLOURS = {"baseline": "#D55E00", "improved": "#0072B2"}


def strategies_view(
    shape: FamilyModel,
    scenario: Scenario,
    single: StrategyBest,
    entries: Sequence[StrategyBest],
    remarks: Sequence[str],
) -> Group:
    """The best plan of every strategy, what fills the leanest one's memory, and which traffic hides."""
    title = Text(f"X_{shape.x}", style="bold")
    title.append(
        f"  {show_short(shape.params)} parameters, critical batch {shape.critical_batch_sequences:,.0f} sequences of "
        f"{shape.sequence_length:,} tokens, 100,000 steps\n",
        style="not bold",
    )
    network = show(8 * scenario.cluster.inter_node_bandwidth_bytes_per_s, "bit/s")
    title.append(f"A100 in NVLink domains of {scenario.cluster.nvlink_domain_gpus}, {network} a GPU", style="dim")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("strategy", "order", "GPUs", "dp·pp·tp", "m", "ZeRO", "of peak", "time", "formula"):
        table.add_column(name, justify="left" if name in ("strategy", "order") else "right", no_wrap=True)
    for entry in (single, *entries):
        table.add_row(*_row(entry, shape))
    parts: list[RenderableType] = [title, "", table]
    lean = [entry for entry in entries if entry.answer is not None and entry.method == "improved"]
    if lean and lean[-1].answer is not None:
        parts += ["", *_memory(lean[-1])]
    parts += ["", Text("Which traffic hides behind arithmetic", style="bold"), _hiding(shape, scenario, entries)]
    return Group(*parts, notes(*remarks))


def _row(entry: StrategyBest, shape: FamilyModel) -> tuple[str, ...]:
    name = {"data + pipeline": "data, pipe", "data + tensor": "data, tensor"}.get(entry.strategy, entry.strategy)
    name = "all three" if "+" in name else name
    name += ", ZeRO 3" if entry.partitioned else ""
    method = ORDERS[entry.method]
    if entry.answer is None:
        return name, method, "–", "does not fit", "", "", "", "", ""
    answer, plan = entry.answer, entry.answer.scenario.plan
    star = "" if answer.fits else "*"
    host = "†" if plan.offloaded_layers else ""
    return (
        name,
        method,
        f"{answer.num_gpus:,}{star}{host}",
        f"{plan.dp}·{plan.pp}·{plan.tp}",
        f"{answer.num_microbatches:,}",
        f"{plan.zero_stage}",
        f"{answer.hfu:.0%}",
        _time(entry.days),
        _time(formula_days(entry.answer, shape)),
    )


def _time(days: float) -> str:
    if isnan(days):
        return "–"
    return f"{significant(days / 365.25)} y" if days > 1000 else f"{significant(days)} d"


def _memory(entry: StrategyBest) -> list[RenderableType]:
    """What fills the fullest GPU of a plan."""
    use = entry.answer.largest.to_dict()
    total, available = use.pop("total"), entry.answer.memory_available_bytes
    state = use["weights"] + use["gradients"] + use["optimizer"]
    text = ", ".join(f"{name} {show(value, 'B')}" for name, value in use.items() if value > 0)
    return [
        Text(f"Memory of the last plan: {show(total, 'B')} of {show(available, 'B')}", style="bold"),
        Text(f"weights, gradients and optimizer take {state / available:.1%} of the GPU; {text}"),
    ]


def _hiding(shape: FamilyModel, scenario: Scenario, entries: Sequence[StrategyBest]) -> Table:
    """Intensity of each traffic over what its link needs: above 1 it hides."""
    peak = scenario.cluster.gpu.peak(scenario.training.peak_precision)
    network = 2.0 * scenario.cluster.inter_node_bandwidth_bytes_per_s
    nvlink = 2.0 * scenario.cluster.node.nvlink_bandwidth_bytes_per_s
    best = [entry.answer for entry in entries if entry.answer is not None and entry.method == "improved"]
    count = best[-1].num_microbatches if best else 1
    length = shape.sequence_length
    rows: Mapping[str, tuple[float, float]] = {
        "gradients, standard": (float(data_parallel_intensity(length)), network),
        f"gradients, layered, m = {count}": (float(data_parallel_intensity(length, count)), network),
        f"weights gathered, layered, m = {count}": (float(gather_intensity(length, count)), network),
        "pipeline, a layer a stage": (float(pipeline_intensity(shape.hidden_size)), network),
        "tensor, 16 GPUs": (float(tensor_intensity(shape.hidden_size, 16)), nvlink),
    }
    table = plain_table("traffic", "FLOP/byte", "link needs", "")
    table.columns[3].justify = "left"
    for name, (intensity, bandwidth) in rows.items():
        needed = float(needed_intensity(peak, bandwidth))
        verdict = "hides" if intensity >= needed else f"{needed / intensity:.2f} of its compute"
        if name.startswith("tensor"):  # nothing is concurrent with it
            verdict = f"adds {needed / intensity:.1%}"
        table.add_row(name, f"{intensity:,.0f}", f"{needed:,.0f}", verdict)
    return table


def sizes_view(rows: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> Group:
    """Time against model size."""
    table = plain_table("model", "params", "batch", "standard", "GPUs", "layered", "GPUs", "tp", "ratio")
    for row in rows:
        days = [row[method]["days"] for method in ("baseline", "improved")]
        gpus = [f"{row[method]['num_gpus']:,}" if row[method].get("num_gpus") else "–" for method in _COLOURS]
        gpus[1] += "" if row["improved"].get("fits", True) else "*"
        degree = str(row["improved"]["plan"]["tp"]) if row["improved"].get("plan") else "–"
        ratio = "–" if any(isnan(each) for each in days) else f"{days[0] / days[1]:.2f}"
        table.add_row(
            f"X_{row['x']}", show_short(row["params"]), f"{row['batch']:,}", _time(days[0]), gpus[0], _time(days[1]),
            gpus[1], degree, ratio,
        )  # fmt: skip
    refused = [f"*: X_{row['x']} {row['improved']['refused']}; timed all the same" for row in rows
               if row["improved"].get("fits") is False]  # fmt: skip
    return Group(Text("The shortest training of X_x, 100,000 steps at the critical batch", style="bold"), table,
                 notes(*refused, *remarks))  # fmt: skip


def strategies_figure(shape: FamilyModel, scenario: Scenario, entries: Sequence[StrategyBest]) -> Any:
    """Days of every strategy, baseline and improved, and where the best plans' time goes."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(entry.strategy + (", ZeRO 3" if entry.partitioned else "") for entry in entries))
    # A logarithmic axis begins at a day, or at the power of ten below all bars and strokes.
    days = [day for entry in entries for day in (entry.days, formula_days(entry.answer, shape))]
    begin = 10.0 ** np.floor(np.log10(np.nanmin([1.0, *days])))
    for entry in entries:
        place = names.index(entry.strategy + (", ZeRO 3" if entry.partitioned else ""))
        row = place + (0.19 if entry.method == "improved" else -0.19)
        if entry.answer is None:
            left.annotate(" does not fit", (begin, row), va="center", fontsize=8, color=_COLOURS[entry.method])
            continue
        left.barh(row, entry.days, height=0.36, color=_COLOURS[entry.method])
        left.annotate(
            f" {significant(entry.days)} d, {entry.answer.num_gpus:,} GPUs", (entry.days, row), va="center", fontsize=8
        )
        formula = formula_days(entry.answer, shape)
        left.plot([formula], [row], "|", color="black", ms=10)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(xscale="log", xlabel="days, without failures")
    left.set_xlim(begin, left.get_xlim()[1] * 8)
    left.set_title("red: standard order, blue: layered; strokes: by formula, GPUs at peak", fontsize=9)
    shown = [entry for entry in entries if entry.answer is not None and entry.strategy.count("+") == 2]
    causes = {
        "compute": ("flop_at_peak", "matmul_inefficiency", "attention_overhead", "memory_bound", "host_wait"),
        "recompute": ("recompute",),
        "tensor parallel": ("tensor_parallel_comm",),
        "bubble and imbalance": ("pipeline_bubble", "stage_imbalance", "pipeline_comm"),
        "data parallel": ("data_parallel_comm",),
        "optimizer": ("optimizer",),
    }
    colours = ("#009E73", "#8FD0B5", "#CC79A7", "#56B4E9", "#E69F00", "#3B3B3B")
    labels = [ORDERS[entry.method] + ("\nZeRO 3" if entry.partitioned else "") for entry in shown]
    bottom = np.zeros(len(shown))
    for (name, parts), colour in zip(causes.items(), colours, strict=True):
        values = np.array([
            entry.days * sum(entry.answer.breakdown.shares()[part] for part in parts) if entry.answer else 0.0
            for entry in shown
        ])  # fmt: skip
        right.bar(labels, values, bottom=bottom, color=colour, label=name, width=0.6)
        bottom += values
    right.set(ylabel="days")
    right.set_title("all three: where the days go", fontsize=9)
    right.set_ylim(0, 1.35 * bottom.max(initial=0.0) or None)
    right.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
    open_panels(left, right)
    network = show(8 * scenario.cluster.inter_node_bandwidth_bytes_per_s, "bit/s")
    place_title(figure, f"X_{shape.x}, {show_short(shape.params)} parameters on A100 with {network} a GPU", 12)
    return figure


def sizes_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Shortest training time against model size, on one network or several."""
    figure = new_figure(8, 4.6)
    panel = figure.subplots()
    for method, colour in _COLOURS.items():
        params = np.array([row["params"] for row in rows])
        days = np.array([row[method]["days"] for row in rows])
        here = np.isfinite(days)
        panel.plot(params[here], days[here], "o-", color=colour, label=f"{ORDERS[method]} order, best plans")
        formula = np.array([row[method]["formula_days"] for row in rows])
        panel.plot(params[here], formula[here], ":", color=colour, label=f"{ORDERS[method]}, by formula, GPUs at peak")
        homeless = here & np.array([row[method].get("fits") is False for row in rows])
        if homeless.any():
            label = "fits in no plan's memory, timed all the same"
            panel.plot(params[homeless], days[homeless], "o", color=colour, mfc="white", label=label)
    for row in rows:
        if isnan(row["improved"]["days"]):
            continue
        degree = row["improved"]["plan"]["tp"]
        name = f"X_{row['x']}" + (f", tp {degree}" if degree > DOMAIN else "")
        place = (row["params"], row["improved"]["days"])
        panel.annotate(name, place, xytext=(4, -12), textcoords="offset points", fontsize=8)
    panel.set(xscale="log", yscale="log", xlabel="parameters", ylabel="days, without failures")
    plain_axis(panel.yaxis)
    open_panels(panel, grid="both")
    panel.legend(frameon=False, fontsize=8)
    panel.set_title("The shortest training of X_x: 100,000 steps at the critical batch, A100", fontsize=11, loc="left")
    return figure
