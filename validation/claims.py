"""What papers claim, in figures or of one schedule over another: published beside predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from pathlib import Path
from statistics import mean
from textwrap import wrap
from typing import Any

from flopcast_calibration.from_runs import predict
from flopcast_validation.bisection import data_parallel_cut, pipeline_cut
from flopcast_validation.run import published_runs
from flopcast_validation.runs.score import score_all
from sim import Estimate, Scenario, build_scenario, estimate, load_scenario, simulate
from sim.costs.collectives import all_reduce
from sim.errors import FlopcastError
from sim.files import SCENARIOS
from sim.network.placement import Group
from sim.pricing.layouts import cost_model
from sim.reliability.storing import storing_of
from sim.report.terminal import grouped
from sim.specs.yaml12 import load_yaml
from sim.traffic.exchanges import step_collectives

TABLES = Path(__file__).parent / "published" / "claims"
WITHIN = 0.1
"""How far off an answer may be where a claim says nothing."""
WITHIN_BY_TABLE = {"mechanisms": 0.2}
"""How far off it may be in tables that allow another share."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, and what flopcast answers.

    published : the least and the most that the paper states, in `unit`; the same number where it states one.
    predicted : in `unit`; nan where no plan can be run.
    within : how far off these the answer may be: relative, or absolute where what is published is zero.
    short : why it is further off all the same; empty where it is not.
    printed : as the paper prints it, where that is no number or range.
    answers : the estimates that the answer is made of.
    """

    paper: str
    title: str
    where: str
    unit: str
    published: tuple[float, float]
    predicted: float
    within: float
    short: str = ""
    note: str = ""
    printed: str = ""
    answers: tuple[Estimate, ...] = ()

    @property
    def off(self) -> float:
        """Predicted over the nearest published value − 1; where that is zero, what is predicted."""
        nearest = min(max(self.predicted, self.published[0]), self.published[1])
        return self.predicted / nearest - 1.0 if nearest else self.predicted

    @property
    def holds(self) -> bool:
        """The answer lies within what the claim allows, and not the other way round."""
        return abs(self.off) <= self.within and not self.turned

    @property
    def turned(self) -> bool:
        """The paper says faster where flopcast says slower, or the other way round."""
        return self.unit == "times" and all((value - 1.0) * (self.predicted - 1.0) < 0.0 for value in self.published)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("answers", "printed")}
        return {**fields, "off": self.off, "holds": self.holds, "turned": self.turned}


def claims(table: str = "seeds") -> Iterator[Claim]:
    """Every claim of a shipped table, asked: `seeds`, `schedules` or `mechanisms`."""
    for paper in load_yaml(TABLES / f"{table}.yaml")["papers"]:
        for entry in paper["claims"]:
            predicted, *answers = _asked(entry)
            stated = entry["published"] if isinstance(entry["published"], list) else [entry["published"]] * 2
            yield Claim(
                paper["title"],
                entry["title"],
                entry.get("where", ""),
                entry.get("unit", "times"),
                (float(stated[0]), float(stated[1])),
                predicted,
                float(entry.get("within", WITHIN_BY_TABLE.get(table, WITHIN))),
                **{name: entry.get(name, "") for name in ("short", "note", "printed")},
                answers=tuple(answers),
            )


def _asked(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """The answer to a claim, and the estimates that it is made of."""
    if "faster" in entry:
        slower, faster = (_fastest(entry, entry[side]) for side in ("slower", "faster"))
        return (slower.step_time_s / faster.step_time_s, slower, faster) if slower and faster else (nan,)
    asks = entry["asks"]
    if asks["of"] in FUNCTIONS:
        return (FUNCTIONS[asks["of"]](),)
    pairs = [(asks[base], asks.get(changes, {})) for base, changes in _SIDES.items() if base in asks]
    answers = [estimate(_scenario(*pair)) for pair in pairs]
    if asks.get("contention"):
        return simulate(answers[0].scenario, contention=True).mean_s, *answers
    value, over = (*(_value(asks["of"], answer) for answer in answers), 1.0)[:2]
    return (value / over * float(asks.get("times", 1.0)) + float(asks.get("plus", 0.0)), *answers)


_SIDES = {"base": "changes", "over": "over_changes"}
"""What is asked of, and over what it stands if over anything, each with its changes."""


def _fastest(claim: Mapping[str, Any], side: Mapping[str, list[Any]]) -> Estimate | None:
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


def _scenario(base: Mapping[str, Any], changes: Mapping[str, Any] | list[Any]) -> Scenario:
    """A base, or a shipped file, with fields laid over it, or whole sections; several sets of changes in a row."""
    changes = _flat(changes)
    if "file" in base:
        return load_scenario(SCENARIOS / base["file"], [f"{path}={value}" for path, value in changes.items()])
    sections = {name: value for name, value in changes.items() if "." not in name}
    fields = [f"{path}={value}" for path, value in changes.items() if "." in path]
    return build_scenario({**base, **sections}, fields, "a claim's scenario")


def _flat(changes: Mapping[str, Any] | list[Any]) -> dict[str, Any]:
    """Changes as one mapping, a later one before an earlier one."""
    if isinstance(changes, Mapping):
        return dict(changes)
    found: dict[str, Any] = {}
    for each in changes:
        found |= _flat(each)
    return found


def _value(of: str, answer: Estimate) -> float:
    """What is asked of an estimate: one of VALUES, or `seconds of` or `share of` a part of its breakdown."""
    if of in VALUES:
        return VALUES[of](answer)
    measure, _, cause = of.partition(" of ")
    parts = {"seconds": answer.breakdown.seconds, "share": answer.breakdown.shares()}[measure]
    return float(parts[cause])


def _gathered(answer: Estimate) -> float:
    """Weights that a GPU gathers in a step. [bytes]"""
    found = step_collectives(answer.scenario)
    return sum(each.count * each.nbytes for each in found if each.name == "gather weights")


def _bus_bandwidth(answer: Estimate) -> float:
    """Bus bandwidth of an all-reduce of 1 GiB over the 8 GPUs of a node. [bytes/s]"""
    return 2 * 7 / 8 * 2.0**30 / float(all_reduce(2.0**30, Group(8, 8), cost_model(answer.scenario).fabric))


VALUES: dict[str, Callable[[Estimate], float]] = {
    "petaflops": lambda answer: answer.hardware_flop_per_s_per_gpu * answer.num_gpus / 1e15,
    "tflops": lambda answer: answer.hardware_flop_per_s_per_gpu / 1e12,
    "speed": lambda answer: 1.0 / answer.step_time_s,
    "tokens_per_gpu": lambda answer: answer.tokens_per_s / answer.num_gpus,
    "days": lambda answer: answer.scenario.training.tokens / answer.tokens_per_s / 86400.0,
    "step_s": lambda answer: answer.step_time_s,
    "gradients_gb": lambda answer: max(use.gradients for use in answer.memory) / 1e9,
    "gathered_gb": lambda answer: _gathered(answer) / 1e9,
    "bus_gb_per_s": lambda answer: _bus_bandwidth(answer) / 1e9,
    "pipeline_cut_gb_per_s": lambda answer: pipeline_cut(answer.scenario).bytes_per_s / 1e9,
    "data_cut_tb_per_s": lambda answer: data_parallel_cut(answer.scenario).bytes_per_s / 1e12,
    "checkpoint_tb": lambda answer: storing_of(answer.scenario).checkpoint_bytes / 1e12,
    "save_s": lambda answer: storing_of(answer.scenario).write_s,
    "read_s": lambda answer: storing_of(answer.scenario).loads["shares"].read_s,
}
"""What may be asked of an estimate."""


def _table_1() -> float:
    """Mean error of Narayanan et al. 2021's Table 1. [%]"""
    found = score_all(published_runs(tables=("megatron-2021-table-1",)))
    return 100.0 * mean(abs(item.error) for item in found if item.error is not None)


