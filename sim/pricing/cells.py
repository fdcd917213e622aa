"""What the blocks of a model take and keep for one micro-batch, for every way to cut a layer that plans have.

A *cell* is a cut (tensor-, context- and expert-parallel degrees, and how these groups lie) with a micro-batch. Many
plans share one, so cells are priced once and looked up. The choices that formulas branch on, and so do not broadcast,
are an axis of their own, that of *ways*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.costs.block import AT_PEAK, BlockCosts, Groups, block_costs
from sim.costs.collectives import all_gather, send
from sim.network.placement import Group, layer_groups
from sim.pricing.layouts import LAYER_DEGREES, CostModel, Layouts, cost_model, cut_by_training, cut_of, layout_of
from sim.specs import ParallelPlan, Scenario
from sim.specs.plan import LAYERED, reshards
from sim.specs.stack import sends_overlap
from sim.work.layers import FIRST_KIND, block_operations, layer_operations, num_blocks
from sim.work.memory import held_logits_bytes, logits_bytes, working_bytes
from sim.work.operations import Block, Cause
from sim.work.pieces import Cut
from sim.work.recompute import NOTHING, WHOLE, Recompute, recompute_of
from sim.work.routing import passes_alone
from sim.work.sums import block_works, kept_bytes


class Way(NamedTuple):
    """How a layer is computed.

    overlap_tp : compute overlaps tensor-parallel collectives.
    recompute : what runs again in the backward (`sim.work.recompute`).
    offloaded_layers : layers of the model whose activations wait in host memory.
    """

    overlap_tp: bool
    sequence_parallel: bool
    recompute: Recompute
    offloaded_layers: int = 0


@dataclass(frozen=True, eq=False)
class CellPrices:
    """Seconds and bytes of one micro-batch, in every way, of every cell.

    passes : (passes, blocks, causes, ways, cells), with the passes of `sim.costs.block`. [s]
    card_s : what collectives of forward and backward put on a network card, at its best rate; (2, blocks, ways, cells).
    ahead_s : by how much the host is ahead of the GPU when a block's pass ends, how much of this lead later blocks
        have, and what of the block's waits the lead of others can hide; (3, passes, blocks, ways, cells). [s]
    activation_bytes : kept for the backward; (blocks, ways, cells). [bytes]
    sends_s : a send to a rank of the same NVLink domain, and of another; (2, ways, cells). [s]
    working_bytes : the largest short-lived buffer besides what is kept; (ways, cells). [bytes]
    logits_bytes, held_logits_bytes : all logits, and those still held while the layers' backward runs; as these.
    boundary_bytes : activations that one rank sends to the next; as these.
    waiting_s : what passes take more where tokens that could travel beside another micro-batch's computation wait, as
        `passes`; None: none can. [s]
    copies_s : activations on their way to host memory in a forward, and back in a backward; (2, blocks, ways, cells).
        None: none leave. [s]
    notes : what was extrapolated.
    """

    ways: tuple[Way, ...]
    passes: Floats
    card_s: Floats
    ahead_s: Floats
    activation_bytes: Floats
    sends_s: Floats
    working_bytes: Floats
    logits_bytes: Floats
    held_logits_bytes: Floats
    boundary_bytes: Floats
    waiting_s: Floats | None = None
    copies_s: Floats | None = None
    notes: frozenset[str] = frozenset()

    @cached_property
    def total_s(self) -> Floats:
        """The passes, whatever they are spent on; (passes, blocks, 1, ways, cells). [s]"""
        return np.asarray(self.passes[:AT_PEAK].sum(axis=2, keepdims=True))

    def mixed(self, cell: Ints, share: Floats) -> CellPrices:
        """Return prices of rows with these cells, each of which runs a share above zero of its layers again, whole, and
        the others not.

        The rows take the place of the cells. `_fill_in` mixes ways in the same manner, with one share for all cells.
        """
        full, none = (
            [place for place, way in enumerate(self.ways) if way.recompute == kind and not way.offloaded_layers]
            for kind in (WHOLE, NOTHING)
        )
        tables: dict[str, Any] = {
            name: share * table[..., full, :][..., cell] + (1.0 - share) * table[..., none, :][..., cell]
            for name, table in vars(self).items()
            if isinstance(table, np.ndarray) and name != "total_s"
        }
        tables["working_bytes"] = self.working_bytes[full][:, cell]
        some = Recompute("full", share=0.5)  # whichever share of each row's layers
        return replace(self, ways=tuple(self.ways[place]._replace(recompute=some) for place in full), **tables)


def price_cells(
    layouts: Layouts, layout: Ints, microbatch_size: Ints, ways: tuple[Way, ...], slices: int = 1
) -> tuple[CellPrices, Ints]:
    """Price all cells of plans in all ways; and return which cell each plan has.

    slices : parts of the sequence that go through the pipeline one after the other.
    """
    cuts, cut = np.unique(layouts.cuts, axis=1, return_inverse=True)
    sizes, size = np.unique(microbatch_size, return_inverse=True)
    codes, cell = np.unique(cut.ravel()[layout] * len(sizes) + size, return_inverse=True)
    numbers = np.vstack([cuts[:, codes // len(sizes)], sizes[codes % len(sizes)]])
    return _priced(layouts.costs, numbers.tobytes(), ways, slices), cell


@lru_cache(maxsize=4)
def _priced(costs: CostModel, cells: bytes, ways: tuple[Way, ...], slices: int) -> CellPrices:
    """Price cells, whose numbers are those of `Layouts.cuts` and the micro-batch."""
    cut, groups, send_share = _cut_of_cells(costs, cells, slices)
    model, compute, shape = costs.model, costs.noting(), (len(ways), np.size(cut.microbatch_size))
    blocks, tables = num_blocks(model), np.zeros((4, *shape))
    passes, card = np.zeros((AT_PEAK + 1, blocks, len(Cause), *shape)), np.zeros((2, blocks, *shape))
    ahead = np.zeros((3, AT_PEAK, blocks, *shape))
    prices = CellPrices(ways, passes, card, ahead, np.zeros((blocks, *shape)), np.zeros((2, *shape)), *tables)
    for overlap_tp, sequence_parallel in dict.fromkeys(way[:2] for way in ways):
        cut, stack = replace(cut, sequence_parallel=sequence_parallel), costs.stack
        if stack.overlap_tp_backward != overlap_tp:
            stack = stack.replace(overlap_tp_backward=overlap_tp)
        here = [place for place, way in enumerate(ways) if way[:2] == (overlap_tp, sequence_parallel)]
        kinds = dict.fromkeys(ways[way].recompute for way in here)
        again = dict.fromkeys(part for each in kinds for part, _ in each.mixed)
        operations = block_operations(model, stack, cut)
        for block, of_block in enumerate(operations):
            found = block_costs(block_works(of_block, stack, tuple(again)), compute, groups, costs.fabric)
            # Embedding and head never run again: their one work stands for all.
            of_parts = dict(zip(again, found if len(found) > 1 else found * len(again), strict=True))
            _fill_in(prices, here, block, {each: kept_bytes(of_block, each) for each in kinds}, of_parts)
        working = {each: working_bytes(operations, model, stack, cut, each) for each in kinds}
        for way in here:
            prices.working_bytes[way] = working[ways[way].recompute]
        prices.logits_bytes[here] = logits_bytes(model, stack, cut)
        prices.held_logits_bytes[here] = held_logits_bytes(model, stack, cut)
        prices.boundary_bytes[here] = cut.width * cut.norm_tokens * model.hidden_size
        prices.sends_s[0, here], prices.sends_s[1, here] = send_seconds(costs, cut, groups["tp"], send_share)
    waiting_s, copies_s = None, None
    if any(way.offloaded_layers for way in ways):
        copies_s = _offload(prices, costs)
    if costs.stack.overlap_experts and model.num_experts:  # a pass without another micro-batch beside it takes longer
        quiet = replace(costs, stack=costs.stack.replace(overlap_experts=False))
        waiting_s = np.asarray(_priced.__wrapped__(quiet, cells, ways, slices).passes - passes)
    return replace(prices, waiting_s=waiting_s, copies_s=copies_s, notes=frozenset(compute.notes))


_priced_alone = lru_cache(maxsize=1024)(_priced.__wrapped__)
"""`_priced` for single plans: their tables are small, and many recur."""


def _cut_of_cells(costs: CostModel, cells: bytes, slices: int) -> tuple[Cut, Groups, Number]:
    """The numbers of cells as a cut of a layer with nothing recomputed, its groups, and the share of sends' cards."""
    degrees, width = len(LAYER_DEGREES), len(fields(Group))
    table = np.frombuffer(cells).reshape(degrees + 1 + 3 * width + 1, -1)
    # Formulas take a number faster than an array of one.
    numbers = [row if len(row) > 1 else row.item() for row in (*table[:degrees].astype(np.int64), *table[degrees:])]
    send_share, *lies, microbatch_size = numbers[degrees:]
    cut = Cut(
        **dict(zip(LAYER_DEGREES, numbers[:degrees], strict=True)),
        microbatch_size=microbatch_size,
        sequence_parallel=False,
        slices=slices,
        **cut_by_training(costs.training),
    )
    groups = {kind: Group(*lies[place * width :][:width]) for place, kind in enumerate(("tp", "cp", "ep"))}
    return cut, groups, send_share


