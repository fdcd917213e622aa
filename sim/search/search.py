"""Which plan should I run? Every feasible plan priced by the closed form, the best of them by the exact engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan, SpecError, nearest
from sim.estimate import Estimate, estimate
from sim.search.facts import Facts, gather_facts
from sim.search.memory import InFlight, in_flight, memory_bytes
from sim.search.pareto import pareto_front
from sim.search.price import ENDS, LAYER, Held, block_seconds, cut_of_rows, once_a_step, params_held, step_times, tools
from sim.search.space import OVERLAPS, SCHEDULES, Category, Space, build_space, stack_of
from sim.shown import Shown
from sim.specs import Scenario
from sim.units import show

Array = np.ndarray

OBJECTIVES = ("step_time", "days", "cost", "memory_headroom")
"""Step time and days rank alike, as the batch is given; cost is GPUs times time; headroom is memory left free."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan of a search, confirmed by the exact engine.

    priced_step_time_s : by the closed form, which ranked it. [s]
    answer : the exact engine's.
    """

    scenario: Scenario
    priced_step_time_s: float
    memory_bytes: float
    answer: Estimate

    @property
    def difference(self) -> float:
        """Of the exact step time from the closed form's, as a share."""
        return self.answer.step_time_s / self.priced_step_time_s - 1.0

    def worth(self, objective: str) -> float:
        """What an objective makes smallest: seconds, GPU-seconds or bytes."""
        if objective == "memory_headroom":
            return float(self.answer.largest.total)
        return self.answer.step_time_s * (self.answer.num_gpus if objective == "cost" else 1)


