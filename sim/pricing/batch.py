"""Plans as columns: a batch is many plans of one model on one machine, a scenario a batch of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.network.placement import (
    Degrees,
    Group,
    Hops,
    hops_of,
    place_group,
    send_share,
    stack_groups,
)
from sim.pricing.cells import CellPrices, Cells, price_cells
from sim.pricing.cost_model import CostModel, cost_model
from sim.specs import ParallelPlan, Scenario
from sim.work.recompute import recompute_word

LAYOUT = ("tp", "cp", "pp", "dp", "ep")
"""What a layout's numbers are, in this order."""


@dataclass(frozen=True, eq=False)
class Layouts:
    """How plans of one model are cut over a machine's GPUs, and where their groups lie; arrays over layouts.

    They hash by identity, so that what they take can be cached.

    degrees : (layouts, 5), in the order of LAYOUT.
    cut_experts : each over its tensor-parallel group (`plan.etp` is tp), in all of them.
    shards, expert_shards : within which ZeRO shards everything but experts, and experts.
    between_shards : of those that hold the same shard; None where all shard together.
    send_share : of a card's rate, what the switches leave where all pipeline ranks send at once.
    hops : which sends of their pipelines leave an NVLink domain.
    """

    costs: CostModel
    degrees: Ints
    tensor: Group
    context: Group
    experts: Group
    data: Group
    expert_data: Group
    shards: Group
    expert_shards: Group
    between_shards: Group | None = None
    cut_experts: bool = False
    send_share: Floats = field(default_factory=lambda: np.ones(1))
    hops: tuple[Hops, ...] = ()

    def __len__(self) -> int:
        return len(self.degrees)

    @property
    def replicas(self) -> tuple[Group, Group]:
        """Groups that hold the same and sum its gradients: of everything but experts, and of experts."""
        return self.data, self.expert_data

    @property
    def sharding(self) -> tuple[Group, Group]:
        """Groups within which ZeRO shards: everything but experts, and experts."""
        return self.shards, self.expert_shards

    def shard_of(self, params: Floats) -> Number:
        """Return what a GPU's shard has of the parameters (everything but experts, experts) that a GPU holds."""
        return sum(each / group.size for each, group in zip(params, self.sharding, strict=True))

    def of_copies(self, copies: int) -> Layouts:
        """Return layouts whose groups sum gradients over several copies of the model, without sharding over these."""
        if copies == 1:
            return self

        def over(group: Group) -> Group:
            spans = group.num_domains * copies
            return Group(group.size * copies, group.per_domain, group.shares_network, spans, group.card_share)

        data, experts = over(self.data), over(self.expert_data)
        if self.between_shards is not None:
            return replace(self, data=data, expert_data=experts, between_shards=over(self.between_shards))
        return replace(self, data=data, expert_data=experts, shards=data, expert_shards=experts)

    @cached_property
    def without_sums_between(self) -> Layouts:
        """Layouts whose sharding groups do not sum gradients among each other."""
        return self if self.between_shards is None else replace(self, between_shards=None)

    @cached_property
    def kinds_of_hops(self) -> tuple[tuple[Hops, ...], Ints]:
        """Those there are, and which of them each layout has."""
        kinds = {each: number for number, each in enumerate(dict.fromkeys(self.hops))}
        return tuple(kinds), np.array([kinds[each] for each in self.hops])

    def leaves(self, layout: Ints, sender: Ints, receiver: Ints) -> Bools:
        """Whether sends between ranks of plans with these layouts leave an NVLink domain."""
        kinds, of_layout = self.kinds_of_hops
        found = np.zeros(np.shape(sender), dtype=bool)
        for number, hops in enumerate(kinds):
            here = of_layout[layout] == number
            found[here] = hops.cross(sender[here], receiver[here])
        return found

    @cached_property
    def all_hops_leave(self) -> Bools:
        """Whether every send between ranks of their pipelines leaves its NVLink domain."""
        return np.array([each.all_leave for each in self.hops])

    @cached_property
    def tp(self) -> Ints:
        """Tensor-parallel degree."""
        return np.ascontiguousarray(self.degrees[:, 0])

    @cached_property
    def pp(self) -> Ints:
        """Pipeline ranks."""
        return np.ascontiguousarray(self.degrees[:, 2])

    @cached_property
    def ep(self) -> Ints:
        """Expert-parallel degree."""
        return np.ascontiguousarray(self.degrees[:, 4])

    @cached_property
    def etp(self) -> Ints:
        """Expert tensor parallel degree."""
        return self.tp if self.cut_experts else np.ones_like(self.tp)


