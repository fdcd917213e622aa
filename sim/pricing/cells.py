"""What the blocks of a model take and keep for one micro-batch, for every way to cut a layer that a batch has.

A *cell* is a cut (tensor-, context- and expert-parallel degrees, and how these groups lie) with a micro-batch. Many
plans share one, so cells are priced once and looked up. The choices that formulas branch on, and so do not broadcast,
are axes of their own: whether tensor-parallel collectives are overlapped and sequences cut (`kinds`), and what is
recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sim.arrays import Floats, Ints, Number
from sim.costs.block import BlockCosts, block_costs
from sim.costs.collectives import all_gather, send
from sim.costs.host import exposed_copy
from sim.network.placement import Group, layer_groups
from sim.pricing.cost_model import CostModel, cost_model, cut_by_training, cut_of
from sim.specs import Scenario
from sim.work.layers import block_operations, layer_operations
from sim.work.memory import cut_memory
from sim.work.operations import Block, BlockWork, Cause
from sim.work.pieces import Cut
from sim.work.recompute import mixture
from sim.work.stages import FIRST_KIND, blocks_of
from sim.work.sums import block_works, kept_bytes

CAUSES = tuple(Cause)
"""What seconds are spent on, in the order of the axis over causes."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Ways to cut a layer, each with a micro-batch; arrays over cells. Equal ones have equal numbers.

    kinds : (tensor-parallel collectives overlapped, sequence parallel), those there are.
    recomputes : ways to recompute, those there are.
    send_share : of a card's rate, what the switches leave where all pipeline ranks send at once.
    slices, offloaded_layers : of all.
    """

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    microbatch_size: Floats
    tensor: Group
    context: Group
    experts: Group
    send_share: Floats
    kinds: tuple[tuple[bool, bool], ...]
    recomputes: tuple[str, ...]
    slices: int = 1
    offloaded_layers: int = 0

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """All of the numbers."""
        groups = (self.tensor, self.context, self.experts)
        lies = [getattr(group, field.name) for group in groups for field in fields(Group)]
        numbers = np.array(
            [self.tp, self.cp, self.ep, self.etp, self.microbatch_size, self.send_share, *lies], dtype=float
        )
        return (numbers.tobytes(), self.kinds, self.recomputes, self.slices, self.offloaded_layers)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and self.key == other.key

    def numbers(self) -> Cells:
        """The cells, or where there is one its numbers without an axis, which formulas take faster."""
        if len(self.tp) > 1:
            return self
        names = ("tp", "cp", "ep", "etp", "microbatch_size", "send_share")
        tensor, context, experts = (
            Group(*(np.asarray(getattr(group, field.name)).item() for field in fields(Group)))
            for group in (self.tensor, self.context, self.experts)
        )
        changes: dict[str, Any] = {name: getattr(self, name).item() for name in names}
        return replace(self, **changes, tensor=tensor, context=context, experts=experts)

    def cut(self, costs: CostModel, sequence_parallel: bool, recompute: str) -> Cut:
        """Of all cells."""
        return Cut(
            tp=self.tp,
            microbatch_size=self.microbatch_size,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
            cp=self.cp,
            slices=self.slices,
            ep=self.ep,
            etp=self.etp,
            **cut_by_training(costs.training),
        )


@dataclass(frozen=True)
class CellPrices:
    """Seconds and bytes of one micro-batch, of every cell.

    forward_s, backward_s : (blocks, causes, kinds, recomputes, cells). [s]
    split_s : what the halves of a backward, each by itself, take more than the whole; likewise. [s]
    at_peak_s : what FLOPs take at the GPU's peak; (blocks, causes, kinds, cells). [s]
    weight_grad_s : a weight gradient by itself; (blocks, kinds, recomputes, cells). [s]
    near_s, far_s : a send to a rank of the same NVLink domain, and of another; (kinds, cells). [s]
    activation_bytes : kept for the backward; (blocks, kinds, recomputes, cells). [bytes]
    working_bytes : alive for a moment; (kinds, recomputes, cells). [bytes]
    logits_bytes, held_logits_bytes, boundary_bytes : as of `sim.work.memory.CutMemory`; (kinds, cells). [bytes]
    notes : what was extrapolated.
    """

    cells: Cells
    forward_s: Floats
    backward_s: Floats
    split_s: Floats
    at_peak_s: Floats
    weight_grad_s: Floats
    near_s: Floats
    far_s: Floats
    activation_bytes: Floats
    working_bytes: Floats
    logits_bytes: Floats
    held_logits_bytes: Floats
    boundary_bytes: Floats
    notes: frozenset[str]

    @cached_property
    def total_s(self) -> tuple[Floats, Floats]:
        """Forward and backward whatever they are spent on; (blocks, 1, kinds, recomputes, cells). [s]"""
        return self.forward_s.sum(axis=1, keepdims=True), self.backward_s.sum(axis=1, keepdims=True)

    @cached_property
    def total_split_s(self) -> Floats:
        """What halves take more, whatever it is spent on; likewise. [s]"""
        return np.asarray(self.split_s.sum(axis=1, keepdims=True))

    def offloading(self, costs: CostModel, layers: int) -> CellPrices:
        """With the activations of so many layers of the model in host memory.

        Every layer has its share of them. One layer's are on the GPU while they are on their way.
        """
        share = layers / costs.model.num_layers
        blocks = [bool(any(part.layers) or part.mtps) for part in blocks_of(costs.model)]
        moved = self.activation_bytes * (share * np.array(blocks)[:, np.newaxis, np.newaxis, np.newaxis])
        forward, backward = self.forward_s.copy(), self.backward_s.copy()
        copies = (costs.host.out_s(moved), costs.host.back_s(moved))
        for table, whole, copy in zip((forward, backward), self.total_s, copies, strict=True):
            table[:, CAUSES.index(Cause.OFFLOAD)] += exposed_copy(copy, whole[:, 0])
        return replace(
            self,
            cells=replace(self.cells, offloaded_layers=layers),
            forward_s=forward,
            backward_s=backward,
            activation_bytes=self.activation_bytes - moved,
            working_bytes=self.working_bytes + self.activation_bytes[FIRST_KIND],
        )

    def mixed(self, cell: Ints, share: Floats) -> CellPrices:
        """Of rows with these cells, each of which runs a share above zero of its layers again, whole, the others not.

        The rows take the place of the cells, and `full*share` that of the ways to recompute. As `price_cells` mixes
        them, for many shares at once.
        """
        full, none = (self.cells.recomputes.index(word) for word in ("full", "none"))

        def mix(table: Floats) -> Floats:
            both = share * table[..., full, cell] + (1.0 - share) * table[..., none, cell]
            return np.asarray(both[..., np.newaxis, :])

        tables = ("forward_s", "backward_s", "split_s", "weight_grad_s", "activation_bytes")
        of_cells = ("at_peak_s", "near_s", "far_s", "logits_bytes", "held_logits_bytes", "boundary_bytes")
        changed: dict[str, Any] = {name: mix(getattr(self, name)) for name in tables}
        changed |= {name: getattr(self, name)[..., cell] for name in of_cells}
        return replace(
            self,
            cells=replace(self.cells, recomputes=("full*",)),
            working_bytes=self.working_bytes[..., full : full + 1, cell],
            **changed,
        )


def beside(several: Sequence[CellPrices]) -> CellPrices:
    """Prices of the same cells in other ways, one behind the other on the axis over ways to recompute."""
    if len(several) == 1:
        return several[0]
    first = several[0]
    names = ("forward_s", "backward_s", "split_s", "weight_grad_s", "activation_bytes", "working_bytes")
    words = tuple(word for each in several for word in each.cells.recomputes)
    tables: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in several], axis=-2) for name in names
    }
    return replace(first, cells=replace(first.cells, recomputes=words), **tables)


def price_cells(costs: CostModel, cells: Cells) -> CellPrices:
    """Price cells. What single ones took, and the last tables of many, is cached."""
    return (_price_one if len(cells.tp) == 1 else _price_many)(costs, cells)


def _price_cells(costs: CostModel, cells: Cells) -> CellPrices:
    if cells.offloaded_layers:
        return price_cells(costs, replace(cells, offloaded_layers=0)).offloading(costs, cells.offloaded_layers)
    model, fabric, compute = costs.model, costs.fabric, costs.noting()
    numbers, blocks = cells.numbers(), blocks_of(model)
    groups = {"tp": numbers.tensor, "cp": numbers.context, "ep": numbers.experts}
    shape = (len(blocks), len(cells.kinds), len(cells.recomputes), len(cells.tp))
    forward, backward, split = np.zeros((3, len(blocks), len(CAUSES), *shape[1:]))
    at_peak = np.zeros((len(blocks), len(CAUSES), shape[1], shape[3]))
    weight_grad, kept = np.zeros((2, *shape))
    (near, far), of_logits = np.zeros((2, shape[1], shape[3])), np.zeros((3, shape[1], shape[3]))
    working = np.zeros(shape[1:])
    ways = tuple(dict.fromkeys(way for each in cells.recomputes for way, _ in mixture(each)))
    for kind, (overlaps, flag) in enumerate(cells.kinds):
        stack = costs.stack_with(overlaps)
        cuts = [numbers.cut(costs, flag, each) for each in cells.recomputes]
        operations = block_operations(model, stack, cuts[0])
        for block, of_block in enumerate(operations):
            work = block_works(of_block, stack, ways)
            same = _alike(work)  # a layer without experts runs the same again, whatever of experts is named
            distinct = block_costs([work[each] for each in dict.fromkeys(same)], compute, groups, fabric)
            number = {each: place for place, each in enumerate(dict.fromkeys(same))}
            priced = [distinct[number[each]] for each in same]
            for again, cut in enumerate(cuts):
                here = (kind, again)
                for way, share in mixture(cells.recomputes[again]):
                    # Embedding and head are never recomputed: one stands for all ways.
                    each = priced[min(ways.index(way), len(priced) - 1)]
                    _add(forward[block], each.forward, here, share)
                    _add(backward[block], each.backward, here, share)
                    _add(split[block], each.split, here, share)
                    weight_grad[(block, *here)] += share * each.weight_grad
                kept[(block, *here)] = kept_bytes(of_block, cut.recompute)
            _add(at_peak[block], priced[0].at_peak, (kind,))
        for again, cut in enumerate(cuts):
            sizes = cut_memory(operations, model, stack, cut, cut.recompute)
            working[kind, again] = sizes.working
        for table, nbytes in zip(of_logits, (sizes.logits, sizes.held_logits, sizes.boundary), strict=True):
            table[kind] = nbytes
        near[kind], far[kind] = send_seconds(costs, cuts[0], numbers.tensor, numbers.send_share)
    logits, held_logits, boundary = of_logits
    seconds, nbytes = (
        (forward, backward, split, at_peak, weight_grad, near, far),
        (kept, working, logits, held_logits, boundary),
    )
    return CellPrices(cells, *seconds, *nbytes, notes=frozenset(compute.notes))


_price_one, _price_many = lru_cache(maxsize=1024)(_price_cells), lru_cache(maxsize=4)(_price_cells)


def _alike(work: Sequence[BlockWork]) -> list[int]:
    """Of each way to recompute a block, the first that runs the same operations and collectives again."""
    first: dict[tuple[Any, ...], int] = {}
    keys = [
        (each.recompute is each.forward, *map(id, (*each.recompute.operations, *each.recompute.collectives)))
        for each in work
    ]
    return [first.setdefault(key, place) for place, key in enumerate(keys)]


def _add(table: Floats, seconds: dict[Cause, Any], place: tuple[int, ...], share: float = 1.0) -> None:
    for cause, each in seconds.items():
        table[(CAUSES.index(cause), *place)] += share * each


def send_seconds(costs: CostModel, cut: Cut, group: Group, card_share: Number = 1.0) -> tuple[Any, Any]:
    """Send of one micro-batch's activations to the next stage: (inside an NVLink domain, between domains).  [s]

    With scatter/gather each tensor-parallel rank sends 1/t of the activations and the receivers gather over NVLink
    (Narayanan et al. 2021, section 4.1); under sequence parallelism the activations are cut already. Takes arrays.
    """
    nbytes = cut.width * cut.tokens * costs.model.hidden_size
    scatter = costs.stack.p2p_scatter_gather and not cut.sequence_parallel
    share = sent_bytes(costs, cut)
    regather = all_gather(nbytes, group, costs.fabric) if scatter else 0.0
    across = send(share, True, costs.fabric, card_share)
    return send(share, False, costs.fabric) + regather, across + regather


def sent_bytes(costs: CostModel, cut: Cut) -> Any:
    """What one GPU sends to the next pipeline rank: all activations, or its tensor-parallel share.  [bytes]"""
    nbytes = cut.width * cut.tokens * costs.model.hidden_size
    return nbytes / cut.tp if costs.stack.p2p_scatter_gather or cut.sequence_parallel else nbytes


def layer_costs(scenario: Scenario) -> BlockCosts:
    """Seconds of one transformer layer and micro-batch, without what data parallelism moves."""
    costs, cut = cost_model(scenario), cut_of(scenario)
    works = block_works(Block(layer=layer_operations(costs.model, costs.stack, cut)), costs.stack, (cut.recompute,))
    return block_costs(works, costs.noting(), layer_groups(scenario.plan, scenario.cluster), costs.fabric)[0]
