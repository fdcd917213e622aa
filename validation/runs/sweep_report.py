"""Sweeps of layouts in a terminal: one by one, by source, and along which axis we mislead ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np

from validation.runs.score import Scored
from validation.runs.sweeps import GOAL, SweepScore, biases, plan_words, sweeps_of


def print_sweeps(out: Any, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Print the sweeps; plain data of each."""
    from sim.table import Table

    sweeps = sweeps_of(scored)
    if not sweeps:
        out.print("no sweep of three layouts or more\n")
        return []
    for source in dict.fromkeys(each.source for each in sweeps):
        out.print(f"{short_name(source)}")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("sweep", overflow="fold", min_width=20)
        for heading in ("runs", "tau", "regret"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("picked", overflow="fold")
        table.add_column("fastest measured (we find it slower by)", overflow="fold")
        for each in (one for one in sweeps if one.source == source):
            slower = f"{each.believed_loss:.1%}"
            fastest = f"{plan_words(each.fastest, each.differ)} ({slower})"
            table.add_row(
                each.name,
                f"{each.count}",
                _tau(each.tau),
                f"{each.regret:.1%}",
                plan_words(each.picked, each.differ),
                "the same" if each.regret == 0 else fastest,
            )
        out.print(table)
        out.print()
    out.print(_by_source(sweeps))
    out.print(
        "regret: how much slower, as measured, the plan we would pick is than the fastest. tau: Kendall's, of measured "
        f"and predicted step times. within: sweeps of at most {GOAL:.0%} regret.\n"
    )
    _print_biases(out, scored, sweeps)
    return [each.to_dict() for each in sweeps]


def _by_source(sweeps: Sequence[SweepScore]) -> Any:
    from sim.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("source", "sweeps", "runs", "within", "mean regret", "worst", "mean tau"):
        table.add_column(heading, justify="left" if heading == "source" else "right")
    for source in (*dict.fromkeys(each.source for each in sweeps), "all"):
        own = [each for each in sweeps if source in (each.source, "all")]
        regrets = [each.regret for each in own]
        taus = [each.tau for each in own if each.tau is not None]
        table.add_row(
            short_name(source),
            f"{len(own)}",
            f"{sum(each.count for each in own):,}",
            f"{sum(regret <= GOAL for regret in regrets)}",
            f"{np.mean(regrets):.1%}",
            f"{max(regrets):.1%}",
            _tau(float(np.mean(taus)) if taus else None),
        )
    return table


def _print_biases(out: Any, scored: Sequence[Scored], sweeps: Sequence[SweepScore]) -> None:
    """Error of the step time that a doubling along each axis adds, by source."""
    found = {source: biases([item for item in scored if item.run.source == source])
             for source in dict.fromkeys(each.source for each in sweeps)}  # fmt: skip
    if not any(found.values()):
        return
    out.print(
        "What a doubling (recompute, sequence parallel: switching it on) adds to predicted over measured step time, "
        "within sweeps, with its standard error; positive: we take more of it for slower than it is."
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


def _tau(tau: float | None) -> str:
    return "" if tau is None else f"{tau:.2f}"
