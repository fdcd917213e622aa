"""Values of a profile and a stack by path, and how much of their move to measured runs counts for a scenario.

Runs of one source err alike, the less so the less they resemble each other: another sequence length, another
precision, experts, adapters, a larger model, more GPUs. By how much was learnt with the intervals (`apart` in
presets/intervals.yaml).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.specs.profile import OperationParams
from sim.specs.yaml12 import load_yaml

if TYPE_CHECKING:
    from sim.specs.profile import Profile
    from sim.specs.scenario import Scenario
    from sim.specs.stack import StackSpec

TABLE = Path(__file__).parents[1] / "presets" / "intervals.yaml"
BITS = {"fp8": 8, "fp4": 4}
ALONG = {
    "gemm.max_efficiency": ("precisions",),
    "memory.efficiency": ("operations",),
    "nvlink.efficiency": ("operations",),
    "network.shared_efficiency": ("job_efficiency", "dispatch_efficiency", "operations"),
}
"""Values of single precisions, kernels and collectives, which keep their ratio to the value that is moved."""


def start_of(scenario: Scenario, name: str) -> float:
    """The value of a path in a scenario: "stack." of its stack, the rest of its profile."""
    section, field = name.split(".")
    record: StackSpec | Profile = scenario.stack if section == "stack" else getattr(scenario.profile, section)
    value = getattr(record, field)
    if value is None and field == "shared_efficiency":
        value = scenario.profile.network.efficiency
    return float(value)


def with_values(scenario: Scenario, values: Mapping[str, float]) -> Scenario:
    """The scenario with values by path laid over its profile and stack; not validated anew."""
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, field = name.split(".")
        moved = changes.setdefault(section, {})
        moved[field] = value
        for along in ALONG.get(name, ()):
            moved[along] = _scaled(getattr(getattr(scenario.profile, section), along), value / start_of(scenario, name))
    own = changes.pop("stack", {})
    if "kernel_launch_s" in own and scenario.stack.kernel_launch_s:
        # The derived launches keep their ratio.
        ratio = own["kernel_launch_s"] / scenario.stack.kernel_launch_s
        for name in ("backward_launch_s", "collective_launch_s"):
            own.setdefault(name, getattr(scenario.stack, name) * ratio)
    stack = scenario.stack.model_copy(update=own)
    stack.model_post_init(None)  # launches that are as long as a kernel's still follow from it
    sections = {name: getattr(scenario.profile, name).model_copy(update=fields) for name, fields in changes.items()}
    return scenario.model_copy(update={"stack": stack, "profile": scenario.profile.model_copy(update=sections)})


def _scaled(value: Any, factor: float) -> Any:
    """A share, or every share in a mapping of them, times a factor; what is no more than all stays so."""
    if isinstance(value, Mapping):
        return {name: _scaled(each, factor) for name, each in value.items()}
    if isinstance(value, OperationParams):
        shares = {name: getattr(value, name) for name in ("efficiency", "shared_efficiency", "job_efficiency")}
        return value.model_copy(update=_scaled(shares, factor))
    return None if value is None else min(value * factor, max(value, 1.0))


def place_of(scenario: Scenario) -> dict[str, float]:
    """What tells how much a scenario resembles others; `closeness` counts doublings of one more than each number."""
    training, model = scenario.training, scenario.model
    return {
        "model size": model.hidden_size**2 * model.num_layers,
        "sequence length": training.sequence_length,
        "GPUs": scenario.plan.num_gpus,
        "bits": BITS.get(training.peak_precision, 16),
        "experts": int(bool(model.num_experts)),
        "adapters": int(training.adapter_rank > 0),
    }


@cache
def shipped_rates() -> dict[str, float]:
    """Return by what share runs tell less of each other for each doubling of what they differ in, from the table."""
    rates: dict[str, float] = load_yaml(TABLE)["apart"]
    return rates


Places = Sequence[Mapping[str, float]]


def doublings(ones: Places, others: Places, names: Iterable[str]) -> np.ndarray:
    """Doublings between two sets of places, (ones, others, names); none where one of them does not name it."""
    names = list(names)
    sizes = np.log2(1.0 + np.array([[*map(place.get, names)] for place in (*ones, *others)], dtype=float))
    apart: np.ndarray = np.nan_to_num(np.abs(sizes[: len(ones), None] - sizes[None, len(ones) :]))
    return apart


def closeness(ones: Places, others: Places, rates: Mapping[str, float]) -> np.ndarray:
    """What share of the error of a run at one place a run at another has in common with it, (ones, others).

    rates : by what share that falls for each doubling, by name of `place_of`.
    """
    shared: np.ndarray = np.exp(-doublings(ones, others, rates) @ np.array(list(rates.values())))
    return shared


ALL_OF_IT = 0.95
"""Share of a move from which on nothing is said of what is missing."""


def drawn_as_near(scenario: Scenario) -> tuple[Scenario, str]:
    """The scenario with values as the measured runs of its profile draw them, and a sentence if it resembles none.

    Every run pulls the values by its share of what the scenario has in common with it. Values that a scenario states
    itself stay as they are.
    """
    provenance = scenario.profile.provenance
    if not (provenance.moved and provenance.measured):
        return scenario, ""
    alike = closeness([place_of(scenario)], [run.place for run in provenance.measured], shipped_rates())[0]
    values = {}
    for name, (before, after, least, most) in provenance.moved.items():
        if abs(start_of(scenario, name) / after - 1.0) < 1e-3:
            pull = sum(each * run.pulls.get(name, 0.0) for each, run in zip(alike, provenance.measured, strict=True))
            values[name] = min(max(before * exp(pull), least), most)
    said = (
        f"profile {scenario.profile.name!r} was fitted to runs of other models, sequences, precision, experts or "
        f"adapters, so its values move only {alike.max():.0%} of the way for this scenario"
    )
    return with_values(scenario, values), said if alike.max() < ALL_OF_IT else ""
