"""What a search found: the best plans, and everything else it priced."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sim.notebook import NotebookDisplay
from sim.search.candidate import Candidate, ScheduleBest, StagesSearched, gap_of
from sim.search.plans.layouts import expert_degrees
from sim.search.plans.space import Fields, Progress
from sim.search.queries import (
    PricedPlans,
    Selection,
    best_assumed,
    fixed_assumed,
    framework_assumed,
    plans_assumed,
    proof_assumed,
    room_assumed,
    schedules_assumed,
    stack_assumed,
    stages_assumed,
)
from sim.search.room import make_room
from sim.units import show, show_time

if TYPE_CHECKING:
    from sim.search.risk import Risk


@dataclass(frozen=True, repr=False)
class SearchResult(PricedPlans, NotebookDisplay):
    """All plans with their prices, and the best of them.

    plans_priced : plans whose time and memory are known.
    best : by the objective on the exact engine, of the closed form's best.
    elapsed_s : of pricing and memory check, without the confirmations. [s]
    top : how many of the best were asked for.
    confirmed : plans that the exact engine ran.
    bound : what the objective makes smallest, at least, of all plans that the exact engine did not run; None: it ran
        all of them.
    schedules : the best plan of each schedule that was searched besides the priced ones, the best schedule first.
    stages : what was found of other layouts and groups of micro-batches; None where they were not looked for.
    risk : the ranking by a quantile that `best` has the order of; None: it has that of the expected step.
    room : ways to make room for plans that do not fit else, of `sim.search.room.WAYS`.
    plans_given_room : how many plans were checked that make room so.
    room_floor : score that no plan with `room_fields` goes below for which room was not looked for.
    """

    plans_priced: int
    best: tuple[Candidate, ...]
    elapsed_s: float
    top: int = 10
    confirmed: int = 0
    bound: float | None = None
    schedules: tuple[ScheduleBest, ...] = ()
    stages: StagesSearched | None = None
    risk: Risk | None = None
    room: tuple[str, ...] = ()
    plans_given_room: int = 0
    room_floor: float = np.inf
    room_fields: Fields | None = None

    def with_room(
        self, few: int, fields: Fields | None = None, ceiling: float | None = None, progress: Progress | None = None
    ) -> Self:
        """The result with plans that fit only once room is made, if they may be among the best few with some fields.

        ceiling : score up to which room is made, whatever is among the best few by their prices.
        """
        begun = time.perf_counter()
        looked = self.room_floor if fields == self.room_fields and ceiling is not None else -np.inf
        wanted = {**self.ways_fixed, **(fields or {})}
        plans = replace(self, ways_fixed={}, room_fields=fields)
        plans, tried, floor = make_room(plans, self.room, few, wanted, looked, ceiling, progress)
        given, took = self.plans_given_room + tried, self.elapsed_s + time.perf_counter() - begun
        return replace(plans, ways_fixed=self.ways_fixed, elapsed_s=took, plans_given_room=given, room_floor=floor)

    def __repr__(self) -> str:
        """One line: the fields hold every plan."""
        best = self.best[0].answer if self.best else None
        found = "no plan fits" if best is None else f"the best takes {show_time(best.step_time_s)} a step"
        return f"<SearchResult {self.space.scenario.name}: {self.plans_priced:,} plans, {found}>"

    @cached_property
    def known(self) -> dict[int, Candidate]:
        """Plans that the exact engine has run, by place: the best, and those that questions add."""
        places = [(self.place_of(each.scenario), each) for each in self.best]
        return {place: each for place, each in places if place is not None}

    @cached_property
    def plans_feasible(self) -> int:
        """How many plans fit in memory."""
        return self.select({}, 1).fit

    @cached_property
    def plans_made_to_fit(self) -> int:
        """How many of these fit only since room was made for them, as far as that was looked for."""
        return int(np.count_nonzero(self.fits & (self.category >= len(self.space.categories))))

    @property
    def plans_per_s(self) -> float:
        """Plans priced and checked a second."""
        return (self.plans_priced + self.plans_given_room) / self.elapsed_s

    @property
    def gap(self) -> float | None:
        """Largest share by which a plan that was priced but not run could beat the best; 0 if the best is proven.

        None if no plan fits.
        """
        if not self.best:
            return None
        fastest = self.best[0] if self.risk is None else self.risk.fastest
        return gap_of(fastest.worth(self.objective), self.bound)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the search left out, and how sure its best plan is."""
        scenario, limit = self.space.scenario, self.memory_limit_bytes
        stated = [
            *self.proof_assumptions,
            *schedules_assumed(self.schedules, self.space),
            *room_assumed(self.room, self.objective),
            framework_assumed(self.space.runs_on, scenario),
            *stack_assumed(self.space),
            fixed_assumed({**self.space.fixed, **self.ways_fixed}),
            *plans_assumed(self.space),
        ]
        stated += self.memory_assumptions
        if self.best:
            stated += best_assumed(self.best[0], limit, self.objective)
        if self.objective == "days" and scenario.training.tokens is None:
            stated.append("training.tokens is not given, so days are ranked by step time")
        return tuple(stated)

    @property
    def proof_assumptions(self) -> list[str]:
        """How sure it is that the best plan is the best, with layers dealt evenly and otherwise."""
        stated = [proof_assumed(self.space, self.confirmed, self.gap, self.stages)]
        if self.best and self.stages is not None:
            stated.append(stages_assumed(self.stages, self.best[0].worth(self.objective)))
        return stated

    @property
    def memory_assumptions(self) -> list[str]:
        """How much of a GPU's memory plans may take, where that is not what it is sold with."""
        gpu, limit = self.space.scenario.cluster.gpu, self.memory_limit_bytes
        if limit > gpu.usable_bytes:
            return [
                f"plans may take {show(limit, 'B')} of a GPU, but one {gpu.name} has only "
                f"{show(gpu.usable_bytes, 'B')}: those that take more do not run there"
            ]
        if limit < gpu.usable_bytes:
            return [f"plans use at most {show(limit, 'B')} of a GPU (--memory-limit)"]
        if limit < gpu.memory_bytes:
            return [
                f"plans may use {show(limit, 'B')}, which the driver leaves of the {show(gpu.memory_bytes, 'B')} of a "
                f"{gpu.name}; --memory-limit sets another limit"
            ]
        return []

    def rank_by_price(self, found: Candidate) -> int:
        """1 for the best of the plans that fit; of plans for which room is made those count for which it was looked."""
        gpus = found.answer.num_gpus if self.objective == "cost" else 1
        score = found.memory_bytes if self.objective == "memory_headroom" else round(found.priced_step_time_s, 9) * gpus
        return self.select({}, 1, score).better + 1

    def none_fits(self, selection: Selection) -> str:
        """The sentence that none of some plans fits in memory, and what the leanest of them needs."""
        assert selection.leanest is not None
        needed = self.memory_bytes[selection.leanest]
        plan = self.scenario_at(selection.leanest).plan
        experts = f"ep {plan.ep}, " if self.space.scenario.model.num_experts else ""
        return (
            f"none of the {selection.priced:,} such plans fits in {show(self.memory_limit_bytes, 'B')}: the leanest "
            f"needs {show(needed, 'B')} (recompute {plan.recompute}, ZeRO {plan.zero_stage}, dp {plan.dp}, {experts}"
            f"micro-batch {plan.microbatch_size})"
        )

    def nothing_fits(self) -> str:
        """The sentence that no plan fits, by how much, and whether the limit or the GPU is too small."""
        everything = self.select({}, 1)
        if everything.leanest is None:
            fixed = " and ".join(f"plan.{name} = {value}" for name, value in self.ways_fixed.items())
            return (
                f"no plan of this search has {fixed}; leave it out and the search chooses it, or ask flopcast estimate"
            )
        lowest = self.memory_bytes[everything.leanest]
        plan, scenario = self.scenario_at(everything.leanest).plan, self.space.scenario
        gpu = scenario.cluster.gpu
        limited = self.memory_limit_bytes < gpu.usable_bytes
        named = "--memory-limit" if limited else f"the memory of one {gpu.name}"
        raised = f"raise --memory-limit to {math.ceil(lowest / 1e9)} GB, or "
        remedy = raised if limited and lowest < gpu.usable_bytes else ""
        experts, dealt = "", ""
        if scenario.model.num_experts:
            experts = f", ep {plan.ep}"
            wider = self._wider_degrees()
            if wider:
                dealt = (
                    f"deal the {scenario.model.num_experts} experts over more GPUs (-s "
                    f"plan.ep=[{','.join(map(str, wider))}]; without it all degrees are searched), "
                )
        return (
            f"none of {self.plans_priced:,} plans fits: memory rules them all out. The leanest needs "
            f"{show(lowest, 'B')}, {named} is {show(self.memory_limit_bytes, 'B')} (tp {plan.tp}, cp {plan.cp}, pp "
            f"{plan.pp}, dp {plan.dp}, micro-batch {plan.microbatch_size}, {plan.schedule}, recompute "
            f"{plan.recompute}, ZeRO {plan.zero_stage}{experts}). To go on, {remedy}{dealt}{self._hosted()}"
            "use more GPUs (--gpus) or GPUs with more memory"
        )

    def _hosted(self) -> str:
        """The sentence that some plan fits only with states in host memory; empty if none does."""
        if "offload" in self.room:
            return ""
        able = replace(self, room=(*self.room, "offload")).with_room(few=1)
        places = able.ranking(1)
        if not len(places):
            return ""
        plan = able.scenario_at(int(places[0])).plan
        kept = [f"{plan.optimizer_offload:.0%} of the optimizer's state"] if plan.optimizer_offload else []
        kept += [f"activations of {plan.offloaded_layers} layers"] if plan.offloaded_layers else []
        return (
            f"with {' and '.join(kept)} in host memory one fits (tp {plan.tp}, pp {plan.pp}, dp {plan.dp}): search "
            f"with --room {','.join(able.room)}, or "
        )

    def _wider_degrees(self, few: int = 4) -> list[int]:
        """The next larger numbers of GPUs to deal experts over, at most all that hold the same layers."""
        tp, cp, _, dp, ep = self.space.layouts.T
        most, widest = int((tp * cp * dp).max()), int(ep.max())
        return [each for each in expert_degrees(self.space.scenario) if widest < each <= most][:few]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.space.scenario.name,
            "objective": self.objective,
            "plans_priced": self.plans_priced,
            "plans_feasible": self.plans_feasible,
            "plans_in_space": self.space.num_plans,
            "plans_given_room": self.plans_given_room,
            "room": list(self.room),
            "elapsed_s": self.elapsed_s,
            "plans_per_s": self.plans_per_s,
            "confirmed": self.confirmed,
            "gap": self.gap,
            "memory_limit_bytes": self.memory_limit_bytes,
            "assumptions": list(self.assumptions),
            **({} if self.stages is None else {"stages": self.stages.to_dict(self.best[0].worth(self.objective))}),
            **({"schedules": [each.to_dict() for each in self.schedules]} if self.schedules else {}),
            "best": [each.to_dict() for each in self.best],
            **({} if self.risk is None else {"risk": self.risk.to_dict()}),
        }
