"""An estimate, and two estimates side by side, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import rich.table
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from sim.breakdown import CAUSES
from sim.estimate import Estimate
from sim.specs import ParallelPlan
from sim.table import Table
from sim.units import show, show_count, show_time, significant
from sim.work.memory import MemoryUse

_MEMORY_COLUMNS = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "logits": "logits",
}
_MEMORY_WIDTH = 64
"""Columns of a terminal that the whole memory table needs."""
_COLOURS = {"flop_at_peak": "green", "matmul_inefficiency": "yellow", "attention_overhead": "yellow"}


def layout_words(plan: ParallelPlan, chunks: str = "") -> str:
    """The degrees that every plan has, and expert parallelism where there is any: `tp 2 · pp 8 · dp 16 · ep 32`."""
    return f"tp {plan.tp} · pp {plan.pp}{chunks} · dp {plan.dp}{f' · ep {plan.ep}' if plan.ep > 1 else ''}"


def heading(answer: Estimate) -> Text:
    """What was asked, in two lines."""
    scenario, plan = answer.scenario, answer.scenario.plan
    chunks = f" × {plan.num_chunks} chunks" if plan.num_chunks > 1 else ""
    options = [f"recompute {plan.recompute}"] if plan.recompute != "none" else []
    options += ["sequence parallel"] if plan.sequence_parallel else []
    options += [f"ZeRO {plan.zero_stage}"] if plan.zero_stage else []
    cut = " · ".join(
        [
            f"tp {plan.tp}",
            *([f"cp {plan.cp}"] if plan.cp > 1 else []),
            f"pp {plan.pp}{chunks}",
            f"dp {plan.dp}",
            *([f"ep {plan.ep}"] if scenario.model.num_experts else []),
            f"{answer.num_microbatches:,} micro-batches of {plan.microbatch_size}",
            plan.schedule,
            *options,
        ]
    )
    title = Text(scenario.name, style="bold")
    title.append(
        f"  {scenario.model.name}, {show_count(answer.params)} parameters"
        f"{f' ({show_count(answer.active_params)} active)' if scenario.model.num_experts else ''} on "
        f"{answer.num_gpus:,} × {scenario.cluster.gpu.name} "
        f"({scenario.cluster.name})\n",
        style="not bold",
    )
    title.append(cut, style="dim")
    return title


def _headline(answer: Estimate) -> rich.table.Table:
    scenario = answer.scenario
    recompute = scenario.plan.recompute != "none"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    low, high = answer.step_time_interval_s
    table.add_row("Step time", show_time(answer.step_time_s), f"90 %: {show_time(low)} to {show_time(high)}")
    table.add_row("Tokens", show(answer.tokens_per_s, "tokens/s"))
    table.add_row(
        "Whole job",
        Text(show(answer.total_flop_per_s, "FLOP/s"), style="bold green"),
        "recomputed FLOPs counted" if recompute else "",
    )
    table.add_row(
        "Per GPU",
        show(answer.hardware_flop_per_s_per_gpu, "FLOP/s"),
        f"{answer.hfu:.1%} of peak (HFU)" if recompute else f"{answer.mfu:.1%} of peak (MFU)",
    )
    if recompute:
        table.add_row(
            "  without recompute",
            show(answer.model_flop_per_s_per_gpu, "FLOP/s"),
            f"{answer.mfu:.1%} of peak (MFU)",
        )
    tokens = scenario.training.tokens
    if answer.training_time_s is not None and tokens is not None:
        table.add_row("Training", show_time(answer.training_time_s), f"for {show_count(tokens)} tokens")
    verdict = "fits" if answer.fits else "does not fit"
    table.add_row(
        "Memory",
        show(answer.largest.total, "B"),
        Text(
            f"of {show(answer.memory_available_bytes, 'B')} on the fullest rank: {verdict}",
            style="" if answer.fits else "bold red",
        ),
    )
    return table


def _bars(answer: Estimate, width: int) -> rich.table.Table:
    shares = answer.breakdown.shares()
    seconds = answer.breakdown.seconds
    longest = max(shares.values())
    room = width - 42
    table = Table.grid(padding=(0, 1))
    table.add_column(style="", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for cause in CAUSES:
        if shares[cause] < 5e-4:
            continue
        # A terminal too narrow for bars still gets the numbers.
        bar = "█" * max(1, round(shares[cause] / longest * room)) if room >= 8 else ""
        table.add_row(
            cause.replace("_", " "),
            show_time(seconds[cause]),
            f"{shares[cause]:.1%}",
            Text(bar, style=_COLOURS.get(cause, "cyan")),
        )
    return table


def shown_ranks(uses: Sequence[MemoryUse]) -> list[int]:
    """Ranks worth a row: all of a short pipeline; of a long one the ends, the fullest and their neighbours."""
    last = len(uses) - 1
    if last < 8:
        return list(range(last + 1))
    fullest = max(range(last + 1), key=lambda rank: uses[rank].total)
    return sorted({0, 1, fullest, last // 2, last - 1, last})


def _memory(answer: Estimate, width: int) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("rank", justify="right")
    if width < _MEMORY_WIDTH:
        table.add_column("largest part")
        table.add_column("total", justify="right", style="bold")
        for rank in shown_ranks(answer.memory):
            use = answer.memory[rank].to_dict()
            total = use.pop("total")
            part = max(use, key=lambda name: use[name])
            table.add_row(str(rank), f"{part} {use[part] / 1e9:.1f}", f"{total / 1e9:.1f}")
        return table
    for name in (*_MEMORY_COLUMNS.values(), "other", "total"):
        table.add_column(name, justify="right", style="bold" if name == "total" else "")
    for rank in shown_ranks(answer.memory):
        use = answer.memory[rank].to_dict()
        other = use["total"] - sum(use[name] for name in _MEMORY_COLUMNS)
        row = [f"{value / 1e9:.1f}" for value in (*(use[name] for name in _MEMORY_COLUMNS), other, use["total"])]
        table.add_row(str(rank), *row)
    return table


def estimate_view(answer: Estimate, width: int) -> Group:
    """The answer: headline, where the time goes, memory by pipeline rank, assumptions."""
    assumptions = Text("\n".join(f"• {line}" for line in answer.assumptions), style="dim")
    return Group(
        heading(answer),
        "",
        Padding(_headline(answer), (0, 0, 0, 2), expand=False),
        "",
        Text("Where the time goes", style="bold") + Text("  (average GPU, one step)", style="dim"),
        Padding(_bars(answer, width), (0, 0, 0, 2), expand=False),
        "",
        Text("Memory by pipeline rank", style="bold") + Text("  (GB per GPU)", style="dim"),
        Padding(_memory(answer, width), (0, 0, 0, 2), expand=False),
        "",
        Text("Assumptions", style="bold")
        + Text(
            f"  (profile {answer.scenario.profile.name}, stack {answer.scenario.stack.name}, engine {answer.engine})",
            style="dim",
        ),
        Padding(assumptions, (0, 0, 0, 2), expand=False),
    )


def _shown(value: float, unit: str) -> str:
    """A value by what it is: a time, a share, a count, or a quantity of `unit`."""
    if unit == "time":
        return show_time(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if unit == "count" else show(value, unit)


def compare_view(first: Estimate, second: Estimate) -> Group:
    """Two answers side by side, and what differs between their descriptions."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("")
    for answer in (first, second):
        table.add_column(answer.scenario.name, justify="right", overflow="fold")
    table.add_column("change", justify="right")

    def row(label: str, left: float, right: float, text: str) -> None:
        change = f"{right / left - 1:+.1%}" if left > 0 else ("" if right == left else "new")
        table.add_row(label, _shown(left, text), _shown(right, text), change)

    row("GPUs", first.num_gpus, second.num_gpus, "count")
    row("step time", first.step_time_s, second.step_time_s, "time")
    row("tokens/s", first.tokens_per_s, second.tokens_per_s, "tokens/s")
    row("whole job", first.total_flop_per_s, second.total_flop_per_s, "FLOP/s")
    row("per GPU (hardware)", first.hardware_flop_per_s_per_gpu, second.hardware_flop_per_s_per_gpu, "FLOP/s")
    row("per GPU (model)", first.model_flop_per_s_per_gpu, second.model_flop_per_s_per_gpu, "FLOP/s")
    row("MFU", first.mfu, second.mfu, "share")
    row("HFU", first.hfu, second.hfu, "share")
    if first.training_time_s and second.training_time_s:
        row("training", first.training_time_s, second.training_time_s, "time")
    row("memory, fullest rank", first.largest.total, second.largest.total, "B")
    table.add_section()
    for cause in CAUSES:
        left, right = first.breakdown.seconds[cause], second.breakdown.seconds[cause]
        if max(left / first.step_time_s, right / second.step_time_s) >= 5e-4:
            row(cause.replace("_", " "), left, right, "time")
    differences = differing_fields(first, second)
    return Group(
        table,
        "",
        Text("What differs", style="bold"),
        Padding("\n".join(differences) or "nothing", (0, 0, 0, 2), expand=False),
    )


def differing_fields(first: Estimate, second: Estimate) -> list[str]:
    """Lines `plan.tp: 8 → 4` for every field that differs between two scenarios."""
    lines: list[str] = []

    def walk(left: object, right: object, path: str) -> None:
        if isinstance(left, dict) and isinstance(right, dict):
            for key in {**left, **right}:
                walk(left.get(key), right.get(key), f"{path}.{key}" if path else str(key))
        elif left != right:
            shown = [significant(value, 6) if isinstance(value, float) else str(value) for value in (left, right)]
            lines.append(f"{path}: {shown[0]} → {shown[1]}")

    skipped = {"name", "description", "assumed", "profile"}
    left, right = (answer.scenario.model_dump(mode="json", exclude=skipped) for answer in (first, second))
    walk(left, right, "")
    if first.scenario.profile.name != second.scenario.profile.name:
        lines.append(f"profile: {first.scenario.profile.name} → {second.scenario.profile.name}")
    return lines


def console() -> Console:
    """Where answers are printed: plain when it is not a terminal."""
    return Console(highlight=False, soft_wrap=False)
