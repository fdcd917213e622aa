"""Why not another plan? Its rank, what it loses by cause, and what each technique saves on the way to the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from sim.errors import FlopcastError, InfeasiblePlan, SpecError, nearest
from sim.estimate import Estimate, estimate
from sim.pricing.deal import stages_alike
from sim.search.best_first import ROUNDING
from sim.search.by_schedule import search_under
from sim.search.candidate import Candidate, ScheduleBest, worth_of
from sim.search.confirm import nothing_fits, run_best
from sim.search.fields import CHOICES, FIELDS, NOT_KEPT, NUMBERS, SCHEDULES, Fields, agrees, check_value, has_fields
from sim.search.formula import price_space
from sim.search.result import SearchResult
from sim.search.space import build_space
from sim.specs import ParallelPlan, Scenario
from sim.specs.writing import overridden
from sim.units import value_words
from sim.work.recompute import Recompute, own_modules, recompute_of

TECHNIQUES: dict[str, tuple[str, ...]] = {
    "layout": ("tp", "cp", "pp", "dp", "etp"),
    "expert parallelism": ("ep",),
    "micro-batch": ("microbatch_size",),
    "schedule": ("schedule", "num_chunks", "sequence_slices", "microbatch_group"),
    "recomputation": ("recompute", "recompute_modules", "recompute_method", "recompute_num_layers"),
    "sequence parallelism": ("sequence_parallel",),
    "ZeRO": ("zero_stage",),
    "host memory": ("optimizer_offload", "offloaded_layers"),
    "stages": ("pipeline_layout", "uneven_layers", "embedding_as_layer", "head_as_layer", "vocabulary_over_stages"),
}
"""Fields of the plan that change together."""
TOGETHER = 3
"""Most techniques that are changed at once, before all that are left are."""
MOST_RUNS = 40
"""Plans with given fields that the exact engine runs at most to find the best of them."""


def best_of(result: SearchResult, named: Fields) -> tuple[int, Candidate | None]:
    """How many plans with some fields are priced, and the best of them by the exact engine; None where none fits."""
    here, found = run_best(result, named, 1, MOST_RUNS)
    return len(here.having(named)), next(iter(found.best), None)


def loss_of(result: SearchResult, answer: Estimate) -> float:
    """What an answer loses against the best, as a share, by the objective: time or cost."""
    return _worth(result, answer) / result.best[0].worth(result.objective) - 1.0


def _worth(result: SearchResult, answer: Estimate) -> float:
    """What the objective makes smallest, of an answer.  [s] or [GPU-seconds]"""
    return float(worth_of(result.objective, answer.step_time_s, answer.num_gpus))


def losses_by_cause(result: SearchResult, answer: Estimate) -> dict[str, float]:
    """Seconds by cause that an answer takes more than the best, largest first. [s]

    Where the cost is what counts, seconds on as many GPUs as the best has.
    """
    best = result.best[0].answer
    return seconds_apart(answer, best, answer.num_gpus / best.num_gpus if result.objective == "cost" else 1.0)


def seconds_apart(more: Estimate, less: Estimate, scale: float = 1.0) -> dict[str, float]:
    """Seconds by cause that one answer, times a scale, has more than another, largest first. [s]"""
    there, here = more.breakdown.seconds, less.breakdown.seconds
    return dict(sorted(((cause, scale * there[cause] - here[cause]) for cause in there), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Step:
    """Techniques that were changed together on the way from one plan to another.

    changes : field to its values before and after.
    answer : of the plan with them.
    saved_s : by them, of the step time. [s]
    causes : seconds by cause that they save, largest first; negative where they cost. [s]
    """

    techniques: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]
    answer: Estimate
    saved_s: float
    causes: dict[str, float]


def steps_between(start: Estimate, goal: Estimate, memory_limit_bytes: float) -> tuple[Step, ...]:
    """Change what differs between two plans one technique at a time, always the one that then saves most.

    What a technique saves depends on what was changed before it. Plans on the way keep all rules, fit in memory and
    are no slower than the one before; where no single change leads to such a plan, two are made at once, or more.

    start, goal : both on the exact engine.
    """
    steps: list[Step] = []
    here = start
    left = [name for name in TECHNIQUES if _differing(start.scenario, goal.scenario, (name,))]
    while left:
        names, answer = _next(here, goal, left, memory_limit_bytes)
        changes = _differing(here.scenario, goal.scenario, names)
        steps.append(Step(names, changes, answer, here.step_time_s - answer.step_time_s, seconds_apart(here, answer)))
        left = [name for name in left if name not in names]
        here = answer
    return tuple(steps)


def _next(here: Estimate, goal: Estimate, left: Sequence[str], limit: float) -> tuple[tuple[str, ...], Estimate]:
    """The techniques that are changed next, and the answer with them."""
    for many in range(1, min(TOGETHER, len(left) - 1) + 1):
        tried: list[tuple[tuple[str, ...], Estimate]] = []
        for names in combinations(left, many):
            try:
                changes = {name: new for name, (_, new) in _differing(here.scenario, goal.scenario, names).items()}
                answer = estimate(here.scenario.replace(plan=here.scenario.plan.replace(**changes)))
            except FlopcastError:
                continue
            if answer.largest.total <= limit:
                tried.append((names, answer))
        best = min(tried, key=lambda item: item[1].step_time_s, default=None)
        if best is not None and best[1].step_time_s <= here.step_time_s * (1 + ROUNDING):
            return best
    return tuple(left), goal


def _differing(start: Scenario, goal: Scenario, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Fields of some techniques in which the plans of two scenarios differ, with both values."""
    fields = [field for name in names for field in TECHNIQUES[name]]
    pairs = {field: (getattr(start.plan, field), getattr(goal.plan, field)) for field in fields}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}


