"""Plans whose stages hold other layers than an even deal gives them, and the layout whose slowest stage is fastest.

The closed form prices layers that are dealt evenly to stages that are alike. Others are run on the exact engine, those
first that an even deal of their work would make fastest: interleaved in chunks that hold different kinds of layers,
with the layout whose slowest stage is fastest (`balanced_plans`), or with both. Each recomputes what makes it fit
first, of what the table has for it and for others, and keeps nothing on the host. No layout makes a rank do less than
the mean of all ranks, so that is what bounds those that were not run.

Embedding, layers, multi-token prediction and head stand in one row, which is cut into stages. The cut whose slowest
stage is fastest follows from the blocks' seconds by dynamic programming; of several, the one whose stages differ least.
Stages of like layers that differ by one may still change places, which moves a step by several percent: a few such
places are tried. What no cut goes below says how far it may be from the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from sim.arrays import Array, FloatArray, Floats, Ints, PlanFloats, distinct
from sim.costs.block import BACKWARD, FORWARD
from sim.errors import FlopcastError, SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.cells import plans_of
from sim.pricing.deal import dealt_layers, put_together, stages_alike
from sim.search.best_first import Found, best_first, gap_of, in_order
from sim.search.candidate import Candidate, StagesSearched, worth_of
from sim.search.fields import NUMBERS, SCHEDULES, Fields, has_fields, values_of
from sim.search.formula import Priced, Rows
from sim.search.layouts import divisors
from sim.search.result import SearchResult
from sim.search.space import Category
from sim.specs import ParallelPlan, Scenario
from sim.specs.framework_plans import PlanRule, broken_rules
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD, deal_stages

MOST_RUNS, UNASKED_RUNS = 600, 40
"""Plans that the exact engine runs at most; and where layouts were not asked for."""
AT_ONCE = 20_000
"""Plans whose cells are priced together."""


def has_layouts(scenario: Scenario, rules: Sequence[PlanRule], fixed: Fields) -> bool:
    """Whether a framework is known to take a layout that says what each stage holds, and no such field is set."""
    if {"embedding_as_layer", "head_as_layer", "uneven_layers"} & {*fixed}:
        return False
    plan = {**dict(scenario.plan), "pp": 2, "num_chunks": 1, "pipeline_layout": "Et|tL"}
    return bool(rules) and all(bool(rule.holds(scenario, plan)) for rule in rules if "pipeline_layout" in rule.names)


def search_stages(result: SearchResult, *, layouts: bool = True, likely: bool = False) -> SearchResult:
    """Give the plans of a result balanced layouts, and chunks whose stages are not alike.

    Parameters
    ----------
    layouts : bool
        Whether layouts are varied too; chunks always are, where the model has any such.
    likely : bool
        Only plans whose ranks would make them faster than the best if they had equal work, and `UNASKED_RUNS` runs at
        most; else all that their bounds allow to be.

    Returns
    -------
    SearchResult
        With the best of them among its best, and the scenario's own plan where it has a layout.
    """
    unlike = _unlike(result)
    if not (layouts or unlike):
        return result
    score, bound, place = _promising(result, unlike)
    found = Found[Candidate](most=UNASKED_RUNS if likely else MOST_RUNS, plans=len(place))
    own = _own(result) if layouts else ()
    found.ran += [(each.worth(result.objective), each) for each in (*result.best, *own)]
    tried = np.zeros(len(place), dtype=bool)
    seen = set[tuple[ParallelPlan, int | None]]()

    def visit(number: int, found: Found[Candidate]) -> None:
        """Run a plan with other stages; of its balanced layouts further ones where the first is better than the best,
        since no other place of its longer stages gains much."""
        if bound[number] >= found.worst:
            return
        tried[number] = True
        base, better = result.scenario_at(int(place[number])), False
        ways = _ways(result, int(place[number]))
        for changed in _staged(base, layouts, unlike.get(base.plan.pp, ())):
            if (key := (changed[0].plan, changed[1])) in seen:
                continue
            if changed[1] and not better:
                continue
            seen.add(key)
            candidate, runs = _fitting(result, *changed, ways, found.worst)
            better = candidate is not None
            found.runs += runs
            found.ran += [] if candidate is None else [(candidate.worth(result.objective), candidate)]

    # The most promising plans come first. What they promise is no bound, and where all that might be better are wanted,
    # the lowest bound of those that are left says whether any is.
    best_first(in_order(score if likely else np.minimum.accumulate(bound[::-1])[::-1], visit), found)
    left = int(np.count_nonzero(~tried & (bound < found.worst)))
    found.bound = float(bound.min(initial=np.inf))
    searched = StagesSearched(found.with_best(), layouts, bool(unlike), int(np.count_nonzero(tried)), left, likely)
    best = tuple({each.scenario.plan: each for each in found.best}.values())
    return replace(result, best=best[: result.top], stages=searched)


def _own(result: SearchResult) -> tuple[Candidate, ...]:
    """The scenario's own plan, where it has a layout and is one of those that are searched, but for that."""
    space, scenario = result.space, result.space.scenario
    plan = scenario.plan
    hosted = plan.optimizer_offload or plan.offloaded_layers
    if scenario.is_open or not plan.pipeline_layout or hosted or not space.cuts_experts_as(plan):
        return ()
    numbers = {name: getattr(plan, name) for name in (*NUMBERS, "schedule")}
    if (
        not space.masks(numbers, ())[0].any()
        or not has_fields(plan, space.fixed)
        or broken_rules(scenario, space.rules)
    ):
        return ()
    candidate = Candidate.run(scenario)
    return (candidate,) if candidate.memory_bytes <= result.memory_limit_bytes else ()