FIGURE_17 = tuple(2**power for power in range(9))
"""Batches that Narayanan et al. 2021 tried with recomputation and without."""


def _sequences_per_s(recompute: str) -> dict[int, float]:
    """Sequences a second of those batches of Figure 17 that fit."""
    base = load_yaml(TABLES / "seeds.yaml")["bases"]["145b"]
    asked = ({"plan.recompute": recompute, "training.global_batch_size": batch} for batch in FIGURE_17)
    answers = [estimate(_scenario(base, changes)) for changes in asked]
    return {batch: batch / each.step_time_s for batch, each in zip(FIGURE_17, answers, strict=True) if each.fits}


def _recompute_loss() -> float:
    """Throughput that recomputation costs at the batches that fit without it, at most. [%]"""
    again, kept = _sequences_per_s("full"), _sequences_per_s("none")
    return max(100.0 * (1.0 - again[batch] / kept[batch]) for batch in kept)


def _recompute_gain() -> float:
    """Best throughput with recomputation over the best that fits without it."""
    return max(_sequences_per_s("full").values()) / max(_sequences_per_s("none").values())


FUNCTIONS = {"table_1": _table_1, "recompute_loss": _recompute_loss, "recompute_gain": _recompute_gain}
"""What no single scenario answers."""


ZERO_BUBBLE = "Qi et al. 2023, arXiv:2401.10241, table of schedules"