def place_layouts(costs: CostModel, degrees: Sequence[Sequence[int]] | Ints, plan: ParallelPlan) -> Layouts:
    """Place layouts (tp, cp, pp, dp, ep) on the cluster.

    plan : all layouts have its `sharding_group` and placement, and their experts are whole or cut over the
        tensor-parallel group as its are.
    """
    return _place(costs, np.asarray(degrees, dtype=np.int64), plan.etp > 1, plan.sharding_group, plan.placement)


def _place(costs: CostModel, numbers: Ints, cut: bool, group_size: int | None, placement: str) -> Layouts:
    cluster = costs.cluster
    plans = [Degrees(tp, cp, pp, dp, ep, tp if cut else 1, placement) for tp, cp, pp, dp, ep in numbers.tolist()]
    tensor, context, experts, data, of_experts = (
        stack_groups([place_group(kind, plan, cluster) for plan in plans])
        for kind in ("tp", "cp", "ep", "shards", "expert_shards")
    )
    shards, expert_shards, between = data, of_experts, None
    if group_size is not None:
        shards, expert_shards, between = (
            stack_groups([place_group(kind, plan, cluster, group_size) for plan in plans])
            for kind in ("shards", "expert_shards", "between")
        )
    return Layouts(
        costs,
        numbers,
        tensor,
        context,
        experts,
        data,
        of_experts,
        shards,
        expert_shards,
        between,
        cut_experts=cut,
        send_share=np.array([send_share(plan, cluster) for plan in plans]),
        hops=tuple(hops_of(plan, cluster) for plan in plans),
    )


@dataclass(frozen=True)
class Batch:
    """Plans as columns of numbers, which broadcast: one axis over plans, or ways to recompute × rows, or the like.

    layouts, layout : how the plans are cut over GPUs, and which of these each plan has.
    prices, cell : what their cuts take with their micro-batches, and which of these each plan has.
    kind, recompute : places in `prices.cells.kinds` and `.recomputes`.
    embedding_as_layer, head_as_layer : of all plans, where layers are dealt evenly.
    optimizer_offload : of all plans; where only memory is asked for, also an array over them.
    reshard_after_forward, outer_zero_stage : of all plans; the last where the ZeRO stage is 3.
    """

    layouts: Layouts
    prices: CellPrices
    layout: Ints
    cell: Ints
    kind: Ints
    recompute: Ints
    zero_stage: Ints
    num_chunks: Ints
    num_microbatches: Ints
    overlap_p2p: Bools
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    embedding_as_layer: bool = False
    head_as_layer: bool = False
    optimizer_offload: Number = 0.0
    reshard_after_forward: bool = True
    outer_zero_stage: int = 0

    @property
    def costs(self) -> CostModel:
        """Model and machine of all plans."""
        return self.layouts.costs

    def take(self, places: Any) -> Batch:
        """Some of the plans, of a batch with one axis."""
        return replace(self, **{name: getattr(self, name)[places] for name in COLUMNS})

    @cached_property
    def tp(self) -> Ints:
        """Tensor-parallel degree."""
        return np.asarray(self.layouts.tp[self.layout])

    @cached_property
    def pp(self) -> Ints:
        """Pipeline ranks."""
        return np.asarray(self.layouts.pp[self.layout])

    @cached_property
    def ep(self) -> Ints:
        """Expert-parallel degree."""
        return np.asarray(self.layouts.ep[self.layout])

    @cached_property
    def etp(self) -> Ints:
        """Expert tensor parallel degree."""
        return np.asarray(self.layouts.etp[self.layout])

    @cached_property
    def moving_stage(self) -> Ints:
        """The ZeRO stage whose traffic a plan has: where a pipeline's micro-batches keep what 3 gathers, that of 1."""
        kept = (self.zero_stage == 3) & (self.pp > 1) & (not self.reshard_after_forward)
        return np.where(kept, 1, self.zero_stage)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of what is asked of all plans."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in COLUMNS))

    @cached_property
    def place(self) -> tuple[Any, ...]:
        """Where the plans' cells stand in arrays over (kinds, recomputes, cells)."""
        return (self.kind, self.recompute, self.cell)


