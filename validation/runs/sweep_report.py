"""Sweeps of layouts in a terminal: one by one, by source, and along which axis we mislead ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import exp
from typing import Any

from flopcast_validation.runs.biases import biases
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.sweep_summary import SweepSummary, summaries_of
from flopcast_validation.runs.sweeps import FEWEST, GOAL, SweepScore, members_of, plan_of, plan_words, sweeps_of


def print_sweeps(out: Any, scored: Sequence[Scored]) -> dict[str, Any]:
    """Print the sweeps; plain data of each and of each source."""
    from sim.table import plain_table

    sweeps = sweeps_of(scored)
    if not sweeps:
        out.print("no sweep of three layouts or more\n")
        return {"sweeps": [], "sweep_summaries": []}
    for source in dict.fromkeys(each.source for each in sweeps):
        out.print(f"{short_name(source)}")
        words = ("sweep", "picked", "fastest")
        table = plain_table("sweep", "plans", "tau", "regret", "picked", "fastest", "ours", left=words, wrap=words)
        for each in (one for one in sweeps if one.source == source):
            same = each.regret == 0
            table.add_row(
                each.name,
                f"{len(each.layouts)}",
                _number(each.tau),
                f"{each.regret:.1%}",
                plan_words(each.picked.plan, each.differ),
                "the same" if same else plan_words(each.fastest.plan, each.differ),
                "" if same else f"{each.believed_loss:+.1%}",
            )
        out.print(table)
        out.print()
    summaries = summaries_of(sweeps)
    out.print(_by_source(summaries))
    too_few = sum(2 <= len({plan_of(item) for item in each}) < FEWEST for each in members_of(scored).values())
    out.print(
        "A sweep keeps model, machine, batch, precision and kernels; its plans differ in layout, schedule, micro-batch "
        "and recomputation, and one measured several times counts once, by its mean. "
        f"{too_few} sweeps of two plans are left out. "
        "regret: how much slower, as measured, the plan we would pick is than the fastest; ours: how much slower we "
        "take the fastest for. tau: Kendall's, of measured and predicted step times. "
        f"within: sweeps of at most {GOAL:.0%} regret.\n"
    )
    _print_chance(out, summaries)
    _print_biases(out, scored, sweeps)
    return {"sweeps": [each.to_dict() for each in sweeps], "sweep_summaries": list(map(asdict, summaries))}


def _by_source(summaries: Sequence[SweepSummary]) -> Any:
    from sim.table import plain_table

    headings = ("sweeps", "runs", "within", "mean", "median", "worst", "tau")
    table = plain_table("source", *headings, wrap=("source",))
    for each in summaries:
        table.add_row(
            short_name(each.source),
            f"{each.sweeps}",
            f"{each.runs:,}",
            f"{each.within}",
            f"{each.mean_regret:.1%}",
            f"{each.median_regret:.1%}",
            f"{each.worst_regret:.1%}",
            _number(each.mean_tau),
        )
    return table


def _print_chance(out: Any, summaries: Sequence[SweepSummary]) -> None:
    """What runs measured more than once say of chance, by source."""
    for each in summaries:
        if each.spread is None or each.source == "all":
            continue
        oracle = ""
        if each.oracle_regret is not None:
            oracle = f"; who knew the truth would be charged a mean regret of {each.oracle_regret:.1%} at least"
        plural = "s" if each.repeated > 1 else ""
        out.print(
            f"{short_name(each.source)}: {each.repeated} plan{plural} measured more than once, "
            f"a measurement spreads by {each.spread:.2%}{oracle}"
        )
    out.print()


def _print_biases(out: Any, scored: Sequence[Scored], sweeps: Sequence[SweepScore]) -> None:
    """Error of the step time that a doubling along each axis adds, by source."""
    found = {source: biases([item for item in scored if item.run.source == source])
             for source in dict.fromkeys(each.source for each in sweeps)}  # fmt: skip
    if not any(found.values()):
        return
    out.print(
        "What a doubling (recompute, sequence parallel: switching it on) adds to predicted over measured step time, "
        "within sweeps, with its standard error. Above zero, we predict more of it as slower than it is."
    )
    for source, slopes in found.items():
        if slopes:
            out.print(f"  {short_name(source)}: {', '.join(f'{axis} {_slope(each)}' for axis, each in slopes.items())}")
    out.print()


def short_name(source: str) -> str:
    """A source without what stands in brackets."""
    return source.partition(" (")[0]


def _slope(found: tuple[float, float, int]) -> str:
    return f"{exp(found[0]) - 1:+.1%} ± {found[1]:.1%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