def _fill_in(
    prices: CellPrices,
    ways: Sequence[int],
    block: int,
    kept: dict[Recompute, Number],
    of_parts: dict[Recompute, BlockCosts],
) -> None:
    """Fill in what a block takes and keeps in some ways, by what runs again in them."""
    for way in ways:
        recompute = prices.ways[way].recompute
        prices.activation_bytes[block, way] = kept[recompute]
        for part, share in recompute.mixed:
            for place, seconds in enumerate(of_parts[part].passes):
                for cause, each in seconds.items():
                    prices.passes[place, block, cause, way] += share * each
            for place, leads in enumerate(of_parts[part].ahead):
                for kind, lead in enumerate(leads):
                    prices.ahead_s[kind, place, block, way] += share * lead
            for place, occupied in enumerate(of_parts[part].card):
                prices.card_s[place, block, way] += share * occupied


def _offload(prices: CellPrices, costs: CostModel) -> Floats:
    """Put activations into host memory, in the ways that have them there; and return the copies of `CellPrices`.  [s]

    Every layer has its share of what leaves. One layer's are on the GPU while they are on their way.
    """
    kept = prices.activation_bytes
    layers = np.array([way.offloaded_layers for way in prices.ways])[:, np.newaxis]
    share = layers / costs.model.num_layers * (np.arange(len(kept)) >= FIRST_KIND)[:, np.newaxis, np.newaxis]
    moved = kept * share
    prices.working_bytes[:] += kept[FIRST_KIND] * (layers > 0)
    kept -= moved
    return np.stack([costs.host.out_s(moved), costs.host.back_s(moved)])


