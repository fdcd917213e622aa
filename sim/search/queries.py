"""What is asked of the table of priced plans: which have given fields, the best few, counts, ranks, the Pareto front.

The table has four columns (`sim.search.prices.formula.Priced`): category, row, step time and memory. A *place* is a
row of it. Fields of plans are looked up in the space, as whole columns where a question needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Floats, Ints
from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import LAYOUT
from sim.schedules.registry import schedules
from sim.search.candidate import Candidate, ScheduleBest, StagesSearched, gap_of
from sim.search.plans.layouts import CHOICES, FIELDS, NUMBERS, ROOM, SCHEDULES, USUAL_DEPTHS, Category
from sim.search.plans.space import Fields, Space, base_plan, sharding_fields
from sim.search.prices.formula import Priced
from sim.specs import ParallelPlan, Scenario
from sim.specs.framework_plans import framework_words, rules_of_scenario
from sim.units import listed, show, show_time
from sim.work.recompute import recompute_word


@dataclass(frozen=True, slots=True)
class Selection:
    """The plans with given fields.

    priced, fit : how many there are, and fit in memory.
    better : of those that fit, how many have a lower score than asked about.
    best : places of the best few that fit, best first; of equals the one that needs least memory.
    leanest : place of the plan that needs least memory, whether it fits or not; None where there is no plan.
    """

    priced: int
    fit: int
    better: int
    best: Ints
    leanest: int | None


@dataclass(frozen=True, repr=False)
class PricedPlans:
    """Plans with their prices, and what they are compared by.

    objective : of `sim.search.candidate.OBJECTIVES`.
    memory_limit_bytes : that a plan may take of a GPU. [bytes]
    categories : the space's, and those that only plans have for which room was made.
    prices : the table.
    ways_fixed : fields of plans that say what runs again or lies on the host and are set, and not searched. The table
        has plans of other ways too, for which room may be made in these.
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    categories: tuple[Category, ...]
    prices: Priced
    ways_fixed: Fields = field(default_factory=dict, kw_only=True)

    @property
    def category(self) -> Ints:
        """Number of each place's category in `categories`."""
        return self.prices.category

    @property
    def row(self) -> Ints:
        """Number of each place's row in `space.columns`."""
        return self.prices.row

    @property
    def step_time_s(self) -> Floats:
        """Step time of each place by the closed form. [s]"""
        return self.prices.step_time_s

    @property
    def memory_bytes(self) -> Floats:
        """Memory of the fullest GPU at each place. [bytes]"""
        return self.prices.memory_bytes

    @cached_property
    def fits(self) -> Bools:
        """Which plans fit in memory."""
        return np.asarray(self.prices.memory_bytes <= self.memory_limit_bytes)

    def score(self, places: Any = slice(None)) -> Array:
        """What the objective makes smallest, of some plans or all; step times are equal to the nanosecond."""
        return self.score_of(self.prices.take(places))

    def score_of(self, priced: Priced) -> Array:
        """What the objective makes smallest, of plans that need not be in the table."""
        if self.objective == "memory_headroom":
            return priced.memory_bytes
        seconds: Array = np.round(priced.step_time_s, 9)
        return seconds * self.space.gpus_of(priced.row) if self.objective == "cost" else seconds

    def having(self, fields: Fields | None, fitting: bool = False) -> Ints:
        """Places of the plans that have some fields, and fit in memory if only those are asked for."""
        rows, categories = self.masks(fields or {})
        found = rows[self.row] & categories[self.category]
        return np.flatnonzero(found & self.fits if fitting else found)

    def select(self, fields: Fields | None = None, few: int | None = 40, than: float = -np.inf) -> Selection:
        """The plans with some fields.

        few : how many of the best to name; None names all that fit.
        than : score that others are compared with.

        Raises SpecError: a field that a search does not vary.
        """
        which, some = self.having(fields), self.having(fields, fitting=True)
        score, fit = self.score(some), len(some)
        better = np.count_nonzero(score < than)
        if few is not None and fit > few:
            near = score <= np.partition(score, few - 1)[few - 1]
            some, score = some[near], score[near]
        best = some[np.lexsort((some, self.memory_bytes[some], score))][:few]
        leanest = int(which[self.memory_bytes[which].argmin()]) if len(which) else None
        return Selection(len(which), fit, int(better), best, leanest)

    def values(self, names: Sequence[str], fields: Fields | None = None, fitting: bool = False) -> dict[str, list[Any]]:
        """Which values fields of the plans with some fields have, each in order.

        names : of FIELDS, or num_gpus.
        fitting : only of plans that fit in memory.
        """
        rows, numbers = (np.unique(each[self.having(fields, fitting)]) for each in (self.row, self.category))
        there = [self.categories[number] for number in numbers.tolist()]
        found: dict[str, list[Any]] = {}
        for name in names:
            if name in (*CHOICES, *ROOM):
                found[name] = sorted({self.space.value_of(each, name) for each in there})
            else:
                values = np.unique(getattr(self.space.columns, name)[rows]).tolist()
                found[name] = [SCHEDULES[each] for each in values] if name == "schedule" else values
        return found

    def ranking(self, most: int | None = None) -> Ints:
        """Places of the plans that fit, best first, at most so many; of equals the one that needs least memory."""
        return self.select({}, most).best

    def worth_of(self, scenario: Scenario) -> float | None:
        """Score of one plan; None where it was not priced or does not fit."""
        place = self.place_of(scenario)
        return None if place is None or not self.fits[place] else float(self.score(np.array([place]))[0])

    def rank_of(self, scenario: Scenario) -> int | None:
        """1 for the best of the plans that fit, equals share a rank; None where the plan is not among them."""
        score = self.worth_of(scenario)
        return None if score is None else self.select({}, 1, score).better + 1

    def pareto(self, fields: Fields | None = None) -> Ints:
        """Places of the plans with some fields that fit and that no other beats in step time, memory and GPUs."""
        which = self.having(fields, fitting=True)
        some = self.prices.take(which)
        return np.asarray(which[pareto_front(some.step_time_s, some.memory_bytes, self.space.gpus_of(some.row))])

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place."""
        row, category = int(self.prices.row[place]), int(self.prices.category[place])
        return self.space.scenario_of(row, self.categories[category])

    def scenarios_at(self, places: Array) -> list[Scenario]:
        """The plans at some places."""
        return [self.scenario_at(place) for place in places.tolist()]

    def place_of(self, scenario: Scenario) -> int | None:
        """The place of a plan; None if it was not priced."""
        wanted = self._row_of(scenario)
        if wanted is None:
            return None
        here = np.flatnonzero((self.prices.row == wanted[0]) & (self.prices.category == wanted[1]))
        return int(here[0]) if len(here) else None

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        import pandas as pd

        fits = self.fits
        order = np.lexsort((self.prices.memory_bytes, self.score(), ~fits))
        some, columns = self.prices.take(order), self.space.columns
        varied = [name for name in ROOM if len({self.space.value_of(each, name) for each in self.categories}) > 1]
        words = {
            name: np.array([_word(self.space.value_of(each, name)) for each in self.categories])
            for name in (*CHOICES, *varied)
        }
        return pd.DataFrame(
            {
                **{name: getattr(columns, name)[some.row] for name in ("num_gpus", *NUMBERS)},
                "schedule": np.array(SCHEDULES)[columns.schedule[some.row]],
                **{name: of_categories[some.category] for name, of_categories in words.items()},
                "step_time_s": some.step_time_s,
                "memory_bytes": some.memory_bytes,
                "fits": fits[order],
            }
        )

    def masks(self, fields: Fields) -> tuple[Bools, Bools]:
        """Which rows and which categories have these fields, and those that are set."""
        (rows, here), (more, there) = (self.space.masks(each, self.categories) for each in (self.ways_fixed, fields))
        return rows & more, here & there

    def _row_of(self, scenario: Scenario) -> tuple[int, int] | None:
        """Row and category of a plan in the space; None where it is not in it."""
        plan = scenario.plan
        others = [name for name in ParallelPlan.model_fields if name not in (*FIELDS, "uneven_layers")]
        base = base_plan(self.space.scenario)
        row = self.space.row_of(plan)
        ours = sharding_fields(plan.zero_stage, self.space.scenario.plan)
        kept = {name: ours.get(name, getattr(base, name)) for name in others}
        if row is None or any(getattr(plan, name) != value for name, value in kept.items()):
            return None
        if recompute_word(plan, scenario.model) == "full":  # so many layers of a stage that these are all
            plan = plan.replace(recompute_method="uniform", recompute_num_layers=1)
        for number, each in enumerate(self.categories):
            fields = each.fields(self.space.scenario.plan)
            modules = set(fields.pop("recompute_modules"))
            same = all(value == getattr(plan, name) for name, value in fields.items())
            if same and modules == set(plan.recompute_modules):
                return row, number
        return None


def _word(value: Any) -> Any:
    """A value as a table has it: several names are one text."""
    return "+".join(value) if isinstance(value, tuple) else value


def pareto_front(seconds: Array, nbytes: Array, gpus: Array) -> Array:
    """Indices of the plans for which no other is as good in all three and better in one, by GPUs, then step time.

    Of plans that are equal in all three the first is kept.

    seconds, nbytes, gpus : [s], [bytes], [-]
    """
    front: list[int] = []
    kept = np.empty((0, 2))  # (seconds, bytes) of the front so far, all of fewer GPUs or as many
    for size in np.unique(gpus):
        here = np.flatnonzero(gpus == size)
        here = here[np.lexsort((nbytes[here], seconds[here]))]
        # In order of time, only what needs less than everything faster is left.
        least = np.minimum.accumulate(np.concatenate([[np.inf], nbytes[here][:-1]]))
        here = here[nbytes[here] < least]
        beaten = [bool(((kept[:, 0] <= seconds[place]) & (kept[:, 1] <= nbytes[place])).any()) for place in here]
        here = here[~np.array(beaten, dtype=bool)]
        front += here.tolist()
        kept = np.concatenate([kept, np.stack([seconds[here], nbytes[here]], axis=1)])
    return np.array(front, dtype=np.int64)


CLOSE = 0.03
"""Share of the memory below which the best plan is said to leave little of it free."""


def priced_schedules(space: Space) -> str:
    """Return the schedules that are priced and that the framework has: `1f1b or interleaved`."""
    return listed([name for name in SCHEDULES if space.has_schedule(name)] or SCHEDULES)


def proof_assumed(space: Space, confirmed: int, gap: float | None, stages: StagesSearched | None) -> str:
    """Return how sure it is that the best plan is the best; the exact engine ran `confirmed`, to a `gap`."""
    plan = f"plan under {priced_schedules(space)}{'' if stages is None else stages.others}"
    if not confirmed:
        return f"no {plan} fits"
    runs = f"({confirmed:,} exact run{'s' * (confirmed != 1)})"
    if gap is None:
        return f"a {plan} that was not priced may be better than the best {runs}"
    if gap == 0.0:
        return f"no other {plan} can be better than the best {runs}"
    return f"another {plan} may be up to {gap:.2%} better than the best {runs}"


def schedules_assumed(searched: Sequence[ScheduleBest], space: Space) -> list[str]:
    """Return which schedules were searched besides those that are priced, and which were not."""
    names = [each.schedule for each in searched]
    left = [each.name for each in schedules() if each.name not in (*names, *SCHEDULES) and not each.asynchronous]
    more = f"--schedules all also searches {len(left)} other schedules ({', '.join(left)})"
    if not names:
        return [more]
    proven, rest = ([each.schedule for each in searched if each.proven is sure] for sure in (True, False))
    stated = [f"a plan with {', '.join(rest)} may still be better: not all could be ruled out"] if rest else []
    if proven:
        stated.append(
            f"under {', '.join(proven)} the best plan of each schedule is proven, and later ones may be missing"
        )
    foreign = [each.schedule for each in searched if not space.has_schedule(each.schedule)]
    if foreign:
        words = framework_words(space.scenario.stack.framework)
        stated.append(f"{words} does not have {', '.join(foreign)}, so these are not among the best plans")
    if any(each.asynchronous for each in searched):
        stated.append("asynchronous schedules train another way (gradients come late): not among the best plans")
    if left:
        stated.append(more)
    return stated


def room_assumed(room: Sequence[str], objective: str) -> list[str]:
    """Return what plans might do to fit, and what they might not."""
    if objective == "memory_headroom":
        return [
            "only recompute none, selective (the scenario's modules) and full were tried, with nothing in host memory"
        ]
    words = {
        "modules": "recomputing any set of modules",
        "block": "recomputing some layers of every stage",
        "offload": "states or activations in host memory",
    }
    tried = " or ".join(words[way] for way in room)
    left = [way for way in words if way not in room]
    more = f"; --room {','.join((*room, *left))} also tries {' and '.join(words[way] for way in left)}" if left else ""
    if not room:
        return [f"only recompute none, selective (the scenario's modules) and full were tried{more}"]
    return [f"a plan that does not fit was also tried with {tried}, and its fastest form that fits was kept{more}"]


def stages_assumed(stages: StagesSearched, worth: float) -> str:
    """Return for how many plans other stages were tried, and whether a better one may exist."""
    varied = {
        "balanced layouts": stages.layouts,
        "chunks that hold different kinds of layers": stages.chunks,
    }
    words = " and ".join(name for name, on in varied.items() if on)
    tried = f"{words} did not look faster for any of the {stages.of:,} plans with a pipeline, so none was run exactly"
    if stages.runs:
        several = f"{stages.runs:,} exact run{'s' * (stages.runs > 1)}"
        tried = f"{words} were tried for {stages.plans:,} of the {stages.of:,} plans with a pipeline ({several})"
    if not gap_of(worth, stages.bound):
        return f"{tried}. No other can be better than the best plan"
    if not stages.left:
        return (
            f"{tried}. The other plans are slower, but these plans have layouts that were not tried and may be faster"
        )
    more = "; flopcast search --layouts tries more" if stages.likely else ""
    return f"{tried}. {stages.left:,} of these plans might still beat the best with layouts that were not tried{more}"


def framework_assumed(runs_on: str, scenario: Scenario) -> str:
    """Return whose plans were searched."""
    if runs_on:
        return f"only plans that {runs_on} can run were searched; --any-framework searches all"
    words = framework_words(scenario.stack.framework) or "this stack's framework"
    if rules_of_scenario(scenario):
        return f"plans were searched whether {words} can run them or not"
    return (
        f"which plans {words} can run is not known here, so all were searched, and it may be unable to run the "
        "best. -s plan.FIELD=VALUE keeps what it needs, such as plan.schedule=1f1b"
    )


def stack_assumed(space: Space) -> list[str]:
    """Return which settings of the stack leave out plans that would use them."""
    scenario = space.scenario
    dealt = {**dict(scenario.plan), "ep": 1 + (scenario.model.num_experts > 0), "pp": 1, "recompute": "none"}
    return [
        f"{space.runs_on} cannot run {rule.refusal(scenario, dealt)}, so plans that would use it were left out; "
        f"{rule.nearest} searches them"
        for rule in space.rules
        if "." in rule.field and not rule.holds(scenario, dealt)
    ]


def fixed_assumed(fixed: Mapping[str, Any]) -> str:
    """Return which fields of the plan were set, and which were searched."""
    free = [name for name in FIELDS if name not in fixed and name not in ROOM[1:]]
    searched = f"the search chose {', '.join(free)}, whatever the scenario's own plan says"
    if not fixed:
        return f"{searched}; -s plan.FIELD=VALUE keeps one"
    words = ", ".join(f"plan.{name} = {value_words(value)}" for name, value in fixed.items())
    return f"every plan has {words}, as set; {searched}"


def value_words(value: Any) -> str:
    """A value, or several of them, as a person writes it."""
    if isinstance(value, tuple):
        return " or ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def plans_assumed(space: Space) -> list[str]:
    """Return which degrees were searched, and what of the scenario's own plan was not."""
    model, plan, length = space.scenario.model, space.scenario.plan, space.scenario.training.sequence_length
    contexts, experts = (sorted(set(space.layouts[:, LAYOUT.index(name)].tolist())) for name in ("cp", "ep"))
    stated = [
        f"context parallelism was tried with cp {listed(contexts)}, which leaves pieces of {length // contexts[-1]:,} "
        "tokens or more; -s plan.cp=[…] names others"
    ]
    if model.num_experts:
        stated.append(f"expert parallelism was tried with ep {listed(experts)}; -s plan.ep=[…] names others")
        if plan.etp > 1:
            stated.append("each expert is cut over its tensor-parallel group (etp = tp), as by the scenario's plan")
    stated += _uneven(space)
    if plan.sequence_slices > 1:
        stated.append("sequence slices of the scenario's plan are not searched")
    return stated


