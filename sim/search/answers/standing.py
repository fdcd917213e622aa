"""Where one given plan stands among all: its rank, that among plans of its techniques, what better ones save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import InfeasiblePlan
from sim.estimate import Estimate, estimate
from sim.search.answers.among import best_of, causes_apart, confirmed_already
from sim.search.answers.chosen import choose
from sim.search.answers.steps import Step, steps_between
from sim.search.candidate import Candidate
from sim.search.plans.columns import SCHEDULES
from sim.search.result import SearchResult
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
    reason, place = None, result.place_of(scenario)
    if needed > limit:
        try:
            answer.require_fit()
            reason = f"it needs {needed / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that a GPU may use"
        except InfeasiblePlan as error:
            reason = str(error)
    elif place is None:
        reason = _unsearched(result, scenario)
    comparable = answer.num_gpus == best.num_gpus and answer.step_time_s > best.step_time_s
    walk = steps and needed <= limit and comparable
    walked = steps_between(answer, best, limit) if walk else ()
    return Standing(reason, answer, _among(result, scenario, place), causes_apart(result, answer), walked)


def _among(result: SearchResult, scenario: Scenario, place: int | None) -> tuple[Among, ...]:
    own = None if place is None else result.prices.at(np.array([place]))
    fits = own is not None and bool(own.memory_bytes[0] <= result.memory_limit_bytes)
    score = float(result.score(own)[0]) if fits else -np.inf
    named = [{name: getattr(scenario.plan, name) for name in fields} for fields in KINDS.values()]
    everything, *shares = choose(result, [{}, *named], than=score)
    known = confirmed_already(result)
    found = [Among("in all", everything.better + 1 if fits else None, everything.fit, result.best[0])]
    for kind, share in zip(KINDS, shares, strict=True):
        best = best_of(result, share.best, known)
        if best is not None:
            found.append(Among(kind, share.better + 1 if fits else None, share.fit, best))
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
