"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Ints, PlanFloats
from sim.estimate import Estimate, estimate
from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import LAYOUT, place_layouts
from sim.search.confirm import Found, best_first
from sim.search.layered_deals import Deals, deals_at, deals_of, least_step_s, memory_bytes
from sim.search.plans.layouts import (
    MOST_UNEVEN_CHUNKS,
    Category,
    Columns,
    context_degrees,
    divisors,
    expert_degrees,
    parts_of_experts,
    pipeline_degrees,
    shards_evenly,
    tensor_degrees,
)
from sim.search.plans.space import Space, recomputes_of
from sim.search.prices.formula import plan_batch
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED


@dataclass(frozen=True)
class LayeredTable:
    """Every layered plan of some batches and numbers of GPUs, that fits in memory.

    spaces : one of each batch.
    space, row, category : of every plan, which of them, and its row and the place of its category there.
    bound_s : time that its step cannot go below. [s]
    memory_bytes : of the fullest rank. [bytes]
    plans : looked at, with those that do not fit.
    """

    spaces: tuple[Space, ...]
    space: Ints
    row: Ints
    category: Ints
    bound_s: PlanFloats
    memory_bytes: PlanFloats
    plans: int

    def __len__(self) -> int:
        return len(self.row)

    def column(self, name: str) -> Ints:
        """A column of the plans' space: a degree, num_chunks, microbatch_size or num_gpus."""
        return self._gathered([getattr(each.columns, name) for each in self.spaces])

    @property
    def batch(self) -> Ints:
        """Sequences of each plan's step."""
        sizes = [each.scenario.training.global_batch_size for each in self.spaces]
        return np.array(sizes, dtype=np.int64)[self.space]

    @property
    def num_microbatches(self) -> Ints:
        """Micro-batches of each plan's pipelines in a step."""
        return self._gathered([each.num_microbatches for each in self.spaces])

    def _gathered(self, of_spaces: Sequence[Ints]) -> Ints:
        found = np.zeros(len(self), dtype=np.int64)
        for number, values in enumerate(of_spaces):
            here = self.space == number
            found[here] = values[self.row[here]]
        return found

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        space = self.spaces[int(self.space[place])]
        return space.scenario_of(int(self.row[place]), space.categories[int(self.category[place])])


def best_of(
    table: LayeredTable, bound: PlanFloats, share: Callable[[int], float], top: int = 1
) -> tuple[list[Estimate], int]:
    """Run plans in the order of their bounds until no other can be among the `top` best; and how many were run.

    `bound` is what none goes below of its step time times its `share`; infinite for those to be left out.
    """

    def run(place: int) -> tuple[float, Estimate] | None:
        answer = estimate(table.scenario_at(place))
        return (answer.step_time_s * share(place), answer) if answer.fits else None

    order = np.argsort(bound, kind="stable")[: np.count_nonzero(np.isfinite(bound))].tolist()
    found = best_first(((float(bound[place]), partial(run, place)) for place in order), Found[Estimate](top))
    return list(found.best[:top]), found.runs


def layered_table(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    tensor: Sequence[int] | None = None,
    context: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    experts: Sequence[int] | None = None,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    zero_stages: Sequence[int] = (0, 1, 2, 3),
    offloaded_layers: int = 0,
    progress: Callable[[], object] | None = None,
) -> LayeredTable:
    """Bound and memory-check every layered plan.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    tensor, context, pipeline, experts : sequences of int, optional
        Degrees to try. Default: tensor-parallel degrees that divide NVLink domains or fill them; of the others those of
        `sim.search.search`, and of modular pipelines every depth. Experts are whole or cut as the scenario's are.
    recomputes, sequence_parallel, zero_stages : sequences
        Choices to try.
    offloaded_layers : int
        Layers of the model whose activations wait in host memory.
    progress : callable, optional
        Called as layouts are placed and before plans of a category are bounded.

    Notes
    -----
    At least as many micro-batches as pipeline ranks: with fewer the ranks only wait for each other. Where the ranks do
    not divide the layers, chunks of breadth-first orders hold one more or one less.
    """
    length, domain = scenario.training.sequence_length, scenario.cluster.nvlink_domain_gpus
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    pieces = [cp for cp in context or context_degrees(length, scenario.plan.cp) if length % cp == 0]
    cuts = [*product((tp for tp in whole if tensor is None or tp in tensor), pieces)]
    degrees = [ep for ep in expert_degrees(scenario) if experts is None or ep in experts]
    shapes = _shapes(scenario, pipeline)
    categories = tuple(
        Category(*each, offloaded_layers=offloaded_layers)
        for each in product(recomputes_of(scenario, recomputes), sequence_parallel, zero_stages)
    )
    parts, plans, spaces = list[tuple[Array, ...]](), 0, list[Space]()
    for batch in batches or (scenario.training.global_batch_size,):
        given = _with_batch(scenario, batch)
        shape, columns = _rows(given, shapes, cuts, degrees, gpus)
        if not len(columns):
            continue
        deals = deals_of(scenario.model, shapes)
        # Ranks of several shapes hold the same; layouts are those of their ranks.
        numbers = np.stack([*(getattr(columns, name) for name in LAYOUT), deals.same_ranks[shape]])
        code = np.ravel_multi_index(tuple(numbers), tuple(numbers.max(axis=1) + 1))
        _, first, layout = np.unique(code, return_index=True, return_inverse=True)
        columns = columns.with_layout(layout.ravel())
        space = Space(given, numbers[:5, first].T, columns, categories, schedules=LAYERED)
        found, looked_at = _fitting(space, deals, shape, deals_at(deals, shape[first]), progress)
        parts += [(np.full(len(rows), len(spaces)), rows, *of_rows) for rows, *of_rows in found]
        plans, spaces = plans + looked_at, [*spaces, space]
    none = (*np.empty((3, 0), dtype=np.int64), *np.empty((2, 0)))
    number, row, category, bound, memory = (np.concatenate(each) for each in zip(none, *parts, strict=True))
    return LayeredTable(tuple(spaces), number, row, category, bound, memory, plans)