@dataclass(frozen=True, slots=True)
class SearchResult(Shown):
    """All plans with their prices, and the best of them.

    category, row, step_time_s, memory_bytes : columns over the plans priced; `row` is one of `space.columns`.
    best : by the objective on the exact engine, of the closed form's best.
    finished : False where it was interrupted; then only `plans_priced` of `space.num_plans` were looked at.
    elapsed_s : of pricing and memory check, without the confirmations. [s]
    confirmed : plans that the exact engine ran.
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    category: Array
    row: Array
    step_time_s: Array
    memory_bytes: Array
    best: tuple[Candidate, ...]
    finished: bool
    elapsed_s: float
    confirmed: int = 0

    @property
    def plans_priced(self) -> int:
        """Plans whose time and memory were computed."""
        return len(self.row)

    @property
    def plans_feasible(self) -> int:
        """Those that fit in memory."""
        return int(np.count_nonzero(self.memory_bytes <= self.memory_limit_bytes))

    @property
    def plans_per_s(self) -> float:
        """Plans priced and checked a second."""
        return self.plans_priced / self.elapsed_s

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place of the columns."""
        return self.space.scenario_of(int(self.row[place]), self.space.categories[self.category[place]])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the search left out."""
        plan = self.space.scenario.plan
        stated = [
            f"schedules {', '.join(SCHEDULES)}, ranked by the closed form; only the best {self.confirmed} were run on "
            "the exact engine, so where the formula is off a plan below them may be as good"
        ]
        if plan.uneven_layers:
            stated.append("layers are dealt evenly to all stages; uneven_layers of the scenario's plan is not searched")
        if plan.microbatch_group is not None or plan.sequence_slices > 1:
            stated.append("micro-batch groups and sequence slices of the scenario's plan are not searched")
        return tuple(stated)

    def ranking(self) -> Array:
        """Places of the plans that fit, best first; of equals the one that needs least memory."""
        fits = np.flatnonzero(self.memory_bytes <= self.memory_limit_bytes)
        return fits[np.lexsort((self.memory_bytes[fits], self.score()[fits]))]

    def score(self) -> Array:
        """What the objective makes smallest, over the plans priced; ties within rounding are made equal."""
        if self.objective == "memory_headroom":
            return self.memory_bytes
        seconds = self.step_time_s
        if self.objective == "cost":
            seconds = seconds * self.space.columns.num_gpus[self.row]
        rounded: Array = np.round(seconds, 12 - int(np.log10(max(seconds.max(initial=1.0), 1e-9))))
        return rounded

    def pareto(self) -> Array:
        """Places of the plans that fit and that no other beats in step time, memory and GPUs."""
        fits = np.flatnonzero(self.memory_bytes <= self.memory_limit_bytes)
        gpus = self.space.columns.num_gpus[self.row[fits]]
        places: Array = fits[pareto_front(self.step_time_s[fits], self.memory_bytes[fits], gpus)]
        return places

    def rank_of(self, scenario: Scenario) -> int | None:
        """1 for the best of the plans that fit; None where the plan is not among them."""
        place = self.place_of(scenario)
        found = np.flatnonzero(self.ranking() == place) if place is not None else np.empty(0)
        return int(found[0]) + 1 if len(found) else None

    def place_of(self, scenario: Scenario) -> int | None:
        """Where in the columns a plan is; None where it was not priced."""
        plan, columns = scenario.plan, self.space.columns
        if plan.schedule not in SCHEDULES:
            return None
        rows = np.ones(len(columns), bool)
        for name in ("tp", "cp", "pp", "dp", "num_chunks", "microbatch_size"):
            rows &= getattr(columns, name) == getattr(plan, name)
        rows &= columns.schedule == SCHEDULES.index(plan.schedule)
        overlaps = tuple(getattr(scenario.stack, name) for name in OVERLAPS)
        wanted = Category(plan.recompute, plan.sequence_parallel, plan.zero_stage, overlaps)
        numbers = [index for index, each in enumerate(self.space.categories) if each == wanted]
        if not rows.any() or not numbers:
            return None
        here = np.flatnonzero((self.row == np.flatnonzero(rows)[0]) & (self.category == numbers[0]))
        return int(here[0]) if len(here) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.space.scenario.name,
            "objective": self.objective,
            "plans_priced": self.plans_priced,
            "plans_feasible": self.plans_feasible,
            "plans_in_space": self.space.num_plans,
            "finished": self.finished,
            "elapsed_s": self.elapsed_s,
            "plans_per_s": self.plans_per_s,
            "memory_limit_bytes": self.memory_limit_bytes,
            "assumptions": list(self.assumptions),
            "best": [
                {
                    "plan": each.scenario.plan.model_dump(mode="json"),
                    "num_gpus": each.answer.num_gpus,
                    "step_time_s": each.answer.step_time_s,
                    "priced_step_time_s": each.priced_step_time_s,
                    "difference": each.difference,
                    "memory_bytes": each.answer.largest.total,
                    "mfu": each.answer.mfu,
                    "training_days": None
                    if each.answer.training_time_s is None
                    else each.answer.training_time_s / 86400,
                }
                for each in self.best
            ],
        }

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        import pandas as pd

        fits = self.memory_bytes <= self.memory_limit_bytes
        order = np.lexsort((self.score(), ~fits))
        rows, columns = self.row[order], self.space.columns
        numbers = {
            name: getattr(columns, name)[rows] for name in ("tp", "cp", "pp", "dp", "num_chunks", "microbatch_size")
        }
        frame = pd.DataFrame({"num_gpus": columns.num_gpus[rows], **numbers})
        frame["schedule"] = np.array(SCHEDULES)[columns.schedule[rows]]
        for name in ("recompute", "sequence_parallel", "zero_stage"):
            frame[name] = np.array([getattr(each, name) for each in self.space.categories])[self.category[order]]
        frame["step_time_s"], frame["memory_bytes"] = self.step_time_s[order], self.memory_bytes[order]
        frame["fits"] = fits[order]
        return frame


def price_all(space: Space) -> Iterator[tuple[int, Array, Array, Array]]:
    """(category, rows, step times, memory) of one category after the other. [-, -, s, bytes]"""
    scenario = space.scenario
    compute, fabric = tools(scenario)
    everything = gather_facts(space)
    sides: dict[bool, tuple[Array, Facts, Held, InFlight]] = {}
    for flag in {category.sequence_parallel for category in space.categories}:
        rows = space.rows_of(flag)
        facts = everything.take(rows)
        sides[flag] = (rows, facts, params_held(scenario, facts), in_flight(facts))
    known: dict[Any, Any] = {}

    def remembered(key: Any, make: Callable[[], Any]) -> Any:
        if key not in known:
            known[key] = make()
        return known[key]

    for number, category in enumerate(space.categories):
        rows, facts, held, flying = sides[category.sequence_parallel]
        if not len(rows):
            continue
        stack = stack_of(scenario.stack, category)
        table = space.table(facts.columns, category, stack)
        sp, recompute, zero = category.sequence_parallel, category.recompute, category.zero_stage
        kind = (sp, stack.overlap_tp_backward)
        ends = remembered(
            ("ends", *kind),
            lambda: block_seconds(table, facts, category, compute, fabric, ENDS),  # noqa: B023 (called at once)
        )
        blocks = remembered(
            ("blocks", *kind, recompute),
            lambda: np.concatenate(
                [block_seconds(table, facts, category, compute, fabric, LAYER), ends],  # noqa: B023
                axis=1,
            ),
        )
        once = remembered((sp, zero), lambda: once_a_step(table, facts, held, compute, fabric))  # noqa: B023
        needed = remembered(
            ("memory", sp, recompute, zero),
            lambda: memory_bytes(table, facts, cut_of_rows(scenario, facts, category), held, flying),  # noqa: B023
        )
        yield number, rows, step_times(table, facts, category, held, blocks, once, fabric), needed


def search(
    scenario: Scenario,
    *,
    gpus: tuple[int, int] | None = None,
    max_gpus: int | None = None,
    memory_limit_bytes: float | None = None,
    objective: str = "step_time",
    top: int = 10,
    confirm: int = 40,
    context: tuple[int, ...] | None = None,
    overlaps: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Price and memory-check every plan, and confirm the best by the exact engine.

    Parameters
    ----------
    scenario : Scenario
        Its plan says how many GPUs where `gpus` does not; model, cluster, training and stack are kept.
    gpus : (int, int), optional
        Fewest and most.
    max_gpus : int, optional
        No plan of more; without `gpus` plans of any smaller number count too.
    memory_limit_bytes : float, optional
        Of one GPU. Default: all it has. [bytes]
    objective : str
        Of OBJECTIVES.
    top : int
        How many to return.
    confirm : int
        How many of the closed form's best the exact engine runs; its times decide their order.
    context : tuple of int, optional
        Context-parallel degrees. Default: 1 and the plan's own.
    overlaps : bool
        Also switch the stack's overlaps on and off.
    progress : callable, optional
        Called with (plans priced, plans in the space).

    Returns
    -------
    SearchResult
        Of what was priced so far where it is interrupted (KeyboardInterrupt).

    Raises
    ------
    InfeasiblePlan
        No plan keeps the rules or none fits; the message says which constraint left nothing.
    SpecError
        Unknown objective.
    """
    if objective not in OBJECTIVES:
        raise SpecError(f"unknown objective {objective!r}{nearest(objective, OBJECTIVES)}")
    own = scenario.plan.num_gpus
    fewest, most = gpus or ((own, own) if max_gpus is None else (1, max_gpus))
    if max_gpus is not None:
        most = min(most, max_gpus)
    if fewest > most or fewest < 1:
        raise SpecError(
            f"no number of GPUs is at least {fewest} and at most {most}; give --gpus 64..4096, smaller first"
        )
    limit = scenario.cluster.gpu.memory_bytes if memory_limit_bytes is None else memory_limit_bytes

    begun = time.perf_counter()
    space = build_space(
        scenario, (fewest, most), context=context or tuple(sorted({1, scenario.plan.cp})), overlaps=overlaps
    )
    parts, done, size, finished = [], 0, space.num_plans, True
    try:
        for part in price_all(space):
            parts.append(part)
            done += len(part[1])
            if progress is not None:
                progress(done, size)
    except KeyboardInterrupt:
        finished = False
        if not parts:
            raise
    numbers = np.concatenate([np.full(len(rows), number) for number, rows, _, _ in parts])
    rows, seconds, needed = (np.concatenate([part[index] for part in parts]) for index in (1, 2, 3))
    elapsed = time.perf_counter() - begun
    result = SearchResult(space, objective, limit, numbers, rows, seconds, needed, (), finished, elapsed)
    ranking = result.ranking()
    if not len(ranking):
        raise InfeasiblePlan(_none_fits(result))
    places = ranking[: max(top, confirm)]
    return replace(result, best=_confirmed(result, places)[:top], confirmed=len(places))


