"""What a sweep found: the best plan at every point, as data, as a table, as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.notebook import Plotted
from sim.search.answers.among import FIELDS
from sim.search.answers.axes import Axis
from sim.search.candidate import Candidate
from sim.specs import Scenario


@dataclass(frozen=True, slots=True)
class Point:
    """The best plan where the axes have these values.

    best : None where there is none.
    infeasible : why there is none; None where there is one.
    gap : by what share at most another plan could be better; 0: by none.
    """

    values: tuple[float, ...]
    best: Candidate | None
    infeasible: str | None
    plans_feasible: int
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Sweep(Plotted):
    """The best plan at every point of one or two axes; the last axis changes fastest.

    finished : False where it was interrupted; points that were not searched say so.
    """

    scenario: Scenario
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    objective: str
    notes: tuple[str, ...]
    finished: bool = True

    def winners(self) -> tuple[int | None, ...]:
        """Of every point which plan wins, numbered as they first appear; None where none does."""
        seen: dict[Any, int] = {}
        return tuple(
            None if each.best is None else seen.setdefault(each.best.scenario.plan, len(seen)) for each in self.points
        )

    def changes(self, number: int) -> tuple[str, ...]:
        """Fields in which the winner of a point differs from that of the feasible point before it on the last axis."""
        here = self.points[number].best
        length = len(self.axes[-1].values)
        before = [each.best for each in self.points[number - number % length : number] if each.best is not None]
        if here is None or not before:
            return ()
        old, new = before[-1].scenario.plan, here.scenario.plan
        return tuple(name for name in FIELDS if getattr(old, name) != getattr(new, name))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.scenario.name,
            "objective": self.objective,
            "finished": self.finished,
            "axes": [
                {"path": each.path, "unit": each.unit, "spacing": each.spacing, "values": list(each.values)}
                for each in self.axes
            ],
            "points": [
                {
                    "values": list(each.values),
                    "plans_feasible": each.plans_feasible,
                    "infeasible": each.infeasible,
                    "gap": each.gap,
                    **_answer(each.best),
                }
                for each in self.points
            ],
            "notes": list(self.notes),
        }

    def to_frame(self) -> Any:
        """A pandas table, a row a point: the axes, the best plan's answer and fields, and why there is none."""
        import pandas as pd

        rows = []
        for point in self.points:
            answer = _answer(point.best)
            plan = answer.pop("plan") or {}
            axes = {axis.path: value for axis, value in zip(self.axes, point.values, strict=True)}
            fields = {name: plan.get(name) for name in FIELDS}
            rows.append({**axes, **answer, **fields, "infeasible": point.infeasible})
        return pd.DataFrame(rows)


def _answer(best: Candidate | None) -> dict[str, Any]:
    if best is None:
        return dict.fromkeys(("step_time_s", "mfu", "num_gpus", "memory_bytes", "training_days", "plan"))
    answer = best.answer
    return {
        "step_time_s": answer.step_time_s,
        "mfu": answer.mfu,
        "num_gpus": answer.num_gpus,
        "memory_bytes": answer.largest.total,
        "training_days": None if answer.training_time_s is None else answer.training_time_s / 86400,
        "plan": answer.scenario.plan.model_dump(mode="json"),
    }