KINDS: dict[str, tuple[str, ...]] = {
    "in all": (),
    "with the same techniques (recomputation, sequence parallelism, ZeRO)": CHOICES,
    "with the same techniques and schedule": (*CHOICES, "schedule"),
}
"""All plans, then those that a plan is fairly compared with: they differ in layout, micro-batch and chunks, not in what
was invented later."""


OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "async_tensor_parallel", "overlap_experts")
"""Switches of the stack that hide communication. A search leaves them as they are, in all of its plans."""


def overlaps_off(answer: Estimate, least: float) -> dict[str, float]:
    """Overlaps that are off in an answer's stack, and the step time that each saves beside those before it. [s]

    least : Share of the step time from which on an overlap is named.
    """
    found, step_s = dict[str, float](), answer.step_time_s
    for name in OVERLAPS:
        if not getattr(answer.scenario.stack, name):
            try:
                changed = overridden(answer.scenario, [f"stack.{each}=true" for each in (*found, name)])
            except FlopcastError:  # the framework or the plan has no such overlap
                continue
            saved_s = step_s - estimate(changed).step_time_s
            if saved_s >= least * answer.step_time_s:
                found[name], step_s = saved_s, step_s - saved_s
    return found


@dataclass(frozen=True, slots=True)
class RankAmong:
    """The rank of a plan among plans of one kind.

    rank : 1 for the best of those that fit, by the closed form; None where the plan is not among them.
    of : how many fit.
    best : of them, on the exact engine.
    """

    kind: str
    rank: int | None
    of: int
    best: Candidate


@dataclass(frozen=True, slots=True)
class Why:
    """Why a plan, or the best with given fields, is not the best of all.

    ruled_out : the rule it breaks, or why it does not fit or is not in the search's space; None where it is ranked.
    answer : of the plan, or of the best with the fields, on the exact engine; None where there is none that can be run.
    loss : of that against the best of all, as a share, by the objective.
    losses : seconds by cause that it takes more than the best, largest first. [s]
    steps : from it to the best, a technique at a time; none where it is faster or has another number of GPUs.
    rank : of the best plan with fields among those that fit; None where it does not fit or is not priced.
    among : ranks of a whole plan, among the plans of KINDS.
    left_out : of how many plans it is the best, where the search left these out.
    searched : the best of all plans of its schedule with these fields, where the search does not price that schedule.
    """

    ruled_out: str | None
    answer: Estimate | None = None
    loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    rank: int | None = None
    among: tuple[RankAmong, ...] = ()
    left_out: int = 0
    searched: ScheduleBest | None = None

    @classmethod
    def of(cls, result: SearchResult, answer: Estimate, *, steps: bool = True, **more: Any) -> Why:
        """What an answer loses to the best of a result, and the steps from it to that."""
        best, limit = result.best[0].answer, result.memory_limit_bytes
        slower = answer.step_time_s > best.step_time_s and answer.num_gpus == best.num_gpus
        way = steps_between(answer, best, limit) if steps and slower and answer.largest.total <= limit else ()
        loss, losses = loss_of(result, answer), losses_by_cause(result, answer)
        return cls(**{"ruled_out": None, **more}, answer=answer, loss=loss, losses=losses, steps=way)

    @classmethod
    def of_best(cls, result: SearchResult, found: Candidate | None, none: str | None = None) -> Why:
        """What the best of some plans loses, or why there is none."""
        return cls(none) if found is None else cls.of(result, found.answer, steps=False)


