"""What single numbers of the hardware and the profile do to a step, and which run would tell most of what is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.specs import Scenario
from sim.specs.base import Spec, file_name, unit_of
from sim.uncertainty import Doubt, doubt_of, spread_of


class Effect(NamedTuple):
    """What one number of the hardware or the profile does to a step.

    path : as `--set` takes it.
    value : in `unit`, if it has one.
    change : of the step time, as a share, where the number is LESS of it.
    """

    path: str
    value: float
    unit: str
    change: float


LESS = 0.9
"""What every number is multiplied by in turn: less is possible for shares too, of which more than all is not."""


def effects(
    scenario: Scenario, changed: Callable[[str], Scenario], say: Callable[[str], None] = lambda words: None
) -> list[Effect]:
    """Return how every number of the GPU, node, network and profile moves the step time, the largest effect first.

    `changed` makes the scenario of an override ("cluster.gpu_spread=0.02"); `say` is told which number is tried.
    """
    step_time_s = estimate(scenario).step_time_s
    sections = {"cluster": scenario.cluster, **{f"profile.{name}": getattr(scenario.profile, name) for name in _PARTS}}
    found = []
    for section, record in sections.items():
        for path, value in _numbers(record, section):
            names = path.split(".")
            short = ".".join(map(file_name, names))
            unit = next((_UNITS[unit] for name in reversed(names) if (unit := unit_of(name))), "")
            say(f"trying {short}")
            try:
                time_s = estimate(changed(f"{short}={LESS * value!r} {unit}".strip())).step_time_s
            except FlopcastError:
                continue  # a number that may not be less, given the others
            found.append(Effect(short, value, unit, time_s / step_time_s - 1.0))
    return sorted(found, key=lambda each: -abs(each.change))


_UNITS = {"bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "bytes": "B", "flop": "FLOP", "w": "W", "s": "s"}
_PARTS = ("gemm", "attention", "memory", "nvlink", "network", "host")


def _numbers(record: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every positive number below a record that is no count and follows from no other, by its path."""
    if isinstance(record, Spec):
        derived = record._derived()
        record = {name: getattr(record, name) for name in type(record).model_fields if name not in derived}
    if isinstance(record, Mapping):
        for name, value in record.items():
            yield from _numbers(value, f"{path}.{name}")
    elif isinstance(record, float) and record > 0.0:
        yield path, record


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

    Values were drawn to the runs `measured`. Variants of `asked` count: half and twice the micro-batch, tensor and
    pipeline parallelism, GPUs, sequence length, another recomputation, another precision.
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
