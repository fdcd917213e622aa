"""Scaling laws in a terminal: side by side for a budget, a loss, a model or a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.scaling.fit import LossFit
from sim.scaling.loss_laws import CriticalBatchLaw, LossLaw, Optimum, compute_optimal
from sim.table import columns_table
from sim.units import show_short, significant


def notes(*lines: str) -> Text:
    """Remarks under a table; empty ones are left out."""
    return Text("\n".join(f"• {line}" for line in lines if line), style="dim")


def loss_text(loss: float) -> str:
    """A loss, or a dash where a law gives none."""
    return "–" if isnan(loss) else f"{loss:.3f}"


def interval_text(interval: tuple[float, float] | None) -> str:
    """An interval of a count, or nothing."""
    return f"{show_short(interval[0])}–{show_short(interval[1])}" if interval else ""


def optimum_view(title: str, best: Sequence[Optimum], remarks: Sequence[str], show_flop: bool) -> Group:
    """What each law would train."""
    columns = {
        "law": [each.law for each in best],
        "params": [show_short(each.params) + "*" * bool(each.extrapolated) for each in best],
        "interval": [interval_text(each.params_interval) for each in best],
        "tokens": [show_short(each.tokens) for each in best],
        "tokens/param": [significant(each.tokens / each.params) for each in best],
    }
    columns |= {"FLOP": [f"{e.flop:.2e}" for e in best]} if show_flop else {"loss": [loss_text(e.loss) for e in best]}
    odd = [e.law for e in best if e.params_interval and not e.params_interval[0] <= e.params <= e.params_interval[1]]
    star = (
        "* extrapolated: beyond the compute of the runs that the law was fitted on"
        if any(e.extrapolated for e in best)
        else ""
    )
    unknown = dict.fromkeys(e.law for e in best if e.extrapolated is None)
    star += f" (for {', '.join(unknown)} that is not known)" if star and unknown else ""
    leaves_out = (f"{name}: the published interval does not contain the published exponent" for name in odd)
    return Group(Text(title, style="bold"), columns_table(columns), notes(star, *leaves_out, *remarks))


_MODEL_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "best_tokens": ("best tokens", show_short),
    "flop": ("FLOP", "{:.2e}".format),
    "best_loss": ("loss", loss_text),
    "loss": ("your loss", loss_text),
    "tokens_for_loss": ("tokens needed", show_short),
}


def model_view(title: str, rows: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> Group:
    """A model under each law: a row a law, with its name and some of the columns above."""
    shown = [name for name in _MODEL_COLUMNS if name in rows[0]]
    columns = {"law": [row["law"] for row in rows]}
    for heading, show_value, name in ((*_MODEL_COLUMNS[name], name) for name in shown):
        columns[heading] = ["–" if isnan(row[name]) else show_value(row[name]) for row in rows]
    table = columns_table(columns)
    return Group(Text(title, style="bold"), table, notes(*remarks))


def batch_view(title: str, rows: Mapping[str, Mapping[str, Any]], remarks: Sequence[str]) -> Group:
    """Each law's batch, and steps and tokens at the batch that was asked for."""
    laws = dict(sorted(rows.items(), key=lambda item: item[1]["batch_tokens"]))
    overheads = [row["data_overhead"] for row in laws.values()]
    columns = {
        "law": [*laws],
        "batch, tokens": [show_short(row["batch_tokens"]) for row in laws.values()],
        "what it is": ["best for the loss" if each is None else f"takes {each:.0%} more data" for each in overheads],
    }
    for name in ("steps", "tokens"):
        if any(name in row for row in laws.values()):
            columns[name] = [show_short(row[name]) if name in row else "–" for row in laws.values()]
    batches = [row["batch_tokens"] for row in laws.values()]
    spread = f"the laws differ by a factor of {significant(batches[-1] / batches[0], 2)}"
    table = columns_table(columns, left=("law", "what it is"))
    return Group(Text(title, style="bold"), table, notes(spread, *remarks))


def fit_view(title: str, fit: LossFit) -> Group:
    """The fitted constants, and what they make of the runs' largest budget and of ones up to 1000 times as large."""
    law = fit.law()
    values = {letter: getattr(law.form, name) for letter, name in _LETTERS.items()}
    intervals = [fit.interval(name) for name in (*_LETTERS.values(), "exponent")]
    constants = {
        "constant": [*values, "N ~ C^"],
        "value": [f"{value:.4g}" for value in (*values.values(), law.allocation.exponent)],
        "90 % interval": [f"{low:.4g} – {high:.4g}" for low, high in intervals],
    }
    assert law.fitted_flop is not None
    best = [compute_optimal(times * law.fitted_flop[1], law) for times in (1, 10, 100, 1000)]
    budgets = {
        "budget, FLOP": [f"{each.flop:.2e}" + "*" * bool(each.extrapolated) for each in best],
        "params": [show_short(each.params) for each in best],
        "90 % interval": [interval_text(fit.params_interval(each.flop)) for each in best],
        "tokens/param": [significant(each.tokens / each.params) for each in best],
        "loss": [loss_text(each.loss) for each in best],
    }
    remarks = (f"root mean square of log L: {fit.residual:.3%}", "* extrapolated beyond the runs' compute")
    formula = Text("L = E + A / params^alpha + B / tokens^beta\n", style="dim")
    tables = columns_table(constants), "", columns_table(budgets)
    return Group(Text(title, style="bold"), formula, *tables, notes(*remarks))


_LETTERS = {"E": "irreducible", "A": "a", "alpha": "alpha", "B": "b", "beta": "beta"}
"""Constants of a loss law as they are written, and the attributes of its form."""


def laws_view(laws: Mapping[str, LossLaw], batch_laws: Mapping[str, CriticalBatchLaw]) -> Group:
    """Every law: what it says, its constants and their errors, its source, how far that was checked."""
    parts: list[RenderableType] = [Text("Loss laws: N parameters, D tokens, C = 6 N D", style="bold")]
    for law in laws.values():
        parts += [Text(f"{law.name}: {law.summary}")]
        parts += [notes(*_constants(law), law.source, f"constants checked: {law.checked}")]
    parts += ["", Text("Critical batches, in tokens", style="bold")]
    for each in batch_laws.values():
        parts += [Text(f"{each.name}: {each.summary}"), notes(each.source, f"constants checked: {each.checked}")]
    return Group(*parts)


def _constants(law: LossLaw) -> list[str]:
    lines = []
    if law.form is not None:
        values = (
            f"{letter} {getattr(law.form, name):.4g}" + (f" ± {law.errors[name]:.4g}" if name in law.errors else "")
            for letter, name in _LETTERS.items()
        )
        power = "" if law.form.gamma == 1 else f"^{law.form.gamma:g}"
        lines.append(f"L = E + (A/N^alpha + B/D^beta){power}: " + ", ".join(values))
    lines.append(f"best N = {float(law.allocation(1.0)):.4g} C^{law.allocation.exponent:.4g}")
    if law.exponent_interval is not None:
        low, high = law.exponent_interval
        lines.append(f"exponent of N between {low:.3f} and {high:.3f}: {law.interval_is}")
    return lines
