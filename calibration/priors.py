"""What is known of a profile's and stack's values before a training run is seen: facts/priors.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import SpecError, nearest
from sim.specs import Profile, Scenario, StackSpec
from sim.specs.profile import OperationParams
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import shipped_spreads

FILE = Path(__file__).parent / "facts" / "priors.yaml"


class ParameterPrior(NamedTuple):
    """What a value sets, and how far it may lie from where a fit starts.

    part : of a step, whose seconds it sets (`sim.uncertainty.PARTS`).
    lower, upper : bounds.
    """

    part: str
    lower: float
    upper: float

    @property
    def width(self) -> float:
        """Standard deviation of the value's logarithm: that of its part's seconds, shared by the values of the part."""
        sharing = sum(each.part == self.part for each in priors().values())
        return shipped_spreads().parts[self.part] / sqrt(sharing)

    def moved(self, start: float, sds: float) -> float:
        """The value that lies so many standard deviations from where it starts, within the bounds."""
        return min(max(start * exp(sds * self.width), min(self.lower, start)), max(self.upper, start))

    def sds(self, start: float, value: float) -> float:
        """Standard deviations between where the value starts and another."""
        return log(value / start) / self.width if start > 0.0 else 0.0


@cache
def priors() -> dict[str, ParameterPrior]:
    """Every parameter by its path: "stack." of a StackSpec, the rest of a Profile."""
    data: dict[str, Any] = load_yaml(FILE)
    return {name: ParameterPrior(**fields) for name, fields in data.items()}


def parameters_named(names: Sequence[str] | None) -> list[str]:
    """These parameters, or all.

    Raises
    ------
    SpecError
        There is no such parameter; the message names the nearest.
    """
    known = priors()
    for name in names or ():
        if name not in known:
            raise SpecError(f"unknown parameter {name!r}{nearest(name, known)}")
    return list(names or known)


def start_of(scenario: Scenario, name: str) -> float:
    """A parameter's value in a scenario."""
    section, field = name.split(".")
    record: StackSpec | Profile = scenario.stack if section == "stack" else getattr(scenario.profile, section)
    value = getattr(record, field)
    if value is None and field == "shared_efficiency":
        value = scenario.profile.network.efficiency
    return float(value)


ALONG = {
    "gemm.max_efficiency": ("precisions",),
    "memory.efficiency": ("operations",),
    "nvlink.efficiency": ("operations",),
    "network.shared_efficiency": ("job_efficiency", "dispatch_efficiency", "operations"),
}
"""Values of single precisions, kernels and collectives, which keep their ratio to the value that is moved."""


def _scaled(value: Any, factor: float) -> Any:
    """A share, or every share in a mapping of them, times a factor; what is no more than all stays so."""
    if isinstance(value, Mapping):
        return {name: _scaled(each, factor) for name, each in value.items()}
    if isinstance(value, OperationParams):
        shares = {name: getattr(value, name) for name in ("efficiency", "shared_efficiency")}
        return value.model_copy(update=_scaled(shares, factor))
    return None if value is None else min(value * factor, max(value, 1.0))


def with_values(scenario: Scenario, values: dict[str, float]) -> Scenario:
    """The scenario with fitted values laid over its profile and stack; not validated anew."""
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
    sections = {name: getattr(scenario.profile, name).model_copy(update=fields) for name, fields in changes.items()}
    return scenario.model_copy(update={"stack": stack, "profile": scenario.profile.model_copy(update=sections)})
