"""What the times of one transformer layer tell of a GPU: memory efficiency, and interference of compute and NVLink.

A layer's forward is multiplies, memory-bound kernels and collectives one after another; with the multiplies and the
collectives known from their own measurements, the memory-bound rest is identified. In its backward
collectives overlap with compute, which identifies how much of them is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flopcast_calibration.fit.solve import Draw, Fit, Prior, fit_to
from sim.pricing.cells import layer_costs
from sim.specs import Profile, Scenario, build_scenario
from sim.specs.yaml12 import load_yaml
from sim.units import parse

FACTS = Path(__file__).parent / "facts"

LAYER_PRIOR: Prior = {"memory_efficiency": Draw(0.8, 0.1, 0.3, 1.0), "hidden_share": Draw(0.6, 0.3, 0.05, 1.0)}


@dataclass(frozen=True, slots=True)
class LayerPoint:
    """Measured times of one layer of a scenario. [s]"""

    scenario: Scenario
    forward_s: float
    backward_s: float


def read_layer_points(path: Path) -> list[LayerPoint]:
    """One-layer times from a file of cited facts."""
    facts: dict[str, Any] = load_yaml(path)
    base = facts["scenario"]
    points = []
    for row in facts["rows"]:
        plan = {
            "tp": base["tp"],
            "microbatch_size": base["microbatch_size"],
            "recompute": row["recompute"],
            "sequence_parallel": row["sequence_parallel"],
        }
        description = {
            **{name: base[name] for name in ("model", "cluster", "stack", "profile")},
            "plan": plan,
            "training": {"global_batch_size": base["microbatch_size"], "sequence_length": 2048, "precision": "fp16"},
        }
        scenario = build_scenario(description, where=path.stem)
        points.append(LayerPoint(scenario, parse(row["forward"], "s"), parse(row["backward"], "s")))
    return points


def layer_times(scenario: Scenario) -> tuple[float, float]:
    """Forward and backward of one layer. [s]"""
    forward, backward = layer_costs(scenario).passes[:2]
    return sum(forward.values()), sum(backward.values())


def fit_layer(points: Sequence[LayerPoint]) -> Fit:
    """Memory efficiency and NVLink's hidden share from one-layer times, all else as in the points' own profile."""
    measured = np.array([time for point in points for time in (point.forward_s, point.backward_s)])

    def predict(params: dict[str, float]) -> np.ndarray:
        times = []
        for point in points:
            profile = with_layer_values(point.scenario.profile, params)
            times.extend(layer_times(point.scenario.model_copy(update={"profile": profile})))
        return np.array(times)

    # Ten averaged kernel times, printed to two or three digits.
    return fit_to(predict, measured, LAYER_PRIOR, noise=0.01)


def with_layer_values(profile: Profile, params: dict[str, float]) -> Profile:
    """The profile with fitted values laid over it."""
    return profile.model_copy(
        update={
            "memory": profile.memory.model_copy(update={"efficiency": params["memory_efficiency"]}),
            "nvlink": profile.nvlink.model_copy(update={"hidden_share": params["hidden_share"]}),
        }
    )