def _uneven(space: Space) -> list[str]:
    """A sentence if some pipelines do not divide the layers evenly, and what would divide them."""
    plan, dealt = space.scenario.plan, dealt_layers(space.scenario.model, space.scenario.plan)
    depths = sorted(set(space.layouts[:, LAYOUT.index("pp")].tolist()))
    uneven = [pp for pp in depths if dealt % pp]
    if not uneven:
        return []
    remedies = []
    for counted in (("head_as_layer",), ("embedding_as_layer", "head_as_layer")):
        added = [name for name in counted if not getattr(plan, name)]
        divides = [pp for pp in USUAL_DEPTHS if added and (dealt + len(added)) % pp == 0]
        if divides:
            words = " ".join(f"--set plan.{name}=true" for name in added)
            remedies.append(f"; {words} makes {dealt + len(added)}, which pp {listed(divides)} divides")
    return [
        f"pp {listed(uneven)} does not divide the {dealt} layers: some ranks hold one more (uneven_layers), in one "
        f"chunk{''.join(remedies)}"
    ]


def best_assumed(best: Candidate, limit_bytes: float, objective: str) -> list[str]:
    """Return how near the best plan is to the end of the memory, and how sure its step time is.

    A limit below what the driver leaves of a GPU is a reserve that the user has already chosen.
    """
    if objective == "memory_headroom":
        return []
    low, high = best.answer.step_time_interval_s
    stated = [
        f"step times are estimates (the best plan's, 90 %: {show_time(low)} to {show_time(high)}): plans a few percent "
        "apart are worth a trial on the machine"
    ]
    free = limit_bytes - best.answer.largest.total
    if free < CLOSE * limit_bytes and limit_bytes >= best.answer.memory_available_bytes:
        stated.append(
            f"the best plan leaves {show(free, 'B')} of the memory free; a lower --memory-limit keeps a reserve"
        )
    return stated
