"""What one schedule gains over another: the papers' figures beside the simulator's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

from flopcast_calibration.from_runs import predict
from flopcast_validation.run import published_runs
from sim import Estimate, build_scenario, estimate
from sim.errors import FlopcastError
from sim.specs.yaml12 import load_yaml

_CLAIMS = Path(__file__).parent / "published" / "gains" / "schedules.yaml"


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times as fast a schedule is as another, by a paper and by us.

    published : as the paper prints it, often a limit or a range.
    slower, faster : the fastest plan of each that fits; None where none does.
    short : why ours is another; empty where it is not.
    """

    title: str
    source: str
    published: str
    slower: Estimate | None
    faster: Estimate | None
    short: str = ""

    @property
    def ratio(self) -> float | None:
        """Step time of the slower over that of the faster."""
        if self.slower is None or self.faster is None:
            return None
        return self.slower.step_time_s / self.faster.step_time_s


def gains() -> Iterator[Gain]:
    """Every claim of the shipped table."""
    for claim in load_yaml(_CLAIMS)["claims"]:
        found = [_fastest(claim, claim[side]) for side in ("slower", "faster")]
        yield Gain(claim["title"], claim["source"], claim["published"], *found, claim.get("short", ""))


def _fastest(claim: dict[str, Any], side: dict[str, list[Any]]) -> Estimate | None:
    """The fastest plan that fits, of all that are tried.

    Recomputation of a `stage` keeps its input alone, and runs all of its layers again together.
    """
    space = claim["tried"] | side
    answers = []
    for values in product(*space.values()):
        plan = claim["base"].get("plan", {}) | dict(zip(space, values, strict=True))
        scenario = {**claim["base"], "stack": plan.pop("stack", claim["base"].get("stack"))}
        if plan.get("recompute") == "stage":
            plan |= {"recompute": "full", "recompute_num_layers": claim["base"]["model"]["num_layers"] // plan["pp"]}
        if "gpus" in claim:
            plan["dp"] = max(1, claim["gpus"] // (plan.get("tp", 1) * plan["pp"]))
        try:
            answer = estimate(build_scenario({**scenario, "plan": plan}))
        except FlopcastError:  # a plan that breaks a rule is not a candidate
            continue
        if answer.fits:
            answers.append(answer)
    return min(answers, key=lambda answer: answer.step_time_s, default=None)


@dataclass(frozen=True, slots=True)
class ZeroBubbleRow:
    """Samples a second and GPU of one schedule in Qi et al. 2023's table of schedules."""

    model: str
    batch: int
    schedule: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1.0


def zero_bubble_rows() -> list[ZeroBubbleRow]:
    """Every row of arXiv:2401.10241's table that ships with flopcast, by model and batch."""
    rows = []
    for run in published_runs():
        if not run.id.startswith("zero-bubble"):
            continue
        answer = predict(run)
        gpus, batch = answer.num_gpus, answer.scenario.training.global_batch_size
        measured = batch / gpus / run.step_time_s(answer.scenario)
        model = f"{answer.params / 1e9:.1f}B"
        predicted = batch / gpus / answer.step_time_s
        rows.append(ZeroBubbleRow(model, batch, answer.scenario.plan.schedule, measured, predicted))
    return sorted(rows, key=lambda row: (float(row.model[:-1]), row.batch, row.measured))


def out_of_order(rows: list[ZeroBubbleRow], least: float = 0.03) -> int:
    """Pairs of schedules, measured more than `least` apart on one model and batch, that are predicted the other way."""
    groups: dict[tuple[str, int], list[ZeroBubbleRow]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.batch].append(row)
    return sum(
        one.measured * (1 + least) < other.measured and one.predicted > other.predicted
        for group in groups.values()
        for one in group
        for other in group
    )


def report() -> Iterator[str]:
    """Both tables as text."""
    yield "Gains of schedules (times as fast)                                                 published    ours"
    for gain in gains():
        ours = "-" if gain.ratio is None else f"{gain.ratio:.2f}"
        yield f"  {gain.title:76} {gain.published:>13} {ours:>7}"
        yield f"    {gain.source}"
        yield from wrap(gain.short, 96, initial_indent="    ours: ", subsequent_indent="    ")
    rows = zero_bubble_rows()
    yield ""
    yield "Qi et al. 2023, arXiv:2401.10241, table of schedules (samples a second and GPU)"
    yield f"  {'model':8} {'batch':>5} {'schedule':16} {'measured':>9} {'predicted':>9} {'error':>7}"
    for row in rows:
        values = f"{row.measured:9.2f} {row.predicted:9.2f} {row.error:+7.1%}"
        yield f"  {row.model:8} {row.batch:5} {row.schedule:16} {values}"
    mean = sum(abs(row.error) for row in rows) / len(rows)
    yield f"  mean {mean:.1%}; {out_of_order(rows)} pairs of schedules in the wrong order"