def _unlike(result: SearchResult) -> dict[int, tuple[int, ...]]:
    """The numbers of chunks whose stages have as many layers each, but not of the same kinds, by number of pipeline
    ranks; without those that have none."""
    space, model, plan = result.space, result.space.scenario.model, result.space.scenario.plan
    if "interleaved" not in (values_of(space.fixed, "schedule") or SCHEDULES):
        return {}
    kept, dealt, found = values_of(space.fixed, "num_chunks"), dealt_layers(model, plan), dict[int, tuple[int, ...]]()
    for pp in distinct(space.columns.pp[space.columns.pp > 1]).tolist():
        several = divisors(dealt // pp)[1:] if dealt % pp == 0 else ()
        unlike = [each for each in several if not stages_alike(model, plan, pp, each)]
        if numbers := tuple(each for each in unlike if not kept or each in kept):
            found[pp] = numbers
    return found


def _promising(result: SearchResult, unlike: Mapping[int, Sequence[int]]) -> tuple[Floats, Floats, Ints]:
    """Plans with a pipeline that recompute nothing, and fit so or in some other way: the score of the fastest way if
    their ranks had equal work, what no layout goes below, and their places; in the order of the first."""
    space, columns, prices = result.space, result.space.columns, result.prices
    plain = np.array([space.categories.index(Category("none", each.zero_stage)) for each in result.categories])
    rows = (columns.pp > 1) & (columns.schedule != SCHEDULES.index("gpipe"))
    code = plain[prices.category] * len(columns) + prices.row
    fits = np.flatnonzero(result.fits & rows[prices.row])
    fits = fits[np.lexsort((prices.step_time_s[fits], code[fits]))]
    codes, first = np.unique(code[fits], return_index=True)
    seconds = prices.step_time_s[fits][first]
    own = np.flatnonzero((prices.category == plain[prices.category]) & rows[prices.row])
    own = own[np.argsort(code[own])]
    place = own[np.searchsorted(code[own], codes)]
    parts = [np.empty((2, 0))]
    for begin in range(0, len(place), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        parts.append(_balanced(result, prices.take(place[some]), seconds[some], list(unlike)))
    score, bound = np.concatenate(parts, axis=1)
    order = np.argsort(score, kind="stable")
    return score[order], bound[order], place[order]


def _balanced(result: SearchResult, some: Priced, dealt_s: Floats, chunked: Sequence[int]) -> Array:
    """Score of plans whose ranks all have equal work, about; and what none of their layouts goes below.

    Parameters
    ----------
    dealt_s : array
        Of each plan, what the fastest way in which it fits takes with layers that are dealt evenly. [s]
    chunked : sequence of int
        Pipeline ranks whose plans in one chunk are also given several.

    Notes
    -----
    In one chunk a rank with the work w of the average or more waits for the first micro-batch to come back to it, when
    it has done at most one forward for each rank behind it: sum + (m − 1) w − (p − 1) f. In several it may always have
    work, which is m w.
    """
    rows, _ = Rows.of(result.space, some.row, [Category("none", 0)])
    columns, count = rows.columns, rows.batch.num_microbatches[0, 0]
    mean, busiest, share = _rank_work(rows)
    alone = (columns.num_chunks == 1) & ~(np.isin(columns.pp, chunked) & (count % columns.pp == 0))
    ramp = np.where(alone, (columns.pp - 1) * (1.0 - share), 0.0)
    least = (count + np.where(count >= columns.pp, ramp, 0.0)) * mean
    seconds = np.round([dealt_s * mean / busiest, least], 9)
    return np.asarray(worth_of(result.objective, seconds, columns.num_gpus))


def _rank_work(rows: Rows) -> tuple[PlanFloats, PlanFloats, PlanFloats]:
    """Forward and backward of one micro-batch, without ZeRO's traffic: on the average rank, and on the busiest; and
    the largest share of a block that is its forward. [s, s, -]"""
    batch, pp, more = rows.batch, rows.columns.pp, rows.columns.num_chunks - 1
    forward, backward = (table[:, 0, batch.way, batch.cell] for table in rows.prices.total_s[:2])
    both = forward + backward
    first, middle, last, *longer = put_together(rows.deal.stage_kinds, both)[:, 0, 0]
    longest = np.where(rows.longer > 0, longer[0], middle) if longer else middle
    busiest = np.max([first + more * middle, (1 + more) * longest * (pp > 2), last + more * middle], axis=0)
    (everything,) = (stage.part for stage in deal_stages(rows.scenario.model, ParallelPlan()))
    whole = put_together(np.array([everything]), both)[0, 0, 0]
    layers = np.array([(*np.zeros(FIRST_KIND), *everything[FIRST_KIND:])])
    for place in (FORWARD, BACKWARD):  # no rank hides more waits than all of them together
        leads = rows.prices.ahead_s[1:, place][:, :, batch.way, batch.cell]
        whole = whole - np.minimum(*(put_together(layers, each)[0, 0, 0] for each in leads))
    share = (forward / np.maximum(both, 1e-30)).max(axis=0)[0, 0]
    return np.asarray(whole / pp), np.asarray(busiest), np.asarray(share)


def _staged(base: Scenario, layouts: bool, chunks: Sequence[int]) -> Iterator[tuple[Scenario, int | None]]:
    """A plan with other chunks, and which of the balanced layouts its stages are to have; None: an even deal."""
    interleaved = [base.plan.replace(schedule="interleaved", num_chunks=each) for each in chunks]
    for plan in (base.plan, *(interleaved if base.num_microbatches % base.plan.pp == 0 else ())):
        for balanced in (None, *range(PLACES)) if layouts else (None,):
            if balanced is not None or plan is not base.plan:
                yield base.replace(plan=plan), balanced


def _fitting(
    result: SearchResult, scenario: Scenario, balanced: int | None, ways: Sequence[Category], ceiling: float
) -> tuple[Candidate | None, int]:
    """The plan in the first way in which it fits, if it is better than the ceiling; and the runs it took.

    ways : what runs again, in the order in which it is tried; first nothing.
    """
    ran: list[Candidate] = []
    for way in ways:
        found = _run(result, scenario, balanced, way)
        ran += [] if found is None else [found]
        if not ran or ran[-1].worth(result.objective) >= ceiling:  # most are too slow, whatever they recompute
            break
        fits = found is not None and found.memory_bytes <= result.memory_limit_bytes
        if fits and has_fields(ran[-1].scenario.plan, result.space.fixed_saving):
            return found, len(ran)
    return None, len(ran)


def _run(result: SearchResult, scenario: Scenario, balanced: int | None, way: Category) -> Candidate | None:
    """A plan on the exact engine; None where it breaks a rule, has fewer blocks than stages, fewer balanced layouts, or
    stages that were dealt so anyway."""
    try:
        here = even = scenario.replace(plan=scenario.plan.replace(**way.fields))
        if balanced is not None:
            layouts, _ = balanced_plans(even)
            here = layouts[balanced] if balanced < len(layouts) else even
            if deal_stages(here.model, here.plan) == deal_stages(even.model, even.plan):
                return None
        return None if broken_rules(here, result.space.rules) else Candidate.run(here)
    except FlopcastError:
        return None


def _ways(result: SearchResult, place: int) -> list[Category]:
    """What a plan that recomputes nothing may run again: first nothing, then what the table has for it, the fastest
    first, then the modules that other plans run again, and all layers at last."""
    prices, nothing = result.prices, result.categories[result.prices.category[place]]
    here = np.flatnonzero(prices.row == prices.row[place])
    own = prices.category[here[np.argsort(prices.step_time_s[here])]].tolist()
    others = sorted(result.categories, key=lambda way: len(way.runs_again))
    ways = dict.fromkeys((*map(result.categories.__getitem__, own), *(way for way in others if way.recompute_modules)))
    alike = [way for way in ways if replace(way, zero_stage=nothing.zero_stage) == way and way != nothing]
    there = [way for way in alike if not (way.optimizer_offload or way.offloaded_layers)]
    return [nothing, *sorted(there, key=lambda way: way == replace(nothing, recompute="full"))]


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """The balanced layout of a plan.

    layout : as `plan.pipeline_layout` takes it.
    answer : the plan with it. before : the plan as it was.
    bound_s : what a step takes at least, however the blocks are dealt to the stages in their order. [s]
    """

    layout: str
    answer: Estimate
    before: Estimate
    bound_s: float

    @property
    def gap(self) -> float:
        """Largest share by which another layout could be faster."""
        return gap_of(self.answer.step_time_s, self.bound_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.before.scenario.name,
            "pipeline_layout": self.layout,
            "step_time_s": self.answer.step_time_s,
            "step_time_before_s": self.before.step_time_s,
            "bound_s": self.bound_s,
            "gap": self.gap,
            "fits": self.answer.fits,
        }


def balance_layout(scenario: Scenario) -> LayoutFound:
    """The layout of a plan's stages whose slowest stage is fastest, run on the exact engine.

    Raises
    ------
    SpecError
        The plan has no pipeline, or more stages than there are blocks.
    """
    plan = scenario.plan
    if plan.num_stages == 1:
        raise SpecError("a layout deals layers to pipeline stages, and plan.pp is 1; set it above 1")
    balanced, bound = balanced_plans(scenario)
    answer = min(map(estimate, balanced), key=lambda each: (not each.fits, each.step_time_s))
    return LayoutFound(answer.scenario.plan.pipeline_layout, answer, estimate(scenario), bound)


def balanced_plans(scenario: Scenario) -> tuple[list[Scenario], float]:
    """The scenario with such layouts, `PLACES` at most, and what a step takes at least, however blocks are dealt.  [s]

    Raises SpecError: there are more stages than blocks.
    """
    plan = scenario.plan
    letters, seconds = _blocks(scenario)
    if plan.num_stages > len(letters):
        raise SpecError(
            f"{len(letters)} blocks (embedding, layers, head) cannot fill plan.pp · plan.num_chunks = {plan.pp} · "
            f"{plan.num_chunks} = {plan.num_stages} stages; lower one of them"
        )
    ends = cut_evenly(seconds, plan.num_stages)
    others = dict.fromkeys(("uneven_layers", "embedding_as_layer", "head_as_layer", "vocabulary_over_stages"), False)
    cuts = _long_stages_moved(seconds, ends, plan.pp)
    texts = [layout_text(["".join(letters[slice(*each)]) for each in pairwise((0, *cut))]) for cut in cuts]
    found = [scenario.replace(plan=plan.replace(**others, pipeline_layout=text)) for text in texts]
    # All micro-batches are done on the rank with the most work, which is no less than the mean; and where a rank has
    # one stage, on the slowest stage of the cut whose slowest is fastest.
    least = max(float(seconds.sum()) / plan.pp, float(seconds.max()))
    if plan.num_chunks == 1:
        least = max(float(seconds[slice(*each)].sum()) for each in pairwise((0, *ends)))
    return found, scenario.num_microbatches * least


def _blocks(scenario: Scenario) -> tuple[list[str], FloatArray]:
    """The model's blocks in their order, as letters, and what each takes of one micro-batch both ways.  [s]"""
    plans, model = plans_of(scenario), scenario.model
    forward, backward = plans.prices.total_s[:2]
    each = (forward + backward)[:, 0, 0, 0]
    kinds = [FIRST_KIND + model.layer_kinds.index(kind) for kind in model.kind_of_layer]
    mtp = [len(each) - 1] * model.num_mtp_layers
    letters = ["E", *"t" * model.num_layers, *"m" * model.num_mtp_layers, "L"]
    return letters, each[[EMBEDDING, *kinds, *mtp, HEAD]]


def cut_evenly(seconds: FloatArray, stages: int) -> tuple[int, ...]:
    """Where each stage ends: the largest sum as small as can be, then the sum of the squares.

    seconds : array over blocks
    """
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    count = len(seconds)
    sums = before[np.newaxis, :] - before[:, np.newaxis]  # of blocks from row to column
    sums[np.tril_indices(count + 1)] = np.inf  # no stage is empty
    largest = sums[0].copy()
    for _ in range(stages - 1):
        largest = np.maximum(largest[:, np.newaxis], sums).min(axis=0)
    allowed = np.where(sums <= largest[count] * (1 + 1e-12), sums**2, np.inf)
    least, came_from = allowed[0].copy(), []
    for _ in range(stages - 1):
        ways = least[:, np.newaxis] + allowed
        came_from.append(ways.argmin(axis=0))
        least = ways.min(axis=0)
    ends = [count]
    for origin in reversed(came_from):
        ends.append(int(origin[ends[-1]]))
    return tuple(reversed(ends))


PLACES = 4
"""Places of the longer stages that are tried at most."""


def _long_stages_moved(seconds: FloatArray, ends: tuple[int, ...], pp: int) -> list[tuple[int, ...]]:
    """Cuts that are as good by their slowest stage: those stages that hold one layer more follow each other, and the
    last of them lies on several ranks of the last chunk. Only the cut itself where blocks or stages differ otherwise.

    seconds : array over blocks
    """
    sizes = np.diff((0, *ends))
    inner, blocks = sizes[1:-1], seconds[sizes[0] : len(seconds) - sizes[-1]]
    if len(inner) == 0 or np.ptp(inner) != 1 or np.ptp(blocks) > 1e-9 * blocks.max():
        return [ends]
    number = np.count_nonzero(inner == inner.max())
    found = dict[tuple[int, ...], None]()
    for rank in (pp // 4, pp // 8, pp // 2, pp - 2):  # the later, the fewer micro-batches a stage keeps
        first = np.clip(len(sizes) - pp + rank - number, 0, len(inner) - number)
        moved = np.full(len(inner), inner.min())
        moved[first : first + number] += 1
        found[tuple(np.cumsum([sizes[0], *moved, sizes[-1]]).tolist())] = None
    return list(found)


def layout_text(stages: Sequence[str]) -> str:
    """The letters of stages as one layout, repetitions written as their number."""
    short = ("".join(letter * (many == 1) or f"{letter}*{many}" for letter, many in _runs(each)) for each in stages)
    *most, (last, many) = _runs(f"{each}|" for each in short)
    text = "".join(stage * (many == 1) or f"({stage})*{many}" for stage, many in most)
    return text + (last * many)[:-1]


def _runs(items: Iterable[str]) -> list[tuple[str, int]]:
    """Items that follow each other and are the same, as one with their number."""
    return [(item, len(list(run))) for item, run in groupby(items)]
