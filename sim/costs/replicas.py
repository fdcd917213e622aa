"""What a GPU holds, and collectives over those that hold the same: experts have groups of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.costs.collectives import Fabric
from sim.network.placement import Group, data_group, expert_data_group
from sim.specs import ModelSpec, Scenario
from sim.work.operations import Number
from sim.work.stages import Stage, stage_expert_params, stage_params


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one GPU; numbers may be arrays.

    params : all of them; of which `experts` belong to experts.
    """

    params: Number
    experts: Number = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(self.params + other.params, self.experts + other.experts)

    def __mul__(self, times: Number) -> Held:
        return Held(self.params * times, self.experts * times)

    def take(self, places: Any) -> Held:
        """Some places along the last axis."""
        experts = self.experts[..., places] if np.ndim(self.experts) else self.experts
        return Held(self.params[..., places], experts)


@dataclass(frozen=True, slots=True)
class Replicas:
    """GPUs that hold the same, sum its gradients and shard it under ZeRO: of experts, and of everything else."""

    data: Group
    experts: Group


def held_by(stage: Stage, model: ModelSpec, tp: int, ep: int) -> Held:
    """What a stage holds on one GPU."""
    return Held(stage_params(stage, model, tp, ep), stage_expert_params(stage, model, ep))


def replicas_of(scenario: Scenario) -> Replicas:
    """The scenario's groups of replicas."""
    plan, cluster = scenario.plan, scenario.cluster
    return Replicas(data_group(plan, cluster), expert_data_group(plan, cluster))


def summed_over(
    collective: Callable[[Number, Group, Fabric], Number],
    held: Held,
    width: float,
    replicas: Replicas,
    fabric: Fabric,
    pieces: int = 1,
) -> Number:
    """Time of a collective over what a GPU holds, `width` bytes a parameter: experts after everything else.  [s]

    Parameters
    ----------
    pieces : int
        In so many collectives, one after the other.
    """
    rest = (held.params - held.experts) * width
    seconds = pieces * collective(rest / pieces, replicas.data, fabric)
    if np.any(held.experts):
        seconds = seconds + collective(held.experts * width, replicas.experts, fabric) * (np.asarray(held.experts) > 0)
    return seconds


def away(held: Held, replicas: Replicas) -> Number:
    """Of a GPU's parameters, those that a ring over their replicas sends once: (n−1)/n of them."""
    rest = (held.params - held.experts) * (replicas.data.size - 1) / replicas.data.size
    return rest + held.experts * (replicas.experts.size - 1) / replicas.experts.size
