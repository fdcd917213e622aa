"""What pages show, as plain data: the headline, the way from peak to what is achieved, memory, plans, records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sim.breakdown import CAUSES
from sim.estimate import Estimate
from sim.report.search import columns_for
from sim.report.text import heading, shown_ranks
from sim.search import SearchResult
from sim.units import show, show_count, show_time

#: Cause -> the group whose colour it has.
GROUPS = {
    "flop_at_peak": "useful",
    "matmul_inefficiency": "kernels",
    "attention_overhead": "kernels",
    "memory_bound": "kernels",
    "host_wait": "kernels",
    "recompute": "recompute",
    "tensor_parallel_comm": "network",
    "context_parallel_comm": "network",
    "expert_parallel_comm": "network",
    "pipeline_comm": "network",
    "pipeline_bubble": "waiting",
    "stage_imbalance": "waiting",
    "data_parallel_comm": "network",
    "optimizer": "optimizer",
}
LABELS = {
    "useful": "at peak rate",
    "kernels": "kernels below peak",
    "recompute": "computed again",
    "network": "communication that nothing hides",
    "waiting": "waiting",
    "optimizer": "update",
}
MEMORY = ("weights", "gradients", "optimizer", "activations", "logits", "other")
SMALLEST = 5e-4
"""Of a step: causes below it are left out of lists."""


class Fact(NamedTuple):
    """A line of the headline."""

    name: str
    value: str
    note: str = ""
    wrong: bool = False


def headline(answer: Estimate) -> list[Fact]:
    """The numbers people ask for first."""
    recompute = answer.scenario.plan.recompute != "none"
    low, high = answer.step_time_interval_s
    tokens = answer.scenario.training.tokens
    facts = [
        Fact("Step time", show_time(answer.step_time_s), f"90 %: {show_time(low)} to {show_time(high)}"),
        Fact("Tokens", show(answer.tokens_per_s, "tokens/s")),
        Fact("Whole job", show(answer.total_flop_per_s, "FLOP/s"), "recomputed FLOPs counted" if recompute else ""),
        Fact("Per GPU, model", show(answer.model_flop_per_s_per_gpu, "FLOP/s"), f"{answer.mfu:.1%} of peak (MFU)"),
    ]
    if recompute:
        rate = show(answer.hardware_flop_per_s_per_gpu, "FLOP/s")
        facts.append(Fact("Per GPU, hardware", rate, f"{answer.hfu:.1%} of peak (HFU)"))
    if answer.training_time_s is not None and tokens is not None:
        facts.append(Fact("Training", show_time(answer.training_time_s), f"for {show_count(tokens)} tokens"))
    fits = "fits" if answer.fits else "does not fit"
    note = f"of {show(answer.memory_available_bytes, 'B')} on the fullest rank: {fits}"
    facts.append(Fact("Memory", show(answer.largest.total, "B"), note, wrong=not answer.fits))
    return facts


@dataclass(frozen=True, slots=True)
class Fall:
    """One row of the way from peak to what is achieved, in shares of the step.

    begin, width : of its bar; begin is also the share of peak that remains below it.
    """

    cause: str
    meaning: str
    group: str
    seconds: float
    begin: float
    width: float


def falls_of(answer: Estimate) -> list[Fall]:
    """Causes as they take peak away, in the breakdown's order; the last row is what is left."""
    shares, seconds = answer.breakdown.shares(), answer.breakdown.seconds
    rows, left = [], 1.0
    for cause, meaning in CAUSES.items():
        if cause == "flop_at_peak":
            continue
        left -= shares[cause]
        if shares[cause] >= SMALLEST:
            rows.append(Fall(cause, meaning, GROUPS[cause], seconds[cause], max(left, 0.0), shares[cause]))
    achieved = shares["flop_at_peak"]
    useful = Fall("flop_at_peak", CAUSES["flop_at_peak"], "useful", seconds["flop_at_peak"], 0.0, achieved)
    return [*rows, useful]


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory of one GPU of a pipeline rank. [bytes]"""

    rank: int
    parts: dict[str, float]
    total: float
    fits: bool


def memory_rows(answer: Estimate) -> list[MemoryRow]:
    """Ranks worth a row; of a long pipeline the ends, the fullest and their neighbours."""
    rows = []
    for rank in shown_ranks(answer.memory):
        use = answer.memory[rank].to_dict()
        parts = {name: use[name] for name in MEMORY[:-1]}
        parts["other"] = use["total"] - sum(parts.values())
        rows.append(MemoryRow(rank, parts, use["total"], use["total"] <= answer.memory_available_bytes))
    return rows


class PlanRow(NamedTuple):
    """One of the best plans of a search."""

    cells: tuple[str, ...]
    step_time: str
    to_best: str
    mfu: str
    memory: str


def plan_table(result: SearchResult) -> tuple[list[str], list[str], list[PlanRow]]:
    """(what all the best plans share, headings of what they differ in, rows)."""
    columns = columns_for(result.space.scenario.model)
    plans = [each.scenario.plan.model_dump(mode="json") for each in result.best]
    differ = [name for name in columns if len({str(plan[name]) for plan in plans}) > 1]
    shared = [f"{columns[name]} {_word(plans[0][name])}" for name in columns if name not in differ]
    first = result.best[0].worth(result.objective)
    rows = [
        PlanRow(
            tuple(_word(plan[name]) for name in differ),
            show_time(each.answer.step_time_s),
            f"{each.worth(result.objective) / first - 1:+.1%}" if number else "",
            f"{each.answer.mfu:.1%}",
            show(each.answer.largest.total, "B"),
        )
        for number, (each, plan) in enumerate(zip(result.best, plans, strict=True))
    ]
    return shared, [columns[name] for name in differ], rows


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def title_lines(answer: Estimate) -> tuple[str, str]:
    """(the question, the plan) as the terminal says them."""
    title, _, cut = heading(answer).plain.partition("\n")
    return title.removeprefix(answer.scenario.name).strip(), cut
