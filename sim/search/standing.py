"""Where one given plan stands among all: its rank, that among plans of its techniques, what better ones save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan
from sim.estimate import Estimate, estimate
from sim.search.among import best_among, causes_apart, confirmed_already, rank_among, with_fields
from sim.search.search import Candidate, SearchResult
from sim.search.space import SCHEDULES
from sim.search.steps import Step, steps_between
from sim.specs import Scenario

KINDS: dict[str, tuple[str, ...]] = {
    "of the same techniques (recomputation, sequence parallelism, ZeRO)": (
        "recompute",
        "sequence_parallel",
        "zero_stage",
    ),
    "of the same techniques and schedule": ("recompute", "sequence_parallel", "zero_stage", "schedule"),
}
"""Plans that a plan is fairly compared with: they differ in layout, micro-batch and chunks, not in what was invented
later."""


@dataclass(frozen=True, slots=True)
class Among:
    """A plan among some plans.

    rank : 1 for the best of those that fit, by the closed form; None where the plan is not among them.
    of : how many fit.
    best : of them, on the exact engine.
    """

    kind: str
    rank: int | None
    of: int
    best: Candidate


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a plan stands.

    ruled_out : why it does not fit or is not in the search's space; None where it is ranked.
    answer : on the exact engine.
    among : all plans first, then those of KINDS.
    losses : seconds by cause that it takes more than the best, largest first. [s]
    steps : from it to the best, a technique at a time.
    """

    ruled_out: str | None
    answer: Estimate
    among: tuple[Among, ...]
    losses: dict[str, float]
    steps: tuple[Step, ...]


def standing_of(result: SearchResult, scenario: Scenario, *, steps: bool = True) -> Standing:
    """Hold one plan against the best, and rank it.

    Parameters
    ----------
    result : SearchResult
    scenario : Scenario
        The search's, with any plan that keeps the rules.
    steps : bool
        Also walk from it to the best plan, which takes some twenty estimates.

    Raises
    ------
    FlopcastError
        The plan breaks a rule.
    """
    answer = estimate(scenario)
    best = result.best[0].answer
    needed, limit = answer.largest.total, result.memory_limit_bytes
    reason = None
    if needed > limit:
        try:
            answer.require_fit()
            reason = f"it needs {needed / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that a GPU may use"
        except InfeasiblePlan as error:
            reason = str(error)
    elif result.place_of(scenario) is None:
        reason = _unsearched(result, scenario)
    comparable = answer.num_gpus == best.num_gpus and answer.step_time_s > best.step_time_s
    walk = steps and needed <= limit and comparable
    walked = steps_between(answer, best, limit) if walk else ()
    return Standing(reason, answer, _among(result, scenario), causes_apart(result, answer), walked)


def _among(result: SearchResult, scenario: Scenario) -> tuple[Among, ...]:
    place, ranking, known = result.place_of(scenario), result.ranking(), confirmed_already(result)
    fits = place is not None and result.memory_bytes[place] <= result.memory_limit_bytes

    def rank(chosen: np.ndarray) -> int | None:
        return rank_among(result, place, chosen) if fits and place is not None else None

    found = [Among("in all", rank(ranking), len(ranking), result.best[0])]
    for kind, fields in KINDS.items():
        named: dict[str, Any] = {name: getattr(scenario.plan, name) for name in fields}
        which = with_fields(result, named)
        best = best_among(result, which, known, ranking)
        if best is not None:
            chosen = ranking[which[ranking]]
            found.append(Among(kind, rank(chosen), len(chosen), best))
    return tuple(found)


def _unsearched(result: SearchResult, scenario: Scenario) -> str:
    """Why a plan that can be run has no rank."""
    plan, sizes = scenario.plan, result.space.columns.num_gpus
    if plan.schedule not in SCHEDULES:
        return (
            f"schedule {plan.schedule} is not among those that are priced one by one ({', '.join(SCHEDULES)}); "
            f"--schedules {plan.schedule} finds its best plan"
        )
    if not (sizes.min() <= plan.num_gpus <= sizes.max()):
        return f"it uses {plan.num_gpus:,} GPUs, the search {sizes.min():,} to {sizes.max():,}"
    experts = np.unique(result.space.columns.ep).tolist()
    if plan.ep not in experts:
        return f"it deals the experts over {plan.ep} GPUs, the search over {', '.join(map(str, experts))} (--ep)"
    if plan.uneven_layers:
        return "it deals layers unevenly, which is not searched"
    if plan.recompute == "per_op":
        return "recompute per_op is not in the search"
    return "it is outside the searched space (context-parallel degrees and overlaps are searched where asked for)"
