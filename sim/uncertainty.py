"""A 90 % interval around a step time, from how far predictions were from published runs of the same kind.

Conformal over lineages (framework and organisation): the outer twentieths of the log errors, a lineage of many runs
counting as the square root of their number, since what differs between lineages is what a user's own run differs by.
The two sides differ, since what is not known (a stranger's network, host and build) costs time more often than it
saves some. A kind of few lineages is drawn to the broader one. Of frameworks that are not known the errors are those of
known ones taken for unknown. The table is written by `flopcast validate --runs FILE --update-intervals`.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from math import exp, hypot, log
from pathlib import Path
from typing import Any, NamedTuple

from sim.specs import Scenario, StackSpec
from sim.specs.yaml12 import load_yaml

TABLE = Path(__file__).parent / "presets" / "intervals.yaml"
UNKNOWN, RELATIVE, MEASURED = "pytorch", "another framework", "this very run measured"
"""The framework that stands for unknown ones, the name of a stack that stands for a framework without runs, and the
kind of what was itself measured."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_yaml(TABLE)
    return table


def is_unknown(stack: StackSpec) -> bool:
    """Whether nothing but its time is known of the framework, or no run of it: another one's stack stands for it."""
    return stack.framework == UNKNOWN or stack.name == RELATIVE


def recipe_of(scenario: Scenario) -> str:
    """Precision, and whether there are experts: "16-bit", "fp8 experts"."""
    peak = scenario.training.peak_precision
    precision = peak if peak in ("fp8", "fp4") else "16-bit"
    return f"{precision} experts" if scenario.model.num_experts else precision


def measured_run(scenario: Scenario) -> str:
    """What a profile keeps of a measured run that it was drawn to."""
    return f"{scenario.model.name}, {recipe_of(scenario)}"


def fingerprint_of(scenario: Scenario) -> str:
    """What tells a scenario from others, whatever profile and stack it is asked with."""
    parts = (scenario.model, scenario.cluster, scenario.plan, scenario.training)
    return sha256("".join(part.model_dump_json() for part in parts).encode()).hexdigest()[:12]


def kind_of(scenario: Scenario) -> tuple[str, ...]:
    """What the errors depend on, from the most to the least particular.

    Drawn to measured runs: how many, this very one, of the same model, of the same precision. Of a known framework GPU
    and stack, GPU and sharding, GPU, precision; of an unknown one GPU and precision, then precision: there the
    framework decides, and how far known ones come out when they are taken for unknown.
    """
    recipe, measured = recipe_of(scenario), scenario.profile.provenance
    if not measured.measured_runs:
        return _unmeasured_kinds(scenario)
    count = "three runs" if measured.measured_runs >= 3 else "one run"
    whole = f"{'unknown' if is_unknown(scenario.stack) else 'known'} framework, after {count}"
    if fingerprint_of(scenario) in measured.measured_scenarios:
        return f"{MEASURED}, {recipe}", MEASURED
    if all(run.rpartition(", ")[2] != recipe for run in measured.measured_on):
        return f"{whole} of other precision or kind", whole
    same_model = (f"{whole} of this model, {recipe}",) if measured_run(scenario) in measured.measured_on else ()
    return *same_model, f"{whole}, {recipe}", whole


def _unmeasured_kinds(scenario: Scenario) -> tuple[str, ...]:
    family, recipe = scenario.profile.gpu.lower(), recipe_of(scenario)
    if scenario.profile.provenance.of_datasheet:
        return f"GPU known by its datasheet, {recipe}", "GPU known by its datasheet"
    if is_unknown(scenario.stack):
        return _unknown_kinds(scenario)
    sharded = "fsdp" if scenario.plan.zero_stage == 3 else "pipeline or tensor"
    return (
        f"{family}, {scenario.stack.name}, {sharded}, {recipe}",
        f"{family}, {sharded}, {recipe}",
        f"{family}, {recipe}",
        f"{recipe}",
    )


def interval_factors(scenario: Scenario, off_range: bool = False) -> tuple[float, float]:
    """Factors on the step time that bound 90 % of left-out runs.

    Parameters
    ----------
    scenario : Scenario
    off_range : bool
        Something was extrapolated beyond what the profile was fitted on.
    """
    record, wider = record_of(scenario), float(_table()["extrapolated"]) if off_range else 1.0
    return exp(-record.low * wider), exp(record.high * wider)


def least_told_apart(*factors: tuple[float, float]) -> float:
    """The least factor between two step times that their intervals allow to tell.

    Errors of the two are taken as independent, so that the half-widths add as squares. What scenarios share errs alike
    in both: of plans on one machine smaller differences can be told than this says.

    Parameters
    ----------
    *factors : (float, float)
        As of `interval_factors`, of each.
    """
    return exp(hypot(*(log(high / low) / 2 for low, high in factors)))


def basis_of(scenario: Scenario, off_range: bool = False) -> str:
    """What a scenario's interval rests on, and what would narrow it, in a sentence or two."""
    record = record_of(scenario)
    if not record.runs:
        return "The interval is a guess: no published run of this kind was predicted."
    runs = f"{record.runs:,} published run{'s' if record.runs != 1 else ''}"
    groups = ("family of GPUs", "families of GPUs") if "datasheet" in record.kind else ("lineage", "lineages")
    lineages = f"{record.lineages} {groups[record.lineages != 1]}"
    said = (
        f"The interval is {exp(-record.low):.2f} to {exp(record.high):.2f} of the step time: so long took nine in ten "
        f"of {runs} of {lineages} of the kind “{record.kind}”{_AS_PREDICTED.get(_sort(record.kind), '')} and, where "
        "these are few, of broader kinds"
    )
    if scenario.profile.provenance.of_datasheet and "datasheet" not in record.kind:
        said += "; nothing else was measured on this GPU"
    narrower = what_would_narrow(scenario)
    if narrower:
        said += f"; {narrower} would narrow it"
    wider = float(_table()["extrapolated"]) - 1.0
    return f"{said}.{f' It is {wider:.0%} wider because something was extrapolated.' if off_range and wider else ''}"


