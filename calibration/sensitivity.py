"""The run whose measurement would tell most of what measured ones leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.specs import Scenario
from sim.uncertainty import Doubt, doubt_of, spread_of


class NextRun(NamedTuple):
    """A run that would tell most of what measured ones leave open.

    changes : fields by path that differ from the scenario's.
    before, after : standard deviation of the asked scenarios' step times, as a logarithm, without and with it.
    """

    changes: dict[str, object]
    before: float
    after: float


def next_run(measured: Sequence[Scenario], asked: Scenario) -> NextRun | None:
    """Return the variant of a scenario that fits and whose measured step time would narrow the others' most.

    Parameters
    ----------
    measured : sequence of Scenario
        Runs that values were drawn to.
    asked : Scenario
        Whose variants count: half and twice the micro-batch, tensor and pipeline parallelism, GPUs, sequence length,
        another recomputation, another precision.
    """
    variants: list[tuple[dict[str, object], Doubt]] = []
    for changes, variant in variants_of(asked):
        try:
            answer = estimate(variant)
        except FlopcastError:
            continue
        if answer.fits:
            variants.append((changes, doubt_of(variant, answer.breakdown.shares())))
    if not variants:
        return None
    known = [doubt_of(scenario, estimate(scenario).breakdown.shares()) for scenario in measured]

    def left(runs: Sequence[Doubt]) -> float:
        """Root of the mean variance of the variants' step times, once runs are known."""
        return float(np.sqrt(np.mean([spread_of(each, runs) ** 2 for _, each in variants])))

    after = [left([*known, each]) for _, each in variants]
    best = int(np.argmin(after))
    return NextRun(variants[best][0], left(known), after[best])


def variants_of(scenario: Scenario) -> list[tuple[dict[str, object], Scenario]]:
    """The scenario's neighbours that can be built, with the fields that differ."""
    plan, training = scenario.plan, scenario.training
    half = max(1, plan.microbatch_size // 2)
    other = {"none": "full"}.get(plan.recompute, "none")
    tries: list[dict[str, object]] = [
        {"plan.microbatch_size": 2 * plan.microbatch_size},
        {"plan.microbatch_size": plan.microbatch_size // 2},
        {"plan.tp": 2 * plan.tp, "plan.dp": plan.dp // 2},
        {"plan.tp": plan.tp // 2, "plan.dp": 2 * plan.dp},
        {"plan.pp": 2 * plan.pp, "plan.dp": plan.dp // 2},
        {"plan.pp": plan.pp // 2, "plan.dp": 2 * plan.dp},
        {"plan.dp": plan.dp // 2, "training.global_batch_size": training.global_batch_size // 2},
        {"plan.dp": 2 * plan.dp, "training.global_batch_size": 2 * training.global_batch_size},
        {"training.sequence_length": 2 * training.sequence_length, "plan.microbatch_size": half},
        {"plan.recompute": other},
    ]  # fmt: skip
    if 2 * plan.tp > scenario.cluster.nvlink_domain_gpus:
        del tries[2]  # nobody splits tensors over the network
    found = []
    for changes in tries:
        if all(value != 0 for value in changes.values()):
            try:
                found.append((changes, _changed(scenario, changes)))
            except FlopcastError:
                continue
    return found


def _changed(scenario: Scenario, changes: dict[str, object]) -> Scenario:
    sections: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        section, _, name = path.partition(".")
        sections.setdefault(section, {})[name] = value
    return scenario.replace(**{name: getattr(scenario, name).replace(**fields) for name, fields in sections.items()})
