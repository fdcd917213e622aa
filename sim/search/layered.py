"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, PlanFloats
from sim.estimate import Estimate, estimate
from sim.pricing.cells import Way, find_cells, price_cells
from sim.pricing.cost_model import cost_model
from sim.pricing.deal import dealt_layers
from sim.pricing.layouts import Layouts, place_layouts
from sim.pricing.plans import Plans
from sim.search.best_first import Found, best_first
from sim.search.layered_bounds import least_step_s, memory_bytes
from sim.search.layered_deals import Deals, deals_at, deals_of
from sim.search.plans.layouts import (
    LAYOUT,
    MOST_UNEVEN_CHUNKS,
    context_degrees,
    cuts_sequences,
    divisors,
    expert_degrees,
    parts_of_experts,
    pipeline_degrees,
    shards_evenly,
    tensor_degrees,
)
from sim.search.plans.space import base_plan, recompute_fields, recomputes_of, sharding_fields
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word

CHOICES = ("recompute", "sequence_parallel", "zero_stage")


@dataclass(frozen=True, slots=True)
class Rows:
    """Layered plans, one a row.

    shape : place of its ranks, chunks and schedule among the table's `shapes`.
    """

    batch: Ints
    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    num_chunks: Ints
    microbatch_size: Ints
    shape: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Any) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def layout(self) -> Ints:
        """(tp, cp, pp, dp, ep) of each."""
        return np.stack([getattr(self, name) for name in LAYOUT], axis=1)

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)

    @property
    def num_microbatches(self) -> Ints:
        """Of each pipeline and step."""
        return np.asarray(self.batch // (self.dp * self.microbatch_size))


@dataclass(frozen=True)
class LayeredTable:
    """Every layered plan of some batches and numbers of GPUs, that fits in memory.

    choice : place in `choices`, (recompute, sequence_parallel, zero_stage), of each row.
    bound_s : time that its step cannot go below. [s]
    memory_bytes : of the fullest rank. [bytes]
    plans : looked at, with those that do not fit.
    """

    scenario: Scenario
    shapes: tuple[ParallelPlan, ...]
    choices: tuple[tuple[str, bool, int], ...]
    rows: Rows
    choice: Ints
    bound_s: PlanFloats
    memory_bytes: PlanFloats
    plans: int
    offloaded_layers: int

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        rows, given = self.rows, self.scenario
        numbers: dict[str, Any] = {name: int(getattr(rows, name)[place]) for name in (*LAYOUT, "microbatch_size")}
        numbers["offloaded_layers"] = self.offloaded_layers
        numbers |= dict(zip(CHOICES, self.choices[int(self.choice[place])], strict=True))
        numbers |= recompute_fields(numbers["recompute"], given.plan)
        numbers |= sharding_fields(numbers["zero_stage"], given.plan)
        shape = self.shapes[int(rows.shape[place])]
        numbers |= {name: getattr(shape, name) for name in ("schedule", "num_chunks", "uneven_layers")}
        training = given.training.replace(global_batch_size=int(rows.batch[place]))
        return given.replace(plan=base_plan(given).replace(**numbers), training=training)


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
    everything = _rows(scenario, shapes, cuts, degrees, batches or (scenario.training.global_batch_size,), gpus)
    choices = tuple(product(recomputes_of(scenario, recomputes), sequence_parallel, zero_stages))
    # Memory first: most plans of a large model do not fit, and need no price.
    fitting: list[tuple[int, Ints, Floats, Floats]] = []
    looked_at, found = 0, _Found(scenario, shapes, everything) if len(everything) else None
    for number, (recompute, sp, zero) in enumerate(choices):
        if found is None:
            break
        where = np.flatnonzero(found.cuts_sequence[sp] & (found.shares_state | (zero == 0)))
        if not len(where):
            continue
        batch = _batch(found, where, recompute, sp, zero, offloaded_layers)
        needed = memory_bytes(batch, found.of_layouts)
        looked_at += len(where)
        fits = np.flatnonzero(needed <= scenario.cluster.gpu.usable_bytes * (1 + 1e-9))
        if len(fits):
            deals = deals_at(found.deals, everything.shape[where[fits]])
            bound = least_step_s(batch.take(fits), deals, found.of_layouts)
            fitting.append((number, where[fits], bound, needed[fits]))
    numbers, places, bounds, memory = zip(*fitting, strict=True) if fitting else ((), (), (), ())
    none: list[Any] = [np.empty(0, dtype=np.int64)]
    return LayeredTable(
        scenario,
        shapes,
        choices,
        everything.take(np.concatenate([*places, *none])),
        np.repeat(np.array(numbers, dtype=np.int64), [len(each) for each in places]),
        np.concatenate([*bounds, *none]).astype(float),
        np.concatenate([*memory, *none]).astype(float),
        looked_at,
        offloaded_layers,
    )


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


class _Found:
    """What all choices share: layouts, what their ranks hold, and which rows may be run how."""

    def __init__(self, scenario: Scenario, shapes: tuple[ParallelPlan, ...], rows: Rows) -> None:
        self.scenario, self.rows = scenario, rows
        self.deals: Deals = deals_of(scenario.model, shapes)
        # Ranks of several shapes hold the same; layouts are those of their ranks.
        alike = self.deals.same_ranks[rows.shape]
        numbers = np.concatenate([rows.layout.T, alike[np.newaxis]])
        code = np.ravel_multi_index(tuple(numbers), tuple(numbers.max(axis=1, initial=0) + 1))
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        self.layout, layouts = which.ravel(), rows.layout[first]
        self.layouts: Layouts = place_layouts(cost_model(scenario), layouts, scenario.plan)
        self.of_layouts = deals_at(self.deals, rows.shape[first])
        without = (layouts[:, 0] == 1) | (not scenario.model.num_experts)  # experts' tokens are routed apart
        cut = cuts_sequences(layouts, scenario.training.sequence_length)
        self.cuts_sequence: tuple[Bools, Bools] = (without[self.layout], cut[self.layout])
        shared = (self.layouts.data.size > 1) | (self.layouts.expert_data.size > 1) & bool(scenario.model.num_experts)
        self.shares_state: Bools = shared[self.layout]


def _batch(
    found: _Found, where: Ints, recompute: str, sequence_parallel: bool, zero_stage: int, offloaded_layers: int
) -> Plans:
    """Rows of one choice as columns of what they cost."""
    scenario, layouts, layout, rows = found.scenario, found.layouts, found.layout[where], found.rows.take(where)
    stack = scenario.stack
    word = searched_word(recompute, scenario.plan)
    way = Way(stack.overlap_tp_backward, sequence_parallel, word, offloaded_layers)
    cells, cell = find_cells(layouts, layout, rows.microbatch_size, (way,))
    all_rows = np.zeros(len(rows), dtype=np.int64)
    return Plans(
        layouts,
        price_cells(cells),  # cached: plans that differ in their ZeRO stage share cells
        scenario.plan,
        LAYERED[0],
        layout=layout,
        cell=cell,
        way=all_rows,
        zero_stage=all_rows + zero_stage,
        num_chunks=rows.num_chunks,
        num_microbatches=rows.num_microbatches,
        overlap_p2p=(all_rows + sends_overlap(stack.overlap_p2p, rows.num_chunks)).astype(bool),
        overlap_grad_reduce=(all_rows + stack.overlap_grad_reduce).astype(bool),
        overlap_param_gather=(all_rows + stack.overlap_param_gather).astype(bool),
    )


def _rows(
    scenario: Scenario,
    shapes: Sequence[ParallelPlan],
    cuts: Sequence[tuple[int, int]],
    experts: Sequence[int],
    batches: Sequence[int],
    gpus: tuple[int, int],
) -> Rows:
    """Every shape with every cut of layers and batch that keeps the rules."""
    most = min(gpus[1], scenario.cluster.num_gpus)
    shares = [
        (batch, dp, size) for batch in batches for dp in divisors(batch) if dp <= most for size in divisors(batch // dp)
    ]
    ranks = np.array([(shape.pp, shape.num_chunks) for shape in shapes], dtype=np.int64).reshape(-1, 2)
    cut, share = np.array(cuts, dtype=np.int64).reshape(-1, 2), np.array(shares, dtype=np.int64).reshape(-1, 3)
    number, first, second = (each.ravel() for each in np.indices((len(ranks), len(cut), len(share))))
    (pp, chunks), (tp, cp), (batch, dp, size) = ranks[number].T, cut[first].T, share[second].T
    used = tp * cp * pp * dp
    kept = np.flatnonzero((used >= gpus[0]) & (used <= most) & (batch // (dp * size) >= pp))
    rows = Rows(batch, tp, cp, pp, dp, np.ones_like(tp), chunks, size, number).take(kept.repeat(len(experts)))
    rows = replace(rows, ep=np.tile(np.array(experts, dtype=np.int64), len(kept)))
    divides = rows.tp * rows.cp * rows.dp % parts_of_experts(rows.layout, scenario.plan) == 0
    return rows.take(np.flatnonzero(divides & shards_evenly(rows.layout, scenario.plan)))