def rank_plan(result: SearchResult, scenario: Scenario, *, steps: bool = True) -> Why:
    """Rank one plan, and compare it with the best.

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
    needed, limit = answer.largest.total, result.memory_limit_bytes
    best, reason = any(each.scenario.plan == scenario.plan for each in result.best), None
    if needed > limit:
        try:
            answer.require_fit()
            reason = f"it needs {needed / 1e9:.1f} GB, and a GPU may use {limit / 1e9:.1f} GB"
        except InfeasiblePlan as error:
            reason = str(error)
    elif result.place_of(scenario) is None and not best:
        reason = _not_searched(result, scenario)
    return Why.of(result, answer, steps=steps, ruled_out=reason, among=_ranks(result, scenario, answer))


def why_not(result: SearchResult, named: Mapping[str, Any], *, steps: bool = True) -> Why:
    """Compare the best plan with these fields with the best of all.

    Parameters
    ----------
    result : SearchResult
    named : mapping
        Fields of the plan, such as {"tp": 4, "pp": 8}; the others are free.
    steps : bool
        Also walk from it to the best plan.

    Raises
    ------
    SpecError, ScheduleError
        A field that a search does not vary, or a value that it cannot have.
    """
    check_fields(named)
    priced, found = best_of(result, named)
    if not priced:
        return _why_unpriced(result, named)
    if found is None:
        return Why(nothing_fits(result, named))
    # Of plans for which room is made those count for which it was looked.
    score = worth_of(result.objective, round(found.priced_step_time_s, 9), found.answer.num_gpus)
    return Why.of(result, found.answer, steps=steps, rank=1 + result.num_better(score))


def check_fields(named: Mapping[str, Any], any_of_plan: bool = False) -> None:
    """Raise where a field is not one that a search varies, or cannot have its value whatever the others are.

    any_of_plan : fields that a search does not vary will do too: they change the scenario's own plan.
    """
    known = tuple(ParallelPlan.model_fields) if any_of_plan else (*FIELDS, "num_gpus")
    for name, value in named.items():
        if name not in known:
            raise SpecError(f"--why takes fields of the plan, not {name!r}{nearest(name, known)}")
        if name in FIELDS:
            check_value(name, value)


def _ranks(result: SearchResult, scenario: Scenario, answer: Estimate) -> tuple[RankAmong, ...]:
    """Ranks of a plan among all plans and those of KINDS; without a rank where it was not priced or does not fit."""
    score, exact = result.worth_of(scenario), _worth(result, answer)
    found = list[RankAmong]()
    for kind, names in KINDS.items():
        fields = {name: getattr(scenario.plan, name) for name in names}
        best = best_of(result, fields)[1] if fields else result.best[0]
        better = 0 if score is None else max(result.num_better(score, fields), _run_better(result, fields, exact))
        if best is not None:
            rank = None if score is None else 1 + better
            found.append(RankAmong(kind, rank, len(result.having(fields, fitting=True)), best))
    return tuple(found)


def _run_better(result: SearchResult, fields: Fields, exact: float) -> int:
    """How many plans with some fields are better on the exact engine, of those that it has run: prices are bounds."""
    ran = [each for each in result.known.values() if each.worth(result.objective) < exact * (1 - ROUNDING)]
    return sum(has_fields(each.scenario.plan, fields) for each in ran)


def _not_searched(result: SearchResult, scenario: Scenario) -> str:
    """Why a plan that can be run has no rank."""
    plan, sizes = scenario.plan, result.space.columns.num_gpus
    if broken := _cannot_run(result, scenario):
        return broken
    for name, value in result.space.fixed.items():
        if not agrees(name, getattr(plan, name), value):
            return f"it has plan.{name} = {value_words(getattr(plan, name))}, and you set {value_words(value)}"
    if plan.schedule not in SCHEDULES:
        return (
            f"schedule {plan.schedule} is not among those that are priced one by one ({', '.join(SCHEDULES)}); "
            f"--schedules {plan.schedule} finds its best plan"
        )
    if not (sizes.min() <= plan.num_gpus <= sizes.max()):
        return f"it uses {plan.num_gpus:,} GPUs, the search {sizes.min():,} to {sizes.max():,}"
    for name, value in result.kept_beside(plan).items():
        if (own := getattr(plan, name)) != value:
            remedy = f"the search keeps {value_words(value)}; -s plan.{name}={value_words(own)} sets it"
            return f"it has plan.{name} = {value_words(own)}: {NOT_KEPT.get(name, remedy)}"
    if plan.optimizer_offload or plan.offloaded_layers:
        return "it keeps states in host memory; --room modules,block,offload tries that for plans that do not fit"
    if plan.recompute == "per_op":
        return "recompute per_op is searched only if the framework has it or the scenario's own plan uses it"
    names = own_modules(result.space.scenario.plan) if plan.recompute == "selective" else ()
    if recompute_of(plan, scenario.model) != Recompute(plan.recompute, names):
        if not result.room:
            return "it recomputes other modules than the scenario, or recomputes layers in groups"
        return "this recomputation was not priced: the plan fits without it, or a faster way to fit was kept"
    if plan.num_chunks > 1 and not stages_alike(scenario.model, plan, plan.pp, plan.num_chunks):
        return (
            "its chunks hold different kinds of layers, which no formula prices. The most promising of such plans are "
            "run one by one, and ranked if among the best"
        )
    searched = {name: values for name, values in result.values(NUMBERS).items() if getattr(plan, name) not in values}
    words = [f"{name} {getattr(plan, name)} (searched: {', '.join(map(str, each))})" for name, each in searched.items()]
    return f"it has {' and '.join(words)}" if words else "the search deals its layers otherwise"


def _cannot_run(result: SearchResult, scenario: Scenario, named: Fields | None = None) -> str:
    """Why the frameworks of the search cannot run a plan, as rules of the named fields if there are any refuse these
    on it; empty where they can."""
    space, plan = result.space, {**dict(scenario.plan), **(named or {})}
    asked = [rule for rule in space.rules if named is None or rule.names & named.keys()]
    broken = next((rule for rule in asked if not rule.holds(scenario, plan)), None)
    refusal = broken and broken.refusal(scenario, plan)
    return f"{space.runs_on} cannot run {refusal}; --any-framework searches such plans" if refusal else ""


def _why_unpriced(result: SearchResult, named: Fields) -> Why:
    """Why no priced plan has some fields: the rule that they break, or the best of the plans that have them."""
    space, sizes = result.space, result.space.columns.num_gpus
    if named.get("schedule", SCHEDULES[0]) not in SCHEDULES:
        rest = {name: value for name, value in named.items() if name != "schedule"}
        searched, _ = search_under(result, named["schedule"], rest)
        if searched.best is None:
            return Why(searched.reason, searched=searched)
        return Why.of(result, searched.best.answer, searched=searched)
    if blamed := _cannot_run(result, result.best[0].scenario, named):
        return Why(blamed)
    between, fixed = (int(sizes.min()), int(sizes.max())), {**space.fixed, **named}
    try:
        left_out = build_space(space.scenario, between, rules=space.rules, runs_on=space.runs_on, fixed=fixed)
    except InfeasiblePlan as error:
        return Why(str(error))
    anew = replace(result, space=left_out, categories=left_out.categories, prices=price_space(left_out))
    priced, found = best_of(anew, {})
    if found is None:
        return Why(nothing_fits(anew, {}))
    return Why.of(result, found.answer, left_out=priced)
