"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
The stages and ranks of a number of ranks and chunks are dealt once for all plans that have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Ints, Number, PlanFloats
from sim.engines.program import end_of_step
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, deal_of, dealt_layers, params_of
from sim.pricing.layouts import LAYOUT, place_layouts
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages, tied_reduction
from sim.pricing.zero import VisitSeconds
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
from sim.search.prices.formula import Priced, join, plan_batch
from sim.search.result import SearchResult
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED
from sim.work.layers import HEAD

AT_ONCE = 50_000
"""Plans that are bounded together."""


def layered_plans(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    tensor: Sequence[int] | None = None,
    context: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    experts: Sequence[int] | None = None,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    zero_stages: Sequence[int] = (0, 1, 2, 3),
    offloaded_layers: int = 0,
    progress: Callable[[], object] | None = None,
) -> SearchResult:
    """Every layered plan that fits in memory; the step times of the table are what steps cannot go below.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
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
    begun, domain = time.perf_counter(), scenario.cluster.nvlink_domain_gpus
    length, limit = scenario.training.sequence_length, scenario.cluster.gpu.usable_bytes * (1 + 1e-9)
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    pieces = [cp for cp in context or context_degrees(length, scenario.plan.cp) if length % cp == 0]
    cuts = [*product((tp for tp in whole if tensor is None or tp in tensor), pieces)]
    degrees = [ep for ep in expert_degrees(scenario) if experts is None or ep in experts]
    shapes = _shapes(scenario, pipeline)
    categories = tuple(
        Category.of(scenario.plan, *each, offloaded_layers=offloaded_layers)
        for each in product(recomputes_of(scenario, recomputes), sequence_parallel, zero_stages)
    )
    columns = _rows(scenario, shapes, cuts, degrees, gpus)
    numbers = np.stack([getattr(columns, name) for name in LAYOUT], axis=1)
    layouts, layout = np.unique(numbers, axis=0, return_inverse=True)
    space = Space(scenario, layouts, replace(columns, layout=layout.ravel()), categories, schedules=LAYERED)
    parts = list(_bounded(space, shapes, columns.layout, limit, progress)) if len(columns) else []
    none = Priced(*np.empty((2, 0), dtype=np.int64), *np.empty((2, 0)))
    prices, plans = join([none, *(priced for _, priced in parts)]), sum(looked_at for looked_at, _ in parts)
    return SearchResult(space, "step_time", limit, categories, prices, plans, time.perf_counter() - begun)


def _bounded(
    space: Space, shapes: Sequence[ParallelPlan], shape: Ints, limit: float, progress: Callable[[], object] | None
) -> Iterator[tuple[int, Priced]]:
    """Yield how many plans of a space were looked at; and those that fit, with their bounds and memory.

    shape : place of each row's ranks and chunks among the shapes.
    """
    scenario, model, (row, category) = space.scenario, space.scenario.model, space.plans
    layouts = place_layouts(scenario, space.layouts, progress)
    shared = (layouts.data.size > 1) | (layouts.expert_data.size > 1) & bool(model.num_experts)
    zero = np.array([each.zero_stage for each in space.categories])
    kept = shared[space.columns.layout][row] | (zero[category] == 0)
    row, category = row[kept], category[kept]
    batch = plan_batch(space, layouts, row, category)
    order = np.argsort(shape[row], kind="stable")
    ends = np.searchsorted(shape[row][order], np.arange(1, len(shapes) + 1))
    few = {pp: np.flatnonzero(layouts.pp == pp) for pp in np.unique(layouts.pp).tolist()}
    of_depth = {pp: layouts.take(places) for pp, places in few.items()}
    for plan, places in zip(shapes, np.split(order, ends[:-1]), strict=True):
        for here in np.array_split(places, -(-len(places) // AT_ONCE)) if len(places) else ():
            if progress is not None:
                progress()
            layout = np.searchsorted(few[plan.pp], batch.layout[here])
            some, deal = replace(batch.take(here), layouts=of_depth[plan.pp], layout=layout), deal_of(model, plan)
            # Memory first: most plans of a large model do not fit, and need no price.
            needed = memory_bytes(some, deal)
            fits = np.flatnonzero(needed <= limit)
            bound = least_step_s(some.take(fits), deal) if len(fits) else np.empty(0)
            yield len(here), Priced(category[here[fits]], row[here[fits]], bound, needed[fits])


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
) -> Columns:
    """Every shape with every cut of layers and batch that keeps the rules; `layout` is its place among the shapes."""
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
    return columns.take(np.flatnonzero(divides & shards_evenly(layouts, scenario.plan)))


def least_step_s(batch: Plans, deal: Deal) -> PlanFloats:
    """Time that a step cannot go below, of plans with as many ranks and chunks.  [s]

    The first rank turns to its next stage when it has done all micro-batches of this one, and when the first of them
    has come round through all ranks; from its last stage the first micro-batch goes on to the model's last, which does
    all of them. The rank of that one goes back likewise, and the last micro-batch from its first stage to the model's.
    Embedding and head are counted where they stand, links between ranks at the nearest they can be. The first rank's
    backward is the last to end, and the embedding's gradients are complete only then. Where ZeRO gathers and reduces at
    visits, ranks wait for what nothing hides.
    """
    stack, kind, m = batch.costs.stack, deal.kind_of_stage, batch.num_microbatches
    ranks, stages = int(batch.pp[0]), len(kind)
    own, last = np.arange(0, stages, ranks), np.arange(stages - 1, ranks - 1, -ranks)  # of the first and the last rank
    seconds = price_stages(batch, deal, split=False)
    forward, backward, visits = seconds.forward_s[kind], seconds.backward_s[kind], seconds.visits
    moved = _NOTHING_MOVED if visits is None else _moved_at_visits(visits.of_stages(kind), own, last, ranks)
    near, far = near_and_far(batch)
    send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
    sending = np.where(batch.overlap_p2p, 0.0, m * send)
    start = np.zeros((1, len(m)))  # until a micro-batch has come through the stages before, one way and the other
    down, up = (np.concatenate([start, np.cumsum(each + send, axis=0)]) for each in (forward, backward))
    there = np.maximum(m * forward[own[:-1]] + sending + moved.turning, np.diff(down[own], axis=0)).sum(axis=0)
    back = np.maximum(m * backward[last] + sending + moved.turning_back, up[last + 1] - up[last + 1 - ranks])
    on = down[-2] - down[own[-1]] + m * forward[-1]
    there = moved.begin + there + on
    ended_back = m * backward[0] + back.sum(axis=0) + up[stages - own[-1]] - up[1]
    ended = there + np.maximum(ended_back + moved.tail, m * backward[-1] + up[-2] - up[own[-1]])
    once = once_a_step(batch, deal).of_ranks(deal.kind_of_rank[:1])
    end = end_of_step(
        ended[np.newaxis],
        once.reduce_s,
        once.gather_s,
        once.optimizer_s,
        tied_embedding=tied_reduction(batch, deal),
        hidden_share=once.hidden_share,
        overlap_reduce=stack.overlap_grad_reduce,
        overlap_gather=stack.overlap_param_gather,
        # Of the first rank's reduction all but the last bucket may be over when its last backward is.
        reduced_after=lambda: np.maximum(there + ended_back + once.reduce_tail_s, there + once.reduce_s) - ended,
        gather_window=lambda: m * forward[own[:-1]].sum(axis=0) + forward[own[-1]],
    )
    return np.asarray(end + stack.step_setup_s)


class _Moved(NamedTuple):
    """What ZeRO's gathers and reductions at visits take at least; numbers, or arrays over plans. [s]

    begin, tail : before the first action of the first rank, and after its last.
    turning, turning_back : lost by a rank from one visit to the next; (visits, plans).
    """

    begin: Number
    tail: Number
    turning: Number
    turning_back: Number


_NOTHING_MOVED = _Moved(0.0, 0.0, 0.0, 0.0)


def _moved_at_visits(visits: VisitSeconds, own: Ints, last: Ints, ranks: int) -> _Moved:
    """Return what visits take of the first rank, whose stages are its `own`, and of that of the `last` stage."""
    waits = np.where(visits.ahead, 0.0, visits.gather) + visits.gather_slows
    return _Moved(
        begin=visits.gather[0, 0] - visits.early[0, 0],
        tail=np.where(visits.beside, visits.tail, visits.reduce)[0],
        turning=waits[0, own[1:]],
        turning_back=np.where(visits.beside, visits.reduce_slows, visits.reduce)[last] + waits[1, last - ranks],
    )


def memory_bytes(batch: Plans, deal: Deal) -> PlanFloats:
    """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
    counts = deal.rank_kinds.counts
    peaks, logits = batch.num_microbatches * stage_bytes(batch, counts), batch.num_microbatches * counts[:, [HEAD]]
    held = params_of(counts, batch.layouts)[..., batch.layout]
    return np.asarray(peak_memory(batch, held, peaks, logits).total.max(axis=0))
