"""A table of scores for the terminal, JSON for machines, a picture for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flopcast_calibration.readers.training_runs import NO_CONVENTION
from flopcast_validation.runs.score import ErrorSummary
from flopcast_validation.runs.scored import Scored
from sim.canvas import new_figure, write_figure


def to_json(scored: Sequence[Scored], groups: Sequence[ErrorSummary]) -> dict[str, Any]:
    """`rows` and `groups`."""
    return {"rows": [item.to_dict() for item in scored], "groups": [group.to_dict() for group in groups]}


#: column -> (how to show a group's value, needed even where the terminal is narrow)
COLUMNS: dict[str, tuple[Callable[[ErrorSummary], str], bool]] = {
    "runs": (lambda group: f"{group.count}", True),
    "left": (lambda group: f"{group.skipped}" if group.skipped else "", True),
    "mean": (lambda group: share(group.mean_error), True),
    "median": (lambda group: share(group.median_error), False),
    "bias": (lambda group: share(group.bias, "+"), True),
    "p90": (lambda group: share(group.p90_error), True),
    "90 %": (lambda group: share(group.coverage, digits=0), True),
    "sweeps": (lambda group: f"{group.sweeps}" if group.sweeps else "", False),
    "tau": (lambda group: "" if group.tau is None else f"{group.tau:.2f}", False),
    "regret": (lambda group: "" if group.regret is None else share(group.regret), False),
    "constant": (lambda group: share(group.constant_error), True),
    "6ND": (lambda group: share(group.six_nd_error), False),
}
_NAME_WIDTH = 34
WIDE = 110
"""Columns of a terminal from which on the whole table is shown."""


def group_table(groups: Sequence[ErrorSummary], by: Sequence[str], width: int) -> Any:
    """A rich table of the groups of some kinds; below `WIDE` columns without what matters least."""
    from sim.table import plain_table

    columns = {head: show for head, (show, needed) in COLUMNS.items() if needed or width >= WIDE}
    table = plain_table("", *columns, gap=1)
    for kind in by:
        for group in (item for item in groups if item.by == kind):
            name = group.name if len(group.name) <= _NAME_WIDTH else f"{group.name[: _NAME_WIDTH - 1]}…"
            table.add_row(name, *(show(group) for show in columns.values()))
        table.add_row()
    return table


_IN_PAGES = {
    "runs": "runs", "mean error": "mean", "bias": "bias", "naive guess": "constant", "inside": "90 %", "tau": "tau",
    "regret": "regret",
}  # fmt: skip
"""Heading in a page of Markdown -> column."""
FEWEST_IN_PAGES = 5
"""Runs of a framework that has a row of its own in a page."""


HEADLINES = ("wild", "all", "fitted")
"""Kinds of groups that the README shows; docs/validation.md has all of `markdown_table`."""


def markdown_table(groups: Sequence[ErrorSummary], by: Sequence[str] = (*HEADLINES, "kind", "framework")) -> str:
    """Table of the record in Markdown: runs in the wild, all, by who set values, by kind of model, by framework."""
    shown = [each for each in groups if each.by in by and each.count]
    shown = [each for each in shown if each.by != "framework" or each.count >= FEWEST_IN_PAGES]
    lines = [(each.name, *(COLUMNS[column][0](each) for column in _IN_PAGES.values())) for each in shown]
    return markdown(("published runs", *_IN_PAGES), lines)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of cells in Markdown."""
    head, *rows = (f"| {' | '.join(row)} |".replace("|  |", "| |").replace("  ", " ") for row in (heads, *lines))
    return "\n".join([head, f"|{'---|' * len(heads)}", *rows])


def share(value: float, sign: str = "", digits: int = 1) -> str:
    """A share as a percentage; nothing where there is none."""
    return "" if value != value else f"{value:{sign}.{digits}%}"


def worst(scored: Sequence[Scored], count: int = 10) -> list[tuple[Scored, str]]:
    """The worst runs, each with our reading of why."""
    used = [item for item in scored if item.error is not None]
    used.sort(key=lambda item: -abs(item.error or 0.0))
    return [(item, reading(item)) for item in used[:count]]


def reading(item: Scored) -> str:
    """Why a prediction may be off, from what is known of the run."""
    run, scenario = item.run, item.run.choices[0]
    notes: list[tuple[bool, str]] = [
        (item.fits is False, "does not fit in memory by our account: the run did something we do not model"),
        (
            scenario.plan.zero_stage == 3 and "DeepSpeed" in run.framework,
            "ZeRO-3 of DeepSpeed gathers tensor by tensor",
        ),
        ("Omni-Path" in scenario.cluster.name or "V100" in run.gpu, "shared cluster, runs differ by up to 40 %"),
        ("power" in run.gpu.lower() or "cap" in run.gpu.lower(), "the GPU's power is capped below the profile's"),
        (bool(run.inferred) and len(run.choices) > 1, "layout not fully stated; the fastest that fits was assumed"),
        (NO_CONVENTION in run.inferred, "flops_convention is not stated: are recomputed FLOPs counted?"),
        (scenario.training.format is not None, "8-bit recipes differ in what stays in 16 bits, and cast costs"),
        (scenario.model.hidden_size <= 2048, "small kernels: the host's speed decides, which differs between machines"),
    ]
    return next((text for applies, text in notes if applies), "no known cause")


def draw(scored: Sequence[Scored], path: Path) -> None:
    """Predicted against measured step time, and the errors' distribution beside the naive guess's."""
    import numpy as np

    used = [item for item in scored if item.error is not None and item.step_time_s]
    gpus = sorted({item.run.choices[0].profile.gpu for item in used})
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    figure = new_figure(11, 4.8)
    left, right = figure.subplots(1, 2)
    for gpu, colour in zip(gpus, colours, strict=False):
        mine = [item for item in used if item.run.choices[0].profile.gpu == gpu]
        predicted = np.array([item.step_time_s for item in mine], dtype=float)
        measured = predicted / (1 + np.array([item.error for item in mine], dtype=float))
        left.loglog(measured, predicted, ".", ms=5, alpha=0.6, color=colour, label=f"{gpu} ({len(mine)})")
    ends = np.array(left.get_xlim())
    left.loglog(ends, ends, color="0.3", lw=1)
    for factor in (0.8, 1.25):
        left.loglog(ends, ends * factor, color="0.7", lw=0.8, ls="--")
    left.set(xlabel="measured step time [s]", ylabel="predicted step time [s]", title="Dashed: 0.8 and 1.25 times")
    left.legend(frameon=False)
    bins = np.linspace(-0.6, 0.6, 49)
    errors = np.clip([item.error for item in used if item.error is not None], -0.6, 0.6)
    naive = np.clip([item.constant_error for item in used if item.constant_error is not None], -0.6, 0.6)
    right.hist(naive, bins, color="0.8", label="constant share of peak, and the bubble")
    right.hist(errors, bins, histtype="step", lw=1.8, color=colours[0], label="flopcast")
    right.axvline(0, color="0.3", lw=1)
    right.set(xlabel="(predicted − measured) / measured step time", ylabel="runs", title=f"{len(used)} runs")
    right.set_ylim(top=1.25 * right.get_ylim()[1])  # room for the legend
    right.legend(frameon=False)
    write_figure(figure, path, 140)