def zero_bubble_rows() -> list[Claim]:
    """Samples a second and GPU of the rows of arXiv:2401.10241's table that ship, by model and batch."""
    rows = []
    for run in published_runs(tables=("zero-bubble",)):
        answer = predict(run)
        batch, schedule = answer.scenario.training.global_batch_size, answer.scenario.plan.schedule
        share = batch / answer.num_gpus
        measured = share / run.step_time_s(answer.scenario)
        title = f"{answer.params / 1e9:.1f}B, batch {batch}, {schedule}"
        ours = share / answer.step_time_s
        rows.append(Claim(ZERO_BUBBLE, title, "", "samples/s", (measured, measured), ours, WITHIN, answers=(answer,)))
    return sorted(rows, key=lambda row: (row.answers[0].params, *_group(row)[1:], row.published))


def _group(row: Claim) -> tuple[str, int]:
    """Model and batch of a row."""
    scenario = row.answers[0].scenario
    return scenario.model.name, scenario.training.global_batch_size


def out_of_order(rows: Sequence[Claim], least: float = 0.03) -> int:
    """Pairs of schedules, measured more than `least` apart on one model and batch, that are predicted the other way."""
    groups = grouped((_group(row), row) for row in rows)
    return sum(
        one.published[0] * (1 + least) < other.published[0] and one.predicted > other.predicted
        for group in groups.values()
        for one in group
        for other in group
    )


def schedules_report() -> Iterator[str]:
    """What schedules gain over each other, and zero bubble's table of them."""
    rows = zero_bubble_rows()
    yield from report([*claims("schedules"), *rows])
    mean = sum(abs(row.off) for row in rows) / len(rows)
    yield f"zero bubble's table: {mean:.1%} off on average; {out_of_order(rows)} pairs of schedules in the wrong order"


def report(found: Sequence[Claim], width: int = 80) -> Iterator[str]:
    """Claims as a table of text, and below it why some fall short."""
    paper, room = "", max(20, width - 45)
    reasons = list(dict.fromkeys(claim.short for claim in found if claim.short))
    for claim in found:
        if claim.paper != paper:
            paper = claim.paper
            yield from ("", *wrap(paper, width), f"  {'':{room}} {'published':>10}   ours   off")
        off = f"{claim.off:+.0%}" if claim.published[1] else ""
        mark = f"[{reasons.index(claim.short) + 1}]" if claim.short else ""
        title, *rest = wrap(claim.title, room)
        stated = claim.printed or "-".join(f"{value:.4g}" for value in dict.fromkeys(claim.published))
        numbers = f"{stated:>10} {claim.predicted:6.3g} {off:>5}"
        yield f"  {title:{room}} {numbers} {claim.unit:13} {mark}".rstrip()
        yield from (f"    {line}" for line in rest)
        yield from wrap(claim.note, width, initial_indent="    ", subsequent_indent="    ")
    yield ""
    for number, words in enumerate(reasons, 1):
        yield from wrap(f"[{number}] {words}", width, subsequent_indent="    ")
    held, turned = (sum(getattr(claim, name) for claim in found) for name in ("holds", "turned"))
    yield ""
    others = f"; of the others {turned} come out the other way round" if held < len(found) else ""
    yield f"{held} of {len(found)} claims hold{others}"
