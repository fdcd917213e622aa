"""Megatron's rules of thumb, compared with a search; and plans named by fields that no priced plan has.

The three takeaways of Narayanan et al. 2021 (arXiv:2104.04473), sections 3.2 to 3.4: tensor parallelism up to the
servers' size and pipelines beyond; no more model parallelism than the memory asks for, data parallelism for the rest;
the micro-batch b that makes (b'/b + p − 1)(t_f(b) + t_b(b)) smallest, b' = B/d (equation 1).

Named fields that no priced plan has are put on the best plans that agree with the rest; what must follow (dp, chunks of
a schedule, sequence parallelism without tensor parallelism) follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from sim.engines.program import priced_order
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.search.candidate import Candidate, facts_of
from sim.search.comparison import best_of, loss_of, losses_by_cause
from sim.search.plans.layouts import CHOICES, RECOMPUTES, SCHEDULES, completed_plan, expert_degrees
from sim.search.plans.space import Fields
from sim.search.result import SearchResult
from sim.specs import Scenario

FASTEST, LEANER = 6, 18
"""Plans that the named fields are put on: the fastest, and of those that none beats in time and memory, as the fields
may need more memory."""


def try_unpriced(result: SearchResult, named: Fields) -> tuple[Estimate | None, str, int]:
    """(the fastest plan with these fields that can be run, else why none can, how many were tried)."""
    answers: list[Estimate] = []
    reasons: dict[str, None] = {}
    tried = set()
    for place in _bases(result, named):
        base = result.scenario_at(place)
        try:
            scenario = _completed(base, named)
            if scenario.plan in tried:
                continue
            tried.add(scenario.plan)
            answer = estimate(scenario).require_fit()
        except FlopcastError as error:
            # A mistake without the name of the record that found it.
            reasons[str(error).removeprefix("Scenario: ").removeprefix("ParallelPlan: ").removeprefix("plan: ")] = None
            continue
        if answer.largest.total <= result.memory_limit_bytes:
            answers.append(answer)
        else:
            reasons[f"it needs {answer.largest.total / 1e9:.1f} GB, more than the memory limit"] = None
    if answers:
        return min(answers, key=lambda answer: answer.step_time_s), "", len(tried)
    absent = _absent(result, named)
    first = next(iter(reasons), "no plan is like it")
    return None, f"{absent}: {first}" if absent else first, len(tried)


def _bases(result: SearchResult, named: Fields) -> list[int]:
    """Places of the best plans that have as many of the fields as there are, fast ones and lean ones."""
    shared: dict[str, Any] = {}
    for name, value in named.items():
        if _exists(result, {**shared, name: value}):
            shared[name] = value
    chosen = result.select(shared, FASTEST)
    if not chosen.fit:
        return [] if chosen.leanest is None else [chosen.leanest]
    front = result.pareto(shared)
    spread = np.unique(np.linspace(0, len(front) - 1, min(LEANER, len(front))).round().astype(int))
    return list(dict.fromkeys([*chosen.best.tolist(), *front[spread].tolist()]))


def _completed(base: Scenario, named: Fields) -> Scenario:
    """The base with these fields, and with what they force on those that nothing was said of."""
    return base.replace(plan=completed_plan(base.plan, base.model.num_layers, named))


def _exists(result: SearchResult, fields: Fields) -> bool:
    """Whether a plan with these fields was priced."""
    return result.select(fields, 1).priced > 0


def _absent(result: SearchResult, named: Fields) -> str:
    """Which of the fields, alone or together, no priced plan has; empty where that says nothing about rules."""
    for name, value in named.items():
        if _exists(result, {name: value}):
            continue
        # Degrees that deal the experts evenly may be missing because --ep named others.
        even = (value,) if value not in expert_degrees(result.space.scenario) else ()
        searched = {"cp": (), "ep": even, "schedule": SCHEDULES, "recompute": RECOMPUTES}.get(name, (value,))
        if value not in searched:
            return ""  # which is no rule against it
        there = result.values([name])[name]
        return f"no plan has {name} {value} (the rules leave {', '.join(map(str, there))})"
    for many in range(2, len(named) + 1):
        for names in combinations(named, many):
            if not _exists(result, {name: named[name] for name in names}):
                return f"no plan has {' and '.join(f'{name} {named[name]}' for name in names)} at once"
    return ""


TECHNIQUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "of 2021 (full recomputation, no sequence parallelism, no ZeRO)": {
        "recompute": ("full",),
        "recompute_method": ("uniform",),
        "sequence_parallel": (False,),
        "zero_stage": (0,),
    },
    "of Megatron since (any recomputation, sequence parallelism, ZeRO 1)": {"zero_stage": (0, 1)},
}
"""Techniques beside the rules: those of the paper's runs, and those that Megatron brought later. The rules say nothing
about sharded weights (ZeRO 3), with which nearly any model fits on one GPU."""
HOST: dict[str, tuple[Any, ...]] = {"optimizer_offload": (0.0,), "offloaded_layers": (0,)}
"""Fields that keep states off the host: the rules know no host memory."""


@dataclass(frozen=True, slots=True)
class RulesPlan:
    """What the rules choose where they may use some techniques.

    techniques : in words.
    best : the best plan that obeys the rules; None where nothing they allow fits.
    rank : of it among all plans that fit.
    loss : of it against the best of all, as a share, by the objective.
    causes : seconds by cause that it takes more, largest first. [s]
    """

    techniques: str
    best: Candidate | None
    rank: int | None = None
    loss: float | None = None
    causes: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """Whether the best plan of all obeys a rule.

    rule : in words.
    chosen : what the rule would choose for it.
    found : what the plan has.
    """

    rule: str
    chosen: str
    found: str
    obeyed: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules' plans and the checks of the best plan."""

    plans: tuple[RulesPlan, ...]
    checks: tuple[RuleCheck, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "plans": [
                {
                    "techniques": each.techniques,
                    **facts_of(each.best, "plan", "step_time_s"),
                    "rank": each.rank,
                    "loss": each.loss,
                    "losses_s": dict(each.causes or {}),
                }
                for each in self.plans
            ],
            "checks": [asdict(each) for each in self.checks],
        }


