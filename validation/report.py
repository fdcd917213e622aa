"""The published tables that ship with flopcast, predicted: as an object that shows itself."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flopcast_validation.run import ScoredTable, score, tables


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """How well published step times are predicted, table by table, with a constant's error beside it."""

    tables: tuple[ScoredTable, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error over all rows."""
        return fmean(abs(row.error) for table in self.tables for row in table.rows)

    def to_frame(self) -> Any:
        """A pandas table: a row a measured run; errors are relative, values in the table's unit."""
        import pandas as pd

        rows = [
            {"table": table.title, "unit": table.unit, **row._asdict()} for table in self.tables for row in table.rows
        ]
        names = ["table", "scenario", "unit", "measured", "predicted", "error", "constant_error", "fits"]
        return pd.DataFrame(rows).rename(columns={"baseline_error": "constant_error"})[names]

    def plot(self, width_in: float = 9.0) -> Any:
        """Errors of every row, the constant's paler beside them, as a matplotlib figure."""
        from sim.canvas import new_figure

        rows = self.to_frame()
        figure = new_figure(width_in, 0.22 * len(rows) + 1.6)
        axes = figure.subplots()
        axes.barh(-rows.index, 100 * rows.constant_error, color="#D0D0D0", height=0.8, label="a constant")
        axes.barh(-rows.index, 100 * rows.error, color="#0072B2", height=0.45, label="flopcast")
        axes.axvline(0, color="black", lw=0.8)
        axes.set_yticks(-rows.index, rows.scenario, fontsize=8)
        axes.set_xlabel("predicted over measured value − 1 [%]", fontsize=9)
        axes.set_title(f"Published runs: mean error {self.mean_error:.1%}", loc="left", fontsize=11, fontweight="bold")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
        return figure

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))


def validation_report(profile: str | None = None) -> ValidationReport:
    """Predict every shipped table, with `profile` instead of the scenarios' own where it is given."""
    return ValidationReport(tuple(score(name, profile) for name in tables()))
