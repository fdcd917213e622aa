"""The best plan of schedules that no closed form describes, each over the whole space of layouts, by bounds.

Plans of a schedule are run on the exact engine in the order of what bounds them (`sim.search.bounds`). Those with the
same pipeline ranks, chunks and micro-batches have the same order, whose memory is looked at before they are run; where
an order repeats, those with any number of micro-batches keep as much. Layered plans are also listed with their bounds
(`layered_plans`), as a shortest run looks for the best of every batch and number of GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from sim.arrays import Array, Ints, PlanFloats
from sim.errors import InfeasiblePlan, ScheduleError, SpecError
from sim.pricing.deal import deal_of, dealt_layers
from sim.pricing.layouts import LAYOUT
from sim.schedules import Schedule, build_order, get_schedule
from sim.schedules.actions import W
from sim.schedules.build import played_first
from sim.schedules.registry import is_file, schedules
from sim.search.best_first import Found, Node, best_first
from sim.search.bounds import LeastSteps, layered_memory, layered_step_s, least_memory, memory_in_order
from sim.search.candidate import Candidate, ScheduleBest, worth_of
from sim.search.confirm import nothing_fits
from sim.search.fields import Fields, values_of
from sim.search.formula import Priced, join, plan_batch
from sim.search.layouts import divisors, find_layouts, pipeline_degrees, tensor_degrees
from sim.search.result import SearchResult
from sim.search.space import MOST_UNEVEN_CHUNKS, Category, Space, columns_of, shapes
from sim.specs import Scenario
from sim.specs.plan import LAYERED
from sim.units import show

MOST_RUNS = 400
"""Plans of a schedule that the exact engine runs at most, if not told otherwise."""
MOST_PLANS = 4_000_000
"""Plans of a schedule up to which it is searched: they are bounded all at once, which takes 900 bytes a plan."""
ALL = "all"
"""All registered schedules but the asynchronous ones, which train another way."""


def schedules_named(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names of schedules in `all`, `zb_v,zb_h1` or a sequence of such; each once.

    Raises ScheduleError, SpecError: there is no such schedule, none that can be searched, or no name.
    """
    said = words.split(",") if isinstance(words, str) else list(words)
    names: list[str] = []
    for name in (each.strip() for each in said):
        if not name:
            raise SpecError("--schedules takes names with commas between, such as zb_v,zb_h1, or all")
        all_of_them = [each.name for each in schedules() if not each.asynchronous] if name == ALL else []
        names += all_of_them or [searchable(name).name]
    return tuple(dict.fromkeys(names))


def search_schedules(
    result: SearchResult,
    names: str | Sequence[str] = ALL,
    *,
    most_runs: int = MOST_RUNS,
    progress: Callable[[int, int, str], None] | None = None,
) -> SearchResult:
    """Search the space of a result under each of some schedules.

    Plans are run on the exact engine in the order of a step time that they cannot go below, until none that is left can
    be better than the best found: then that is the best of its schedule.

    Parameters
    ----------
    result : SearchResult
        Its layouts, categories, objective and memory limit count.
    names : str or sequence of str
        As `zb_v,zb_h1`, or `all`.
    most_runs : int
        Plans of a schedule that the exact engine runs at most.
    progress : callable, optional
        Called with (schedules done, schedules in all, what is being done).

    Returns
    -------
    SearchResult
        With `schedules`, and the best over all in `best`, but for schedules that the framework does not have.

    Raises
    ------
    ScheduleError, SpecError
        No such schedule.
    InfeasiblePlan
        The result has no plan that fits, nor have these schedules.
    """
    if most_runs < 1:
        raise SpecError(f"most_runs = {most_runs} must be at least 1")
    wanted, bests, candidates = schedules_named(names), list[ScheduleBest](), list(result.best)
    for number, name in enumerate(wanted):
        if progress is not None:
            progress(number, len(wanted), name)
        best, ran = search_under(result, name, {}, most_runs)
        bests.append(best)
        candidates += ran if result.space.has_schedule(name) else ()
    if not candidates:
        raise InfeasiblePlan(f"{nothing_fits(result)}; nor was a plan found that fits under {', '.join(wanted)}")
    ordered = tuple(sorted(bests, key=lambda each: each.best.worth(result.objective) if each.best else np.inf))
    # Each plan once, and of equals first those that need least memory.
    ranked = sorted(candidates, key=lambda each: (round(each.worth(result.objective), 9), each.memory_bytes))
    once = dict[object, Candidate]()
    for each in ranked:
        once.setdefault((each.scenario.plan, each.scenario.stack), each)
    return replace(result, schedules=ordered, best=tuple(once.values())[: result.top])