COLUMNS = tuple(column.name for column in fields(Batch) if column.type in ("Ints", "Bools"))
"""Fields of a batch that are columns: a new one is among them by its type."""
_FIRST = np.zeros(1, dtype=np.int64)


def batch_of(scenario: Scenario) -> Batch:
    """A scenario as a batch of one plan."""
    costs, plan, stack = cost_model(scenario), scenario.plan, scenario.stack
    degrees = (plan.tp, plan.cp, plan.pp, plan.dp, plan.ep)
    layouts = _layout_of(costs, degrees, plan.etp > 1, plan.sharding_group, plan.placement)
    cells = Cells(
        layouts.tp,
        layouts.degrees[:, 1],
        layouts.ep,
        layouts.etp,
        np.array([float(plan.microbatch_size)]),
        layouts.tensor,
        layouts.context,
        layouts.experts,
        layouts.send_share,
        ((stack.overlap_tp_backward, plan.sequence_parallel),),
        (recompute_word(plan, scenario.model),),
        plan.sequence_slices,
        plan.offloaded_layers,
    )
    return Batch(
        layouts,
        price_cells(costs, cells),
        layout=_FIRST,
        cell=_FIRST,
        kind=_FIRST,
        recompute=_FIRST,
        zero_stage=np.array([plan.zero_stage]),
        num_chunks=np.array([plan.num_chunks]),
        num_microbatches=np.array([scenario.num_microbatches]),
        overlap_p2p=np.array([stack.overlap_p2p]),
        overlap_grad_reduce=np.array([stack.overlap_grad_reduce]),
        overlap_param_gather=np.array([stack.overlap_param_gather]),
        embedding_as_layer=plan.embedding_as_layer,
        head_as_layer=plan.head_as_layer,
        optimizer_offload=plan.optimizer_offload,
        reshard_after_forward=plan.reshard_after_forward,
        outer_zero_stage=plan.outer_zero_stage,
    )


@lru_cache(maxsize=1024)
def _layout_of(
    costs: CostModel, degrees: tuple[int, ...], cut: bool, group_size: int | None, placement: str
) -> Layouts:
    """Return the layout of one plan: the same one for plans that are cut alike."""
    return _place(costs, np.array([degrees]), cut, group_size, placement)


def find_cells(
    layouts: Layouts,
    layout: Ints,
    microbatch_size: Ints,
    kinds: tuple[tuple[bool, bool], ...],
    recomputes: tuple[str, ...],
    slices: int = 1,
    offloaded_layers: int = 0,
) -> tuple[Cells, Ints]:
    """All cells of plans, and which of them each plan has."""
    groups = (layouts.tensor, layouts.context, layouts.experts)
    alike = ("per_domain", "spans", "shares_network", "card_share")
    lies = [getattr(group, name) for group in groups for name in alike]
    degrees = [layouts.tp, layouts.degrees[:, 1], layouts.ep, layouts.etp]
    _, first, cut = np.unique(
        np.stack([*degrees, *lies, layouts.send_share], axis=1), axis=0, return_index=True, return_inverse=True
    )
    sizes, size = np.unique(microbatch_size, return_inverse=True)
    codes, cell = np.unique(cut.ravel()[layout] * len(sizes) + size, return_inverse=True)
    chosen = first[codes // len(sizes)]
    tp, cp, ep, etp = (each[chosen] for each in degrees)
    tensor, context, experts = (group.take(chosen) for group in groups)
    size_of = sizes[codes % len(sizes)].astype(float)
    cells = Cells(
        tp,
        cp,
        ep,
        etp,
        size_of,
        tensor,
        context,
        experts,
        layouts.send_share[chosen],
        kinds,
        recomputes,
        slices,
        offloaded_layers,
    )
    return cells, cell


def assumed(layouts: Layouts) -> Iterator[str]:
    """Which kinds of groups switches slow, and what they leave them."""
    shares = {
        "pipeline sends": layouts.send_share,
        "tensor-parallel": layouts.tensor.card_share,
        "context-parallel": layouts.context.card_share,
        "expert-parallel": layouts.experts.card_share,
        "replicas": layouts.data.card_share,
    }
    if np.max(layouts.ep) > 1:
        shares["replicas of experts"] = layouts.expert_data.card_share
    left = ", ".join(f"{name} {np.min(share):.0%}" for name, share in shares.items() if np.min(share) < 1)
    if left:
        yield f"switches leave of a network card where all groups of a kind talk at once: {left}"
