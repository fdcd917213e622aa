"""Sweeps of layouts in a terminal: one by one, by source, and along which axis we mislead ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import exp
from typing import Any

from flopcast_validation.runs.biases import biases
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.sweeps import (
    FEWEST,
    GOAL,
    Layout,
    SweepScore,
    SweepSummary,
    members_of,
    plan_of,
    summaries_of,
    sweeps_of,
)
from flopcast_validation.tables import table_of
from sim.report.terminal import grouped

LABELS = {"microbatch_size": "mbs ", "num_chunks": "chunks ", "schedule": "", "zero_stage": "ZeRO ",
          "sequence_parallel": "SP "}  # fmt: skip
SWEEPS = {
    "sweep": "name",
    "plans": lambda each: f"{len(each.layouts)}",
    "tau": "tau:.2f",
    "regret": "regret:.1%",
    "picked": lambda each: plan_words(each, each.picked),
    "fastest": lambda each: plan_words(each, each.fastest) if each.regret else "the same",
    "ours": lambda each: f"{each.believed_loss:+.1%}" if each.regret else "",
}
SOURCES = {
    "source": lambda each: short_name(each.source), "sweeps": "sweeps", "runs": "runs:,", "within": "within",
    "mean": "mean_regret:.1%", "median": "median_regret:.1%", "worst": "worst_regret:.1%", "tau": "mean_tau:.2f",
}  # fmt: skip


def print_sweeps(out: Any, scored: Sequence[Scored]) -> dict[str, Any]:
    """Print the sweeps; plain data of each and of each source."""
    sweeps = sweeps_of(scored)
    if not sweeps:
        out.print("no sweep of three layouts or more\n")
        return {"sweeps": [], "sweep_summaries": []}
    words, summaries = ("sweep", "picked", "fastest"), summaries_of(sweeps)
    by_source = grouped((each.source, each) for each in sweeps)
    for source, own in by_source.items():
        out.print(short_name(source))
        out.print(table_of(SWEEPS, own, left=words, wrap=words))
        out.print()
    out.print(table_of(SOURCES, summaries, wrap=("source",)))
    too_few = sum(2 <= len({plan_of(item) for item in each}) < FEWEST for each in members_of(scored).values())
    out.print(
        "A sweep keeps model, machine, batch, precision and kernels; its plans differ in layout, schedule, micro-batch "
        "and recomputation, and one measured several times counts once, by its mean. "
        f"{too_few} sweeps of two plans are left out. "
        "regret: how much slower, as measured, the plan we would pick is than the fastest; ours: how much slower we "
        "take the fastest for. tau: Kendall's, of measured and predicted step times. "
        f"within: sweeps of at most {GOAL:.0%} regret.\n"
    )
    for each in summaries:
        if each.spread is not None and each.source != "all":
            out.print(_chance(each))
    out.print()
    _print_biases(out, scored, list(by_source))
    return {"sweeps": [each.to_dict() for each in sweeps], "sweep_summaries": list(map(asdict, summaries))}


def _chance(each: SweepSummary) -> str:
    """What runs of a source that were measured more than once say of chance."""
    oracle = ""
    if each.oracle_regret is not None:
        oracle = f"; who knew the truth would be charged a mean regret of {each.oracle_regret:.1%} at least"
    return (
        f"{short_name(each.source)}: {each.repeated} plan{'s' * (each.repeated > 1)} measured more than once, "
        f"a measurement spreads by {each.spread:.2%}{oracle}"
    )


def _print_biases(out: Any, scored: Sequence[Scored], sources: Sequence[str]) -> None:
    """Error of the step time that a doubling along each axis adds, by source."""
    found = {source: biases([item for item in scored if item.run.source == source]) for source in sources}
    if not any(found.values()):
        return
    out.print(
        "What a doubling (recompute, sequence parallel: switching it on) adds to predicted over measured step time, "
        "within sweeps, with its standard error. Above zero, we predict more of it as slower than it is."
    )
    for source, slopes in found.items():
        if slopes:
            words = (f"{axis} {exp(slope) - 1:+.1%} ± {width:.1%}" for axis, (slope, width, _) in slopes.items())
            out.print(f"  {short_name(source)}: {', '.join(words)}")
    out.print()


def plan_words(sweep: SweepScore, layout: Layout) -> str:
    """What a plan differs in from others of its sweep, in a few words."""
    return " ".join(f"{LABELS.get(name, name + ' ')}{getattr(layout.plan, name)}" for name in sweep.differ)


def short_name(source: str) -> str:
    """A source without what stands in brackets."""
    return source.partition(" (")[0]
