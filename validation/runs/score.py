"""Predict every run of a table, along with two naive guesses, and sum up the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flopcast_calibration.readers.training_runs import Run
from flopcast_validation.runs.scored import Scored, modelled
from flopcast_validation.runs.sweeps import sweeps_of
from flopcast_validation.tables import Columns, cells, markdown
from sim.canvas import new_figure, write_figure
from sim.commands.options import finite
from sim.report.terminal import grouped


class ErrorSummary(NamedTuple):
    """Errors of the runs of one source, GPU, framework, or of all; nan where there are none."""

    by: str
    name: str
    count: int
    skipped: int
    mean_error: float
    median_error: float
    bias: float
    p90_error: float
    coverage: float
    half_width: float
    tau: float
    regret: float
    sweeps: int
    constant_error: float
    six_nd_error: float


def summary_of(by: str, name: str, items: Sequence[Scored]) -> ErrorSummary:
    """Errors of some runs."""
    names = ("error", "covered", "half_width", "constant_error", "six_nd_error")
    used = modelled(items)
    rows = pd.DataFrame([[getattr(item, each) for each in names] for item in used], columns=names, dtype=float)
    size, sweeps = rows.abs().mean(), sweeps_of(used)
    of_sweeps = pd.DataFrame(
        [(each.tau, each.regret) for each in sweeps], columns=["tau", "regret"], dtype=float
    ).mean()
    return ErrorSummary(
        by=by,
        name=name,
        count=len(used),
        skipped=len(items) - len(used),
        mean_error=float(size.error),
        median_error=float(rows.error.abs().median()),
        bias=float(rows.error.mean()),
        p90_error=float(rows.error.abs().quantile(0.9)),
        coverage=float(size.covered),
        half_width=float(rows.half_width.median()),
        tau=float(of_sweeps.tau),
        regret=float(of_sweeps.regret),
        sweeps=len(sweeps),
        constant_error=float(size.constant_error),
        six_nd_error=float(size.six_nd_error),
    )


GROUPINGS: dict[str, Callable[[Scored], str]] = {
    "all": lambda item: "all",
    "fitted": lambda item: "used for fitting" if item.fitted else "not used for fitting",
    "kind": lambda item: _kind_of_model(item.run),
    "gpu": lambda item: item.run.gpu,
    "framework": lambda item: item.run.framework_name,
    "source": lambda item: item.run.source or "not stated",
}


def groups_of(scored: Sequence[Scored]) -> list[ErrorSummary]:
    """Overall, by kind, GPU, framework and source, and by whether runs of the same family set a value."""
    found = []
    for by, name_of in GROUPINGS.items():
        items = modelled(scored) if by == "fitted" else scored
        groups = grouped((name_of(item), item) for item in items)
        found += [summary_of(by, name, groups[name]) for name in sorted(groups)]
    return found


def in_the_wild(scored: Sequence[Scored]) -> ErrorSummary:
    """Runs in the wild: what to expect of a run that nobody here has seen; every source counts as one."""
    sources = grouped((item.run.source, item) for item in scored)
    each = [summary_of("wild", name, items) for name, items in sources.items() if modelled(items)]
    fields = ("mean_error", "bias", "coverage", "constant_error", "six_nd_error")
    means = {field: float(np.mean([getattr(one, field) for one in each])) for field in fields}
    return summary_of("wild", f"in the wild, mean of {len(each)} sources", scored)._replace(**means)


def _kind_of_model(run: Run) -> str:
    bits = "8 bits" if run.precision.endswith("fp8") else "4 bits" if run.precision.endswith("fp4") else "16 bits"
    return f"{'dense' if run.dense else 'experts'}, {bits}"


COLUMNS: Columns = {
    "runs": "count",
    "left": lambda group: f"{group.skipped or ''}",
    "mean": "mean_error:.1%",
    "median": "median_error:.1%",
    "bias": "bias:+.1%",
    "p90": "p90_error:.1%",
    "90 %": "coverage:.0%",
    "sweeps": lambda group: f"{group.sweeps or ''}",
    "tau": "tau:.2f",
    "regret": "regret:.1%",
    "constant": "constant_error:.1%",
    "6ND": "six_nd_error:.1%",
}
_LEAST = ("median", "sweeps", "tau", "regret", "6ND")
WIDE = 110
"""Columns of a terminal from which on the whole table is shown."""
_NAME_WIDTH = 34
_IN_PAGES = {
    "runs": "runs", "mean error": "mean", "bias": "bias", "naive guess": "constant", "inside": "90 %", "tau": "tau",
    "regret": "regret",
}  # fmt: skip
"""Heading in a page of Markdown -> column."""
FEWEST_IN_PAGES = 5
"""Runs of a framework that has a row of its own in a page."""
HEADLINES = ("wild", "all", "fitted")
"""Kinds of groups that the README shows; docs/validation.md has all of `markdown_table`."""


def to_json(scored: Sequence[Scored], groups: Sequence[ErrorSummary]) -> dict[str, Any]:
    """`rows` and `groups`."""
    return {"rows": [item.to_dict() for item in scored], "groups": finite([group._asdict() for group in groups])}


def group_table(groups: Sequence[ErrorSummary], by: Sequence[str], width: int) -> Any:
    """A rich table of the groups of some kinds; below `WIDE` columns without what matters least."""
    from sim.table import plain_table

    columns = {head: how for head, how in COLUMNS.items() if width >= WIDE or head not in _LEAST}
    table = plain_table("", *columns, gap=1)
    for kind in by:
        own = [each for each in groups if each.by == kind]
        for group, row in zip(own, cells(columns, own), strict=True):
            name = group.name if len(group.name) <= _NAME_WIDTH else f"{group.name[: _NAME_WIDTH - 1]}…"
            table.add_row(name, *row)
        table.add_row()
    return table


def markdown_table(groups: Sequence[ErrorSummary], by: Sequence[str] = (*HEADLINES, "kind", "framework")) -> str:
    """Table of the record in Markdown: runs in the wild, all, by who set values, by kind of model, by framework."""
    shown = [each for each in groups if each.by in by and each.count]
    shown = [each for each in shown if each.by != "framework" or each.count >= FEWEST_IN_PAGES]
    columns = {"published runs": "name", **{head: COLUMNS[name] for head, name in _IN_PAGES.items()}}
    return markdown(columns, cells(columns, shown))


def draw(scored: Sequence[Scored], path: Path) -> None:
    """Predicted against measured step time, and the errors' distribution beside the naive guess's."""
    import numpy as np
    import pandas as pd

    used = [item for item in modelled(scored) if item.step_time_s]
    rows = pd.DataFrame({
        "gpu": [item.run.choices[0].profile.gpu for item in used],
        **{name: [getattr(item, name) for item in used] for name in ("step_time_s", "error", "constant_error")},
    })  # fmt: skip
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    figure = new_figure(11, 4.8)
    left, right = figure.subplots(1, 2)
    for (gpu, mine), colour in zip(rows.groupby("gpu"), colours, strict=False):
        measured = mine.step_time_s / (1 + mine.error)
        left.loglog(measured, mine.step_time_s, ".", ms=5, alpha=0.6, color=colour, label=f"{gpu} ({len(mine)})")
    ends = np.array(left.get_xlim())
    left.loglog(ends, ends, color="0.3", lw=1)
    for factor in (0.8, 1.25):
        left.loglog(ends, ends * factor, color="0.7", lw=0.8, ls="--")
    left.set(xlabel="measured step time [s]", ylabel="predicted step time [s]", title="Dashed: 0.8 and 1.25 times")
    left.legend(frameon=False)
    bins, (errors, naive) = np.linspace(-0.6, 0.6, 49), (rows[n].clip(-0.6, 0.6) for n in ("error", "constant_error"))
    right.hist(naive.dropna(), bins, color="0.8", label="constant share of peak, and the bubble")
    right.hist(errors, bins, histtype="step", lw=1.8, color=colours[0], label="flopcast")
    right.axvline(0, color="0.3", lw=1)
    right.set(xlabel="(predicted − measured) / measured step time", ylabel="runs", title=f"{len(used)} runs")
    right.set_ylim(top=1.25 * right.get_ylim()[1])  # room for the legend
    right.legend(frameon=False, loc="upper left")
    write_figure(figure, path, 140)