_AS_PREDICTED = {
    "unknown": ", predicted as if their framework were unknown,",
    "datasheet": ", predicted from their GPUs' datasheets,",
}


def _sort(kind: str) -> str:
    return "datasheet" if "datasheet" in kind else "unknown" if kind.startswith("unknown") else ""


GRADES = ("measured here", "like measured runs", "extrapolated", "unknown")
"""How well an answer is known, the best first."""
MANY = 4
"""Lineages from which on runs are called like measured ones: of strangers' runs, on which nothing was set, half are off
by 16 % and more with as many, by 30 to 60 % with fewer."""


def grade_of(scenario: Scenario, off_range: bool = False) -> tuple[str, str]:
    """(how well a scenario's step time is known, of GRADES; the one fact that would raise it; empty: none).

    Measured here: the profile was drawn to runs of this model. Like measured runs: runs of MANY lineages are published
    on this GPU, of this precision, sharded so. Extrapolated: of fewer, or something lies outside what the profile was
    fitted on. Unknown: the framework is, or nothing was measured on the GPU.
    """
    provenance, kinds = scenario.profile.provenance, _unmeasured_kinds(scenario)[:2]
    lineages = max((_first((kind,)).lineages for kind in kinds), default=0)
    if measured_run(scenario) in provenance.measured_on:
        return GRADES[0], ""
    if provenance.of_datasheet:
        return GRADES[3], "measuring this GPU (flopcast calibrate run)"
    if is_unknown(scenario.stack) and not provenance.measured_runs:
        return GRADES[3], "naming the framework (stack.framework)"
    if off_range or (lineages < MANY and not provenance.measured_runs):
        return GRADES[2], "one measured step (flopcast anchor)"
    return GRADES[1], "one measured step (flopcast anchor)"


def what_would_narrow(scenario: Scenario) -> str:
    """What a user can do about the interval's width; empty where nothing is known to help."""
    own = record_of(scenario).width
    provenance, recipe = scenario.profile.provenance, recipe_of(scenario)
    found = []
    if scenario.stack.framework == UNKNOWN and not provenance.measured_runs and not provenance.of_datasheet:
        sharded = "fsdp" if scenario.plan.zero_stage == 3 else "pipeline or tensor"
        known = _first((f"{scenario.profile.gpu.lower()}, {sharded}, {recipe}", recipe))
        if known.width < 0.95 * own:
            found.append("naming a known framework (stack.framework)")
    for count, words in ((1, "a step of your own (flopcast anchor)"), (3, "three runs of your own (flopcast anchor)")):
        measured = after_runs(scenario, count, (measured_run(scenario),))
        if provenance.measured_runs < count and record_of(measured).width < 0.95 * own:
            found.append(words)
            break
    return " or ".join(found)


def after_runs(
    scenario: Scenario, count: int, measured_on: tuple[str, ...], measured_scenarios: tuple[str, ...] = ()
) -> Scenario:
    """The scenario as if its profile had been drawn to so many measured runs."""
    changes = {"measured_runs": count, "measured_on": measured_on, "measured_scenarios": measured_scenarios}
    provenance = scenario.profile.provenance.model_copy(update=changes)
    return scenario.model_copy(update={"profile": scenario.profile.model_copy(update={"provenance": provenance})})


class Record(NamedTuple):
    """Published runs that an interval comes from.

    kind : what they share: GPU, stack, sharding, precision; empty where no run is of any such kind.
    low, high : how far the interval reaches to shorter and to longer steps, as logarithms, none below zero.
    """

    kind: str
    low: float
    high: float
    lineages: int
    runs: int

    @property
    def width(self) -> float:
        """Half of the interval, as a logarithm."""
        return (self.low + self.high) / 2


def record_of(scenario: Scenario) -> Record:
    """The most particular kind of published runs that this scenario is of.

    The wider where neither GPU nor framework is known; the narrower of what it is with and without measured runs of
    one's own, since it is of both kinds.
    """
    provenance = scenario.profile.provenance
    found = _first(_unmeasured_kinds(scenario))
    if provenance.of_datasheet and is_unknown(scenario.stack):
        found = max(found, _first(_unknown_kinds(scenario)), key=_width)
    return min(found, _first(kind_of(scenario)), key=_width) if provenance.measured_runs else found


def _width(record: Record) -> float:
    return record.width


def _first(kinds: tuple[str, ...]) -> Record:
    table = _table()["kinds"]
    for kind in kinds:
        if kind in table:
            found = table[kind]
            low, high = found["reach"]
            return Record(kind, float(low), float(high), int(found["lineages"]), int(found["runs"]))
    low, high = _table()["unknown"]
    return Record("", float(low), float(high), 0, 0)


def _unknown_kinds(scenario: Scenario) -> tuple[str, ...]:
    family, recipe = scenario.profile.gpu.lower(), recipe_of(scenario)
    return f"unknown framework, {family}, {recipe}", f"unknown framework, {recipe}", "unknown framework"