def search_under(
    result: SearchResult, schedule: str, named: Fields, most_runs: int = MOST_RUNS
) -> tuple[ScheduleBest, Sequence[Candidate]]:
    """The best plan of a schedule among those with some fields, and all that were run and fit.

    Raises ScheduleError: no such schedule.
    """
    spaces = spaces_under(replace(result.space, fixed={**result.space.fixed, **named}), schedule)
    plans, limit = sum(each.num_plans for each in spaces), show(result.memory_limit_bytes, "B")
    if plans > MOST_PLANS:
        too_many = (
            f"not searched: its {plans:,} plans are more than {MOST_PLANS:,}, which are bounded at once; ask "
            "for fewer (--gpus, -s plan.tp=[…])"
        )
        return ScheduleBest(schedule, Found(plans=plans, bound=0.0), too_many), ()
    parts = [BoundedPlans(each, result.objective, result.memory_limit_bytes) for each in spaces]
    nodes = (node for number, part in enumerate(parts) for node in part.nodes(number))
    found, reason = best_first(nodes, Found[Candidate](most=most_runs, plans=plans)), None
    if not plans:
        reason = "no plan of the space keeps its rules"
    elif not found.proven:
        reason = f"none of the {found.runs} plans that were run fits in {limit}"
    elif not found.ran:
        leanest = show(min(float(part.nbytes.min()) for part in parts), "B")
        reason = f"none of its {plans:,} plans fits in {limit}; the leanest needs {leanest} or more"
    return ScheduleBest(schedule, found.with_best(), None if found.ran else reason), found.best


def searchable(name: str) -> Schedule:
    """A schedule of which the best plan can be looked for.

    Raises ScheduleError: there is none of this name, it trains in another way, or it is a file, which has one size.
    """
    chosen = get_schedule(name)
    if chosen.asynchronous or is_file(name):
        why = "trains in another way (gradients come late)" if chosen.asynchronous else "is the grid of one size"
        raise ScheduleError(f"schedule {name} {why}, so it is not searched; flopcast estimate prices plans of it")
    return chosen


SLICES = (2, 4, 8)
"""Parts of a sequence that are tried under a schedule that cuts sequences."""


def spaces_under(space: Space, name: str) -> list[Space]:
    """The space under a schedule, once for each number of sequence slices; those that have plans.

    Raises ScheduleError: there is no such schedule, or none that can be searched.
    """
    chosen, scenario = searchable(name), space.scenario
    length, names = scenario.training.sequence_length, (chosen.name,)
    slices = [each for each in SLICES if length % each == 0] if "slices" in chosen.options else [1]
    of_slices = {each: columns_of(scenario, space.layouts, partial(shapes, scenario, names, each)) for each in slices}
    found = [replace(space, columns=columns, schedules=names, slices=each) for each, columns in of_slices.items()]
    return [each for each in found if each.num_plans]


