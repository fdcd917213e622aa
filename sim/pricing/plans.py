"""Columns of plans: many plans of one model on one machine. A scenario is one plan."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.pricing.cells import CellPrices, Cells, Way, price_one_cell
from sim.pricing.cost_model import CostModel, cost_model
from sim.pricing.layouts import Layouts, layout_of
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED, reshards
from sim.specs.stack import sends_overlap
from sim.work.recompute import recompute_word
from sim.work.routing import passes_alone


@dataclass(frozen=True)
class Plans:
    """Plans as columns of numbers, which broadcast: one axis over plans, or choices × ways to recompute × rows, or the
    like. `layouts` and `prices` are tables with axes of their own, that plans look up.

    layouts, layout : how the plans are cut over GPUs; and which of these layouts each plan has.
    prices, cell, way : what their cuts take with their micro-batches; and which cell and which way each plan has.
    like : has the options that all plans share: embedding and head as layers, whether weights are gathered again for
        the backward, whether groups that shard weights shard the optimizer's state among each other, and how many
        micro-batches follow each other on a chunk of interleaved pipelines.
    schedule : of all plans; where it is interleaved, those with one chunk a rank have 1F1B or GPipe.
    optimizer_offload : of all plans; where only memory is asked for, also an array over them.
    """

    layouts: Layouts
    prices: CellPrices
    like: ParallelPlan
    schedule: str
    layout: Ints
    cell: Ints
    way: Ints
    zero_stage: Ints
    num_chunks: Ints
    num_microbatches: Ints
    overlap_p2p: Bools
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    optimizer_offload: Number = 0.0

    @property
    def costs(self) -> CostModel:
        """Model and machine of all plans."""
        return self.layouts.costs

    def take(self, places: Any) -> Plans:
        """Return some of the plans, which have one axis."""
        return replace(self, **{name: getattr(self, name)[places] for name in COLUMNS})

    @cached_property
    def pp(self) -> Ints:
        """Pipeline ranks."""
        return np.asarray(self.layouts.pp[self.layout])

    @cached_property
    def reshards(self) -> Bools:
        """Whether ZeRO stage 3 drops what it gathered after a forward."""
        return np.asarray(reshards(self.like.reshard_after_forward, self.pp))

    @cached_property
    def moving_stage(self) -> Ints:
        """The ZeRO stage whose traffic a plan has: that of 1 where a pipeline sums gradients once a step.

        torch.distributed.pipelining accumulates whole gradients and reduces them after a stage's last backward
        (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).
        """
        kept = (self.zero_stage == 3) & (self.pp > 1) & ~self.reshards
        return np.where(self.in_turns | kept, np.minimum(self.zero_stage, 1), self.zero_stage)

    @cached_property
    def at_visits(self) -> Bools:
        """Whether ZeRO moves what belongs to a whole chunk when a rank turns to it."""
        return np.asarray((self.num_chunks > 1) & (self.schedule in LAYERED))

    @cached_property
    def in_turns(self) -> Bools:
        """Whether micro-batches go forward and backward by turns through a pipeline."""
        return np.asarray((self.pp > 1) & ~self.at_visits)

    @cached_property
    def gathers_in_turns(self) -> Bools:
        """Whether pipelines gather weights for every micro-batch.

        FSDP2 drops them after a forward; after a backward they stay until the next forward, for
        torch.distributed.pipelining switches that resharding off, so that one gather a micro-batch is left.
        """
        return np.asarray(self.in_turns & (self.zero_stage == 3) & self.reshards)

    @cached_property
    def shards_gradients(self) -> Bools:
        """Whether a GPU holds whole gradients only of what it is at work on.

        In a pipeline gradients of a stage are whole from its first backward to its last: of all stages of a rank,
        unless each has all of its backwards in one go.
        """
        group = np.maximum(self.pp, self.like.microbatch_group or 1)
        one_go = (self.zero_stage >= 2) & (self.num_chunks > 1) & (self.num_microbatches <= group)
        return (self.moving_stage >= 2) | one_go

    @cached_property
    def alone(self) -> Floats:
        """Share of a plan's passes that have no pass of another micro-batch beside them (`sim.work.routing`)."""
        sizes = self.pp, self.num_chunks, self.num_microbatches, self.like.microbatch_group
        share = passes_alone(self.schedule, *sizes)
        whole = np.array([way.recompute.startswith("full") for way in self.prices.cells.ways])
        return np.asarray(np.where(whole[self.way], 1.0, share))

    @cached_property
    def state_is_spread(self) -> Bools:
        """Whether groups that shard weights shard the optimizer's state among each other: hybrid sharding."""
        return np.asarray((self.zero_stage == 3) & bool(self.like.outer_zero_stage))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape that the columns broadcast to."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in COLUMNS))

    @property
    def of_blocks(self) -> tuple[Any, ...]:
        """Where the plans' cells stand in arrays over (blocks, ways, cells)."""
        return (slice(None), self.way, self.cell)


COLUMNS = tuple(column.name for column in fields(Plans) if column.type in ("Ints", "Bools"))
"""Fields that are columns: a new one is among them by its type."""
_FIRST = np.zeros(1, dtype=np.int64)


def plans_of(scenario: Scenario) -> Plans:
    """Return a scenario as columns of one plan."""
    plan, stack = scenario.plan, scenario.stack
    degrees = (plan.tp, plan.cp, plan.pp, plan.dp, plan.ep)
    layouts = layout_of(cost_model(scenario), degrees, plan.etp > 1, plan.sharding_group, plan.placement)
    word = recompute_word(plan, scenario.model)
    way = Way(stack.overlap_tp_backward, plan.sequence_parallel, word, plan.offloaded_layers)
    return Plans(
        layouts,
        price_one_cell(Cells(layouts, np.array([float(plan.microbatch_size)]), (way,), plan.sequence_slices)),
        plan,
        plan.schedule,
        layout=_FIRST,
        cell=_FIRST,
        way=_FIRST,
        zero_stage=np.array([plan.zero_stage]),
        num_chunks=np.array([plan.num_chunks]),
        num_microbatches=np.array([scenario.num_microbatches]),
        overlap_p2p=np.array([sends_overlap(stack.overlap_p2p, plan.num_chunks)]),
        overlap_grad_reduce=np.array([stack.overlap_grad_reduce]),
        overlap_param_gather=np.array([stack.overlap_param_gather]),
        optimizer_offload=plan.optimizer_offload,
    )
