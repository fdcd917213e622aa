"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
The stages and ranks of a number of ranks and chunks are dealt once for all plans that have it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from sim.arrays import Array, Ints, Number, PlanFloats
from sim.engines.program import end_of_step
from sim.errors import InfeasiblePlan
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, deal_of, dealt_layers, params_of
from sim.pricing.layouts import LAYOUT
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages, tied_reduction
from sim.pricing.zero import VisitSeconds
from sim.search.fields import Fields, values_of
from sim.search.formula import Priced, join, plan_batch
from sim.search.layouts import divisors, find_layouts, pipeline_degrees, tensor_degrees
from sim.search.result import SearchResult
from sim.search.space import MOST_UNEVEN_CHUNKS, Category, Space, columns_of
from sim.specs import Scenario
from sim.specs.plan import LAYERED
from sim.work.layers import HEAD

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
            needed = memory_bytes(some, deal)
            fits = np.flatnonzero(needed <= limit)
            bound = least_step_s(some.take(fits), deal) if len(fits) else np.empty(0)
            yield len(here), Priced(category[here[fits]], row[here[fits]], bound, needed[fits])


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
