"""Slow GPUs, slow links and failed nodes as they are asked for: "1.2@rank17", "1.2@gpu139", "0.5@node12.nic3"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

import numpy as np

from sim.arrays import Array
from sim.errors import SpecError
from sim.specs import Scenario


def read_slow_link(text: str) -> tuple[float, str]:
    """(share, link) of "0.5@leaf3"."""
    number, name = _halves(text, "slow link", "0.5@node12.nic3")
    if not 0.0 < number <= 1.0:
        raise SpecError(
            f"slow link {text!r}: {number:g} is not a share of its bandwidth above 0 and up to 1; for one that is lost "
            f"say --link-down {name}"
        )
    return number, name


def _halves(text: str, what: str, example: str) -> tuple[float, str]:
    number, at, name = text.partition("@")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not at or not name or not isfinite(value):
        raise SpecError(f"{what} {text!r}: give a number, @ and where, such as {example}")
    return value, name.strip()


def slow_gpus(scenario: Scenario, stragglers: Sequence[str], gpus: Array) -> Array:
    """How much longer than others every GPU takes: (replicas, pipeline ranks, GPUs of the group).

    A context-parallel rank waits for the others in every layer, as a tensor-parallel one does: one group.
    """
    plan = scenario.plan
    factors = np.ones((plan.dp, plan.pp, plan.cp * plan.tp))
    gpus = gpus.reshape(plan.pp, plan.dp, -1).swapaxes(0, 1)
    for text in stragglers:
        factor, name = _halves(text, "straggler", "1.2@rank17 or 1.2@gpu139")
        if not 1.0 <= factor <= 1e6:
            raise SpecError(
                f"straggler {text!r}: a slow GPU takes 1 or more times as long, not {factor:g}; give such a factor"
            )
        found = re.fullmatch(r"(rank|gpu)(\d+)", name)
        if not found:
            raise SpecError(
                f"straggler {text!r}: say which as rankR (pipeline rank 0 to {plan.pp - 1}) or gpuG (0 to "
                f"{int(gpus.max()):,})"
            )
        number = int(found[2])
        if found[1] == "rank":
            if number >= plan.pp:
                raise SpecError(f"straggler {text!r}: the plan has pipeline ranks 0 to {plan.pp - 1}")
            factors[:, number] *= factor
        else:
            where = gpus == number
            if not where.any():
                raise SpecError(
                    f"straggler {text!r}: the plan does not use that GPU; its {plan.num_gpus:,} are among "
                    f"{int(gpus.min())} to {int(gpus.max()):,}"
                )
            factors[where] *= factor
    return factors


def slowest_replicas(factors: Array) -> Array:
    """Keep one of equal replicas, and drop each that another exceeds everywhere: nobody would ever wait for it."""
    kinds = np.unique(factors, axis=0)
    pace = kinds.max(axis=2)
    kept = [
        place
        for place, each in enumerate(pace)
        if not any(
            (other >= each).all() and ((other > each).any() or rival < place)
            for rival, other in enumerate(pace)
            if rival != place
        )
    ]
    return np.asarray(kinds[kept])
