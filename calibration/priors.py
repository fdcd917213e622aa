"""What is known of a profile's and stack's values before a training run is seen: facts/priors.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import SpecError, nearest
from sim.specs.yaml12 import load_yaml

FILE = Path(__file__).parent / "facts" / "priors.yaml"


class ParameterPrior(NamedTuple):
    """What a value sets, and how far it may lie from where a fit starts.

    part : of a step, whose seconds it sets (`sim.uncertainty.PARTS`).
    power : of the factor on these seconds, by which the value is multiplied.
    lower, upper : bounds.
    """

    part: str
    power: float
    lower: float
    upper: float

    def pulled(self, start: float, size: float) -> float:
        """The value, from where it starts, times a factor given as a logarithm, within the bounds."""
        return min(max(start * exp(min(size, 700.0)), min(self.lower, start)), max(self.upper, start))

    def reached(self, start: float, value: float) -> float:
        """Logarithm of the factor by which the value makes its part longer."""
        return log(value / start) / self.power if start > 0.0 else 0.0


@cache
def priors() -> dict[str, ParameterPrior]:
    """Every parameter by its path: "stack." of a StackSpec, the rest of a Profile."""
    data: dict[str, Any] = load_yaml(FILE)
    return {name: ParameterPrior(**fields) for name, fields in data.items()}


def parameters_named(names: Sequence[str] | None) -> list[str]:
    """These parameters, or all; one that there is not is refused, and the nearest named."""
    known = priors()
    for name in names or ():
        if name not in known:
            raise SpecError(f"unknown parameter {name!r}{nearest(name, known)}")
    return list(names or known)