def send_seconds(costs: CostModel, cut: Cut, group: Group, card_share: Number = 1.0) -> tuple[Any, Any]:
    """Send of one micro-batch's activations to the next stage: (inside an NVLink domain, between domains).  [s]

    With scatter/gather each tensor-parallel rank sends 1/t of the activations and the receivers gather over NVLink
    (Narayanan et al. 2021, section 4.1); under sequence parallelism the activations are cut already. Takes arrays.
    """
    share, regather = sent_bytes(costs, cut), 0.0
    if costs.stack.p2p_scatter_gather and not cut.sequence_parallel:
        regather = all_gather(cut.width * cut.tokens * costs.model.hidden_size, group, costs.fabric)
    near, far = send(share, False, costs.fabric), send(share, True, costs.fabric, card_share)
    return near + regather, far + regather


def sent_bytes(costs: CostModel, cut: Cut) -> Any:
    """What one GPU sends to the next pipeline rank: all activations, or its tensor-parallel share.  [bytes]"""
    nbytes = cut.width * cut.tokens * costs.model.hidden_size
    return nbytes / cut.tp if costs.stack.p2p_scatter_gather or cut.sequence_parallel else nbytes


def layer_costs(scenario: Scenario) -> BlockCosts:
    """Seconds of one transformer layer and micro-batch, without what data parallelism moves."""
    costs, cut = cost_model(scenario), cut_of(scenario)
    layer = Block(layer=layer_operations(costs.model, costs.stack, cut))
    works = block_works(layer, costs.stack, (recompute_of(scenario.plan, costs.model),))
    return block_costs(works, costs.noting(), layer_groups(scenario.plan, scenario.cluster), costs.fabric)[0]


@dataclass(frozen=True)
class Plans:
    """Plans as columns of numbers, which broadcast: one axis over plans, or choices × ways to recompute × rows, or the
    like. `layouts` and `prices` are tables with axes of their own, that plans look up.

    layouts, layout : how the plans are cut over GPUs; and which of these layouts each plan has.
    prices, cell, way : what their cuts take with their micro-batches; and which cell and which way each plan has.
    like : has the options that all plans share: embedding and head as layers, whether weights are gathered again for
        the backward, and how many micro-batches follow each other on a chunk of interleaved pipelines.
    schedule : of all plans; where it is interleaved, those with one chunk a rank have 1F1B or GPipe.
    num_microbatches : between two drains of a pipeline.
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
        whole = np.array([way.recompute.mode == "full" for way in self.prices.ways])
        return np.asarray(np.where(whole[self.way], 1.0, share))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape that the columns broadcast to."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in COLUMNS))


COLUMNS = tuple(column.name for column in fields(Plans) if column.type in ("Ints", "Bools"))
"""Fields that are columns: a new one is among them by its type."""


def plans_of(scenario: Scenario) -> Plans:
    """Return a scenario as columns of one plan."""
    plan, stack = scenario.plan, scenario.stack
    degrees = (plan.tp, plan.cp, plan.pp, plan.dp, plan.ep)
    layouts = layout_of(cost_model(scenario), degrees, plan.etp > 1, plan.sharding_group, plan.placement)
    recompute = recompute_of(plan, scenario.model)
    way = Way(stack.overlap_tp_backward, plan.sequence_parallel, recompute, plan.offloaded_layers)
    cell = np.append(layouts.cuts, float(plan.microbatch_size)).tobytes()
    prices = _priced_alone(layouts.costs, cell, (way,), plan.sequence_slices)
    columns = {
        **dict.fromkeys(("layout", "cell", "way"), 0),
        "zero_stage": plan.zero_stage,
        "num_chunks": plan.num_chunks,
        "num_microbatches": scenario.num_microbatches // scenario.flushes,
        "overlap_p2p": sends_overlap(stack.overlap_p2p, plan.num_chunks),
        "overlap_grad_reduce": stack.overlap_grad_reduce,
        "overlap_param_gather": stack.overlap_param_gather,
    }
    only: dict[str, Any] = {name: np.array([value]) for name, value in columns.items()}
    return Plans(layouts, prices, plan, plan.schedule, **only, optimizer_offload=plan.optimizer_offload)