def megatron_rules(result: SearchResult) -> Rules:
    """Apply the rules with the techniques of their time and with all, and check the best plan against each.

    What the rules leave open (schedule, chunks, and with all techniques recomputation, sequence parallelism and ZeRO)
    is chosen as the search does. They speak of a given machine, and of neither cp nor ep: those of the best are kept.
    """
    best = result.best[0].scenario.plan
    plans = []
    for words, techniques in TECHNIQUES.items():
        fields = _obeying(result, {"cp": 1, "ep": best.ep, "num_gpus": best.num_gpus, **HOST, **techniques})
        found = None
        if fields is not None:
            found = best_of(result, fields)[1]
        plans.append(RulesPlan(words, None) if found is None else _against_best(result, words, found))
    return Rules(tuple(plans), _checks(result))


def _against_best(result: SearchResult, words: str, found: Candidate) -> RulesPlan:
    answer = found.answer
    return RulesPlan(
        words, found, result.rank_by_price(found), loss_of(result, answer), losses_by_cause(result, answer)
    )


def _obeying(result: SearchResult, allowed: Fields) -> Fields | None:
    """These fields with those that the rules fix among such plans; None where nothing they allow fits."""
    degrees = _model_parallel(result, allowed)
    if degrees is None:
        return None
    here = {**allowed, "tp": degrees[0], "pp": degrees[1]}
    # The micro-batch follows from times that recomputation and the like change: those of the best such plan.
    chosen = result.select(here, 1)
    scenario = result.scenario_at(int(chosen.best[0]))
    alike = {name: getattr(scenario.plan, name) for name in CHOICES}
    size = best_microbatch(scenario, _sizes_that_fit(result, {**here, **alike}))
    return {**here, "dp": scenario.plan.dp, "microbatch_size": size}


def _widest(result: SearchResult, allowed: Fields) -> int:
    """The largest tensor-parallel degree within NVLink's reach."""
    reach = result.space.scenario.cluster.nvlink_domain_gpus
    return max((tp for tp in result.values(["tp"], allowed)["tp"] if tp <= reach), default=1)


def _model_parallel(result: SearchResult, allowed: Fields) -> tuple[int, int] | None:
    """(tp, pp) of the least product that fits, tensor parallelism grown first and never beyond NVLink's reach."""
    widest = _widest(result, allowed)
    legal = [(tp, 1) for tp in result.values(["tp"], {**allowed, "pp": 1}, fitting=True)["tp"] if tp <= widest]
    legal += [(widest, pp) for pp in result.values(["pp"], {**allowed, "tp": widest}, fitting=True)["pp"]]
    return min(legal, key=lambda pair: (pair[0] * pair[1], -pair[0]), default=None)


def _sizes_that_fit(result: SearchResult, fields: Fields) -> list[int]:
    """Micro-batches of the plans with some fields that fit in memory.  [sequences]"""
    return result.values(["microbatch_size"], fields, fitting=True)["microbatch_size"]


def best_microbatch(scenario: Scenario, sizes: list[int]) -> int:
    """The micro-batch that makes the paper's equation 1 smallest, t_f + t_b of the slowest pipeline rank.

    scenario : its plan says everything but the micro-batch.
    sizes : to choose from: divisors of the sequences of a replica.
    """
    plan = scenario.plan
    own = scenario.training.global_batch_size // plan.dp

    def seconds(size: int) -> float:
        one = plan.replace(microbatch_size=size, schedule="1f1b", num_chunks=1)
        _, costs = priced_order(scenario.replace(plan=one))
        return (own / size + plan.pp - 1) * float((costs.forward_s + costs.backward_s).max())

    return min(sizes, key=seconds)


def _checks(result: SearchResult) -> tuple[RuleCheck, ...]:
    """The best plan against each rule; what a rule does not speak of is left as the plan has it."""
    scenario = result.best[0].scenario
    plan, reach = scenario.plan, scenario.cluster.nvlink_domain_gpus
    alike = {name: getattr(plan, name) for name in ("cp", "ep", *CHOICES, "num_gpus")}
    widest = _widest(result, alike)
    degrees = _model_parallel(result, alike)
    least = None if degrees is None else degrees[0] * degrees[1]
    sizes = _sizes_that_fit(result, {**alike, **{name: getattr(plan, name) for name in ("tp", "pp", "dp")}})
    size = best_microbatch(scenario, sizes) if sizes else None  # none where the best plan's schedule is not priced
    parallel = plan.tp * plan.pp
    return (
        RuleCheck(
            f"tensor parallelism up to the {reach} GPUs of an NVLink domain before pipelines",
            f"tp {widest}" if plan.pp > 1 else f"tp up to {widest}",
            f"tp {plan.tp}, pp {plan.pp}",
            plan.tp <= widest and (plan.pp == 1 or plan.tp == widest),
        ),
        RuleCheck(
            "no more model parallelism than memory asks for",
            "nothing fits" if degrees is None else f"tp · pp = {degrees[0]} · {degrees[1]} = {least}",
            f"{plan.tp} · {plan.pp} = {parallel}",
            least is not None and parallel <= least,
        ),
        RuleCheck(
            "the micro-batch b with the least (b'/b + p − 1)(t_f + t_b)",
            "nothing fits" if size is None else f"{size}",
            f"{plan.microbatch_size}",
            size == plan.microbatch_size,
        ),
    )