class BoundedPlans:
    """All plans of a space under one schedule.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    """

    def __init__(self, space: Space, objective: str, limit: float) -> None:
        self.space, self.objective, self.limit = space, objective, limit
        self.schedule = get_schedule(space.schedules[0])
        self.category, self.row = space.plans
        self.batch = plan_batch(space, self.category, self.row)
        self.least = LeastSteps(self.batch, space.slices)
        self.seconds, self.nbytes = self.least.step_s.copy(), least_memory(self.batch)
        self._num_gpus = space.columns.num_gpus[self.row]
        self._options = {"slices": space.slices} if "slices" in self.schedule.options else {}
        self.order_of = self._order_of_rows()[self.row]
        self._grouped = np.argsort(self.order_of, kind="stable")
        self._begins = np.searchsorted(self.order_of[self._grouped], np.arange(self.order_of.max(initial=-1) + 2))

    def _order_of_rows(self) -> Ints:
        """Which order each row has: those with the same ranks, chunks and micro-batches that are played share one."""

        def played(pp: int, chunks: int, count: int) -> tuple[int, int, int]:
            if self.schedule.period is not None:
                period = self.schedule.period(pp, chunks, **self._options)
                kept = played_first(period, pp)
                count = min(count, kept + (count - kept) % period)
            return pp, chunks, count

        columns = self.space.columns
        sizes = np.stack([columns.pp, columns.num_chunks, self.space.num_microbatches])
        distinct, size = np.unique(sizes, axis=1, return_inverse=True)
        _, order = np.unique([played(*each) for each in distinct.T.tolist()], axis=0, return_inverse=True)
        return np.asarray(order.ravel()[size.ravel()])

    def scenario_of(self, plan: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        return self.space.scenario_of(int(self.row[plan]), self.space.categories[int(self.category[plan])])

    def nodes(self, number: int) -> Iterator[Node[Candidate]]:
        """Yield the orders of plans that may fit, by the lowest bound of each; then the plans that fit in them.

        number : of these plans among those of the schedule, which decides between equals.
        """
        least = np.full(len(self._begins) - 1, np.inf)
        np.minimum.at(least, self.order_of, self.score())
        for order in np.flatnonzero(np.isfinite(least)).tolist():
            yield (float(least[order]), 0.0, number, order), partial(self._look_closer, number, order)

    def _look_closer(self, number: int, order: int, found: Found[Candidate]) -> Iterator[Node[Candidate]]:
        fits = self.weigh(order)
        for *key, plan in zip(self.score(fits).tolist(), self.nbytes[fits].tolist(), fits.tolist(), strict=True):
            yield (*key, number, order, plan), partial(self._run, plan)

    def _run(self, plan: int, found: Found[Candidate]) -> tuple[()]:
        try:
            ran = Candidate.run(self.scenario_of(plan), float(self.seconds[plan]))
            found.record((ran.worth(self.objective), ran) if ran.memory_bytes <= self.limit else None)
        except ScheduleError:  # too many actions to be played
            found.record(None)
        return ()

    def score(self, plans: Array | slice = slice(None)) -> Array:
        """What the objective makes smallest, or what it cannot go below; infinite where a plan does not fit."""
        score = worth_of(self.objective, self.seconds[plans], self._num_gpus[plans])
        return np.asarray(np.where(self.nbytes[plans] <= self.limit, score, np.inf))

    def weigh(self, order: int) -> Ints:
        """Look at the memory that plans need in their order, or in the leanest that the schedule may choose for them;
        those that fit."""
        here = self._grouped[self._begins[order] : self._begins[order + 1]]
        here = here[np.isfinite(self.score(here))]
        candidates = range(len(self.schedule.candidates)) or (None,)
        try:
            seconds, nbytes = zip(*(self._in_order(here, candidate) for candidate in candidates), strict=True)
        except ScheduleError:  # too many actions to be played, for an estimate too
            seconds, nbytes = ([0.0],), ([np.inf],)
        self.nbytes[here] = np.maximum(self.nbytes[here], np.min(nbytes, axis=0))
        self.seconds[here] = np.maximum(self.seconds[here], np.min(seconds, axis=0))
        return np.asarray(here[np.isfinite(self.score(here))])

    def _in_order(self, plans: Ints, candidate: int | None) -> tuple[PlanFloats, PlanFloats]:
        """Least step and memory of plans in the order that all of them have, or in a candidate for it.  [s], [bytes]"""
        scenario = self.scenario_of(int(plans[0]))
        plan, options = scenario.plan, self._options if candidate is None else {**self._options, "candidate": candidate}
        size = plan.pp, plan.num_chunks, scenario.num_microbatches
        order = build_order(self.schedule.name, *size, fold=True, **options)
        deal = deal_of(scenario.model, plan, order.rank_of_stage, order.copies)
        floating = candidate is not None and bool((order.kind == W).any())
        return self.least.keeping(plans, order), memory_in_order(self.batch.take(plans), order, deal, floating)


AT_ONCE = 50_000
"""Plans that are bounded together."""


def layered_plans(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    fixed: Fields | None = None,
) -> SearchResult:
    """Every layered plan that fits in memory; the step times of the table are what steps cannot go below.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    fixed : mapping, optional
        Fields that every plan must have, each with its value or a tuple of values. Default: degrees are those of
        `sim.search.search`, but for tensor-parallel degrees, which divide NVLink domains or fill them, and pipelines of
        every depth; nothing is in host memory.

    Notes
    -----
    At least as many micro-batches as pipeline ranks: with fewer the ranks only wait for each other. Where the ranks do
    not divide the layers, chunks of breadth-first orders hold one more or one less.
    """
    begun, domain, fixed = time.perf_counter(), scenario.cluster.nvlink_domain_gpus, fixed or {}
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    depths = range(1, dealt_layers(scenario.model, scenario.plan))
    try:
        layouts = find_layouts(scenario, gpus, fixed, {"tp": whole, "pp": depths})
    except InfeasiblePlan:
        layouts = np.empty((0, len(LAYOUT)), dtype=np.int64)
    hosted, scoped = fixed.get("offloaded_layers", 0), scenario.stack.cuda_graph_scope
    choices = product(("none", "selective", *(() if scoped else ("full",))), range(4))
    categories = tuple(Category.of(scenario.plan, *each, offloaded_layers=hosted) for each in choices)
    columns = columns_of(
        scenario, layouts, partial(_shapes, scenario, [*pipeline_degrees(scenario), *values_of(fixed, "pp")])
    )
    space = Space(scenario, layouts, columns, categories, fixed=fixed, schedules=LAYERED)
    parts = list(_bounded(space)) if space.num_plans else []
    none = Priced(*np.empty((2, 0), dtype=np.int64), *np.empty((2, 0)))
    prices, plans = join([none, *(priced for _, priced in parts)]), sum(looked_at for looked_at, _ in parts)
    limit = scenario.cluster.gpu.usable_bytes * (1 + 1e-9)
    return SearchResult(space, "step_time", limit, categories, prices, plans, time.perf_counter() - begun)


def _shapes(scenario: Scenario, usual: Sequence[int], pp: int, per_replica: int) -> Array:
    """`Shapes` of layered orders: modular where each stage is a layer, else breadth-first.

    usual : pipeline ranks over which layers may be dealt unevenly.
    """
    dealt = dealt_layers(scenario.model, scenario.plan)
    whole, rounds = dealt % pp == 0, -(-dealt // pp)
    chunks = divisors(rounds)[1:] if whole else [*range(2, 1 + MOST_UNEVEN_CHUNKS)] if pp in usual else []
    kinds = [(LAYERED.index("breadth_first"), v) for v in chunks if v < rounds and pp * v < dealt]
    kinds.append((LAYERED.index("modular"), rounds))
    rows = [(size, *kind) for size in divisors(per_replica) if per_replica // size >= pp for kind in kinds]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _bounded(space: Space) -> Iterator[tuple[int, Priced]]:
    """Yield how many plans of a space were looked at; and those that fit, with their bounds and memory."""
    scenario, columns, limit = space.scenario, space.columns, space.scenario.cluster.gpu.usable_bytes * (1 + 1e-9)
    category, row = space.plans
    batch = plan_batch(space, category, row)
    layouts = batch.layouts
    shared = (layouts.data.size > 1) | (layouts.expert_data.size > 1) & bool(scenario.model.num_experts)
    kept = np.flatnonzero(shared[batch.layout] | (batch.zero_stage == 0))
    batch, category, row = batch.take(kept), category[kept], row[kept]
    few = {pp: np.flatnonzero(layouts.pp == pp) for pp in np.unique(layouts.pp).tolist()}
    of_depth = {pp: layouts.take(places) for pp, places in few.items()}
    # The stages and ranks of plans with as many ranks and chunks are dealt once.
    shape = (columns.pp * (columns.num_chunks.max() + 1) + columns.num_chunks) * len(LAYERED) + columns.schedule
    order = np.argsort(shape[row], kind="stable")
    _, begins = np.unique(shape[row][order], return_index=True)
    for places in np.split(order, begins[1:]):
        plan = space.scenario_of(int(row[places[0]]), space.categories[category[places[0]]]).plan
        deal = deal_of(scenario.model, plan)
        for here in np.array_split(places, -(-len(places) // AT_ONCE)):
            layout = np.searchsorted(few[plan.pp], batch.layout[here])
            some = replace(batch.take(here), layouts=of_depth[plan.pp], layout=layout)
            # Memory first: most plans of a large model do not fit, and need no price.
            needed = layered_memory(some, deal)
            fits = np.flatnonzero(needed <= limit)
            bound = layered_step_s(some.take(fits), deal) if len(fits) else np.empty(0)
            yield len(here), Priced(category[here[fits]], row[here[fits]], bound, needed[fits])