def _with_batch(scenario: Scenario, batch: int) -> Scenario:
    """The scenario with another batch, and a plan that suits any."""
    if batch == scenario.training.global_batch_size:
        return scenario
    plan = scenario.plan.replace(dp=scenario.plan.sharding_group or 1, ep=1, microbatch_size=1)
    return scenario.replace(training=scenario.training.replace(global_batch_size=batch), plan=plan)


def _fitting(
    space: Space, deals: Deals, shape: Ints, of_layouts: Deals, progress: Callable[[], object] | None = None
) -> tuple[list[tuple[Array, ...]], int]:
    """(rows, their category, bounds, memory) of the plans of a space that fit; and how many were looked at."""
    scenario = space.scenario
    layouts = place_layouts(scenario, space.layouts, progress)
    shared = (layouts.data.size > 1) | (layouts.expert_data.size > 1) & bool(scenario.model.num_experts)
    shares_state = shared[space.columns.layout]
    found, looked_at = list[tuple[Array, ...]](), 0
    for number, each in enumerate(space.categories):
        rows = np.flatnonzero(space.searched[each.sequence_parallel] & (shares_state | (each.zero_stage == 0)))
        if not len(rows):
            continue
        if progress is not None:
            progress()
        batch = plan_batch(space, layouts, rows, np.full(len(rows), number))
        # Memory first: most plans of a large model do not fit, and need no price.
        needed = memory_bytes(batch, of_layouts)
        looked_at += len(rows)
        fits = np.flatnonzero(needed <= scenario.cluster.gpu.usable_bytes * (1 + 1e-9))
        if len(fits):
            bound = least_step_s(batch.take(fits), deals_at(deals, shape[rows[fits]]), of_layouts)
            found.append((rows[fits], np.full(len(fits), number), bound, needed[fits]))
    return found, looked_at


def _shapes(scenario: Scenario, pipeline: Sequence[int] | None) -> tuple[ParallelPlan, ...]:
    """Every number of ranks and chunks: modular where each stage is a layer, else breadth-first."""
    plan, dealt = scenario.plan, dealt_layers(scenario.model, scenario.plan)
    usual, found = pipeline_degrees(scenario), []
    fixed: dict[str, Any] = {"embedding_as_layer": plan.embedding_as_layer, "head_as_layer": plan.head_as_layer}
    for pp in range(1, dealt):
        if pipeline is not None and pp not in pipeline:
            continue
        whole, rounds = dealt % pp == 0, -(-dealt // pp)
        chunks = [v for v in divisors(rounds) if v > 1] if whole else [*range(2, 1 + MOST_UNEVEN_CHUNKS)]
        if whole or pipeline is not None or pp in usual:
            found += [
                ParallelPlan(pp=pp, num_chunks=v, schedule="breadth_first", uneven_layers=not whole, **fixed)
                for v in chunks
                if v < rounds and pp * v < dealt
            ]
        found.append(ParallelPlan(pp=pp, num_chunks=rounds, schedule="modular", **fixed))
    return tuple(found)


def _rows(
    scenario: Scenario,
    shapes: Sequence[ParallelPlan],
    cuts: Sequence[tuple[int, int]],
    experts: Sequence[int],
    gpus: tuple[int, int],
) -> tuple[Ints, Columns]:
    """Every shape with every cut of layers and batch that keeps the rules: its place among the shapes, and columns."""
    batch, most = scenario.training.global_batch_size, min(gpus[1], scenario.cluster.num_gpus)
    shares = [(dp, size) for dp in divisors(batch) if dp <= most for size in divisors(batch // dp)]
    kinds = [(each.pp, each.num_chunks, LAYERED.index(each.schedule)) for each in shapes]
    ranks = np.array(kinds, dtype=np.int64).reshape(-1, 3)
    cut, share = np.array(cuts, dtype=np.int64).reshape(-1, 2), np.array(shares, dtype=np.int64)
    number, first, second = (each.ravel() for each in np.indices((len(ranks), len(cut), len(share))))
    (pp, chunks, schedule), (tp, cp), (dp, size) = ranks[number].T, cut[first].T, share[second].T
    used = tp * cp * pp * dp
    kept = np.flatnonzero((used >= gpus[0]) & (used <= most) & (batch // (dp * size) >= pp)).repeat(len(experts))
    columns = Columns(tp, cp, pp, dp, np.ones_like(tp), chunks, size, schedule, number).take(kept)
    columns = replace(columns, ep=np.tile(np.array(experts, dtype=np.int64), len(kept) // max(1, len(experts))))
    layouts = np.stack([getattr(columns, name) for name in LAYOUT], axis=1)
    divides = columns.tp * columns.cp * columns.dp % parts_of_experts(layouts, scenario.plan) == 0
    columns = columns.take(np.flatnonzero(divides & shards_evenly(layouts, scenario.plan)))
    return columns.layout, columns