def _confirmed(result: SearchResult, places: Array) -> tuple[Candidate, ...]:
    """The plans at these places, run on the exact engine and put in order by it."""
    best = []
    for place in places.tolist():
        chosen = result.scenario_at(place)
        best.append(
            Candidate(
                chosen, float(result.step_time_s[place]), float(result.memory_bytes[place]), estimate(chosen, "dag")
            )
        )
    if result.objective != "memory_headroom":
        best.sort(key=lambda each: each.worth(result.objective))
    return tuple(best)


def _none_fits(result: SearchResult) -> str:
    """That memory is what rules all plans out, and by how much."""
    place = int(np.argmin(result.memory_bytes))
    plan = result.scenario_at(place).plan
    least = show(float(result.memory_bytes[place]), "B")
    most = show(result.memory_limit_bytes, "B")
    partly = "" if result.finished else f" (interrupted after {result.plans_priced:,} of {result.space.num_plans:,})"
    return (
        f"none of {result.plans_priced:,} plans fits{partly}: memory rules them all out; the leanest needs {least} of "
        f"{most} a GPU (tp {plan.tp}, cp {plan.cp}, pp {plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, "
        f"{plan.schedule}, recompute {plan.recompute}, ZeRO {plan.zero_stage}); use more GPUs (--gpus), GPUs with more "
        "memory, or raise --memory-limit"
    )
