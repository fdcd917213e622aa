"""Figures and claims of the papers that flopcast grew from: published beside predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from sim import Estimate, Scenario, build_scenario, estimate
from sim.specs.yaml12 import load_yaml

if TYPE_CHECKING:
    from sim.reliability.storing import Storing

_CLAIMS = Path(__file__).parent / "published" / "seeds" / "claims.yaml"
WITHIN = 0.1
"""How far off an answer may be where a claim says nothing."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, and what flopcast answers.

    published : the least and the most that the paper states, in `unit`; the same number where it states one.
    predicted : in `unit`.
    within : how far off these the answer may be: relative, or absolute where what is published is zero.
    short : why it is further off all the same; empty where it is not.
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
        """As data."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "off": self.off, "holds": self.holds, "turned": self.turned}


def claims() -> Iterator[Claim]:
    """Every claim of the shipped table, asked."""
    for paper in load_yaml(_CLAIMS)["papers"]:
        for entry in paper["claims"]:
            asks = entry["asks"]
            predicted = FUNCTIONS[asks["function"]]() if "function" in asks else _answer(asks)
            stated = entry["published"] if isinstance(entry["published"], list) else [entry["published"]] * 2
            words = {name: entry.get(name, "") for name in ("short", "note")}
            yield Claim(
                paper["title"],
                *(entry[name] for name in ("title", "where", "unit")),
                (float(stated[0]), float(stated[1])),
                predicted,
                float(entry.get("within", WITHIN)),
                **words,
            )


def _answer(asks: Mapping[str, Any]) -> float:
    """A value of one scenario, or its ratio to that of another."""
    of = VALUES[asks["of"]]
    value = of(estimate(_scenario(asks["base"], asks.get("changes", {}))))
    if "over" in asks:
        value /= of(estimate(_scenario(asks["over"], asks.get("over_changes", {}))))
    return value * float(asks.get("times", 1.0))


def _scenario(base: Mapping[str, Any], changes: Mapping[str, Any] | list[Any]) -> Scenario:
    """A base with fields laid over it, or whole sections; of several sets of changes one after the other."""
    changes = _flat(changes)
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


def _days(answer: Estimate) -> float:
    training = answer.scenario.training
    assert training.tokens is not None
    return training.tokens / answer.tokens_per_s / 86400.0


VALUES: dict[str, Callable[[Estimate], float]] = {
    "petaflops": lambda answer: answer.hardware_flop_per_s_per_gpu * answer.num_gpus / 1e15,
    "tflops": lambda answer: answer.hardware_flop_per_s_per_gpu / 1e12,
    "speed": lambda answer: 1.0 / answer.step_time_s,
    "days": _days,
}
"""What may be asked of an estimate."""


def _table_1() -> float:
    """Mean error of Narayanan et al. 2021's Table 1. [%]"""
    from flopcast_validation.run import published_runs
    from flopcast_validation.runs.score import score_all

    found = score_all([run for run in published_runs() if run.id.startswith("megatron-2021-table-1")])
    errors = [abs(item.error) for item in found if item.error is not None]
    return 100.0 * sum(errors) / len(errors)


def _bisection(name: str, unit: float) -> Callable[[], float]:
    def ask() -> float:
        from flopcast_validation.network_gains import bisection_rows

        return float(bisection_rows()[name][0]) / unit

    return ask


def _stored(of: Callable[[Storing], float]) -> Callable[[], float]:
    """A value of checkpoints of the trillion on Selene."""

    def ask() -> float:
        from sim.reliability.storing import storing_of

        base = load_yaml(_CLAIMS)["bases"]["1t"]
        return of(storing_of(_scenario(base, {})))

    return ask


FIGURE_17 = tuple(2**power for power in range(9))
"""Batches that Narayanan et al. 2021 tried with recomputation and without."""


def _sequences_per_s(recompute: str) -> dict[int, float]:
    """Of Figure 17's batches, those that fit."""
    base = load_yaml(_CLAIMS)["bases"]["145b"]
    found = {}
    for batch in FIGURE_17:
        answer = estimate(_scenario(base, {"plan.recompute": recompute, "training.global_batch_size": batch}))
        if answer.fits:
            found[batch] = batch / answer.step_time_s
    return found


def _recompute_loss() -> float:
    """Throughput that recomputation costs at the batches that fit without it, at most. [%]"""
    again, kept = _sequences_per_s("full"), _sequences_per_s("none")
    return max(100.0 * (1.0 - again[batch] / kept[batch]) for batch in kept)


def _recompute_gain() -> float:
    """Best throughput with recomputation over the best that fits without it."""
    return max(_sequences_per_s("full").values()) / max(_sequences_per_s("none").values())


FUNCTIONS: dict[str, Callable[[], float]] = {
    "table_1": _table_1,
    "pipeline_bisection": _bisection("pipeline sends", 1e9),
    "data_bisection": _bisection("gradient all-reduce", 1e12),
    "checkpoint_bytes": _stored(lambda storing: storing.checkpoint_bytes / 1e12),
    "save_time": _stored(lambda storing: storing.write_s),
    "recompute_loss": _recompute_loss,
    "recompute_gain": _recompute_gain,
    "read_time": _stored(lambda storing: storing.loads["shares"].read_s),
}
"""What no single scenario answers."""


def report(found: list[Claim], width: int = 80) -> Iterator[str]:
    """Claims as a table of text, and below it why some fall short."""
    paper, room = "", max(20, width - 44)
    reasons = list(dict.fromkeys(claim.short for claim in found if claim.short))
    for claim in found:
        if claim.paper != paper:
            paper = claim.paper
            yield from ("", *wrap(paper, width), f"  {'':{room}} published   ours   off")
        off = f"{claim.off:+.0%}" if claim.published[1] else ""
        mark = f"[{reasons.index(claim.short) + 1}]" if claim.short else ""
        title, *rest = wrap(claim.title, room)
        stated = "-".join(f"{value:.4g}" for value in dict.fromkeys(claim.published))
        numbers = f"{stated:>9} {claim.predicted:6.3g} {off:>5}"
        yield f"  {title:{room}} {numbers} {claim.unit:13} {mark}".rstrip()
        yield from (f"    {line}" for line in rest)
        yield from wrap(claim.note, width, initial_indent="    ", subsequent_indent="    ")
    yield ""
    for number, words in enumerate(reasons, 1):
        yield from wrap(f"[{number}] {words}", width, subsequent_indent="    ")
    held, turned = (sum(getattr(claim, name) for claim in found) for name in ("holds", "turned"))
    yield ""
    yield f"{held} of {len(found)} claims hold; of the others {turned} come out the other way round"
