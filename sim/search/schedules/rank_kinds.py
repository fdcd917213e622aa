"""What the ranks of many plans do once a step and hold in memory, by which stages they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.costs.block import cut_of
from sim.costs.replicas import Held, Replicas
from sim.costs.stage import rank_once_a_step, reduced_bytes
from sim.network.placement import Group
from sim.search.plans.columns import RECOMPUTES, table
from sim.search.plans.layouts import dealt_layers
from sim.search.prices.facts import take_group
from sim.search.prices.stages import cell_scenario, of_stages
from sim.search.schedules.split_passes import Field
from sim.work.memory import CutMemory, cut_memory, memory_of, stage_activation_bytes
from sim.work.stages import DENSE_LAYER, EMBEDDING, HEAD, LAYER

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class RankKind:
    """Which stages a rank holds.

    share : of all layers dealt to a rank of a model without copies.
    firsts, lasts : first and last stages among them.
    begins : whether its first stage is the one with the embedding, whose gradients are complete last.
    """

    share: float
    firsts: int
    lasts: int
    begins: bool


@dataclass(frozen=True, slots=True)
class OfRank:
    """Once a step, of plans: gradient reduction, its tail, weight gather, update [s]; and parameters held."""

    reduce: Array
    tail: Array
    gather: Array
    update: Array
    params: Array


class Ranks:
    """Once-a-step seconds and memory of the ranks of a field's plans; looked up once a layout or cell."""

    def __init__(self, field: Field) -> None:
        self.field, self.copies = field, field.variant.schedule.copies
        self._once: dict[tuple[RankKind, int], OfRank] = {}
        self._held: dict[RankKind, tuple[Held, Held]] = {}
        self._bytes = _look_up_bytes(field)

    def held(self, kind: RankKind) -> tuple[Held, Held]:
        """What such a rank holds, and what of it comes first; over spots."""
        if kind not in self._held:
            at, plan, model = self.field.at_spots, self.field.scenario.plan, self.field.scenario.model
            layer, embedding, head, *dense = at.held.blocks
            layers = kind.share * dealt_layers(self.field.scenario) / self.field.facts.spots.pp
            layers = layers - kind.firsts * plan.embedding_as_layer - kind.lasts * plan.head_as_layer
            held = layer * layers + embedding * kind.firsts + head * kind.lasts
            for each in dense:
                held = held + (each + layer * -1.0) * (model.num_dense_layers * kind.firsts)
            self._held[kind] = held, embedding if kind.begins else layer
        return self._held[kind]

    def once(self, kind: RankKind, plans: Array, repeated: Array) -> OfRank:
        """What such a rank does once a step.

        repeated : whether the order turns to a stage more than once.
        """
        field = self.field
        spot = field.variant.columns.layout[field.row[plans]] + len(field.variant.space.layouts) * repeated
        answer = np.empty((5, len(plans)))
        for zero_stage in range(4):
            here = np.flatnonzero(field.zero_stage[plans] == zero_stage)
            if not len(here):
                continue
            if (kind, zero_stage) not in self._once:
                self._once[kind, zero_stage] = self._price(kind, zero_stage)
            found = self._once[kind, zero_stage]
            for part, name in zip(answer, OfRank.__slots__, strict=True):
                part[here] = getattr(found, name)[spot[here]]
        return OfRank(*answer)

    def _price(self, kind: RankKind, zero_stage: int) -> OfRank:
        field, spots = self.field, self.field.facts.spots
        given = table(field.scenario, zero_stage=zero_stage)
        held, first = self.held(kind)
        replicas = Replicas(spots.data, spots.data_of_experts)
        summed = replicas if self.copies == 1 else Replicas(*(self._over_copies(each) for each in
                                                              (replicas.data, replicas.experts)))  # fmt: skip
        parts = rank_once_a_step(held, first, given, replicas, summed, field.compute, field.fabric, spots.visits)
        return OfRank(*(np.array(np.broadcast_to(each, len(spots.tp)), dtype=float) for each in (*parts, held.params)))

    def _over_copies(self, group: Group) -> Group:
        more = self.copies
        return Group(group.size * more, group.per_domain, group.shares_network, group.num_domains * more)

    def hidden_share(self, plans: Array, params: Array, reduce: Array) -> Array:
        """Of data-parallel communication beside compute, the share of its time that is really hidden.

        params, reduce : of the average rank. [-], [s]
        """
        field = self.field
        data = take_group(field.facts.spots.data, field.variant.columns.layout[field.row[plans]])
        twice = np.where(field.zero_stage[plans] == 0, 2.0, 1.0)  # an all-reduce sends gradients twice
        once = table(field.scenario, zero_stage=1)
        share = field.fabric.hidden_share(data, twice * reduced_bytes(params, once), reduce)
        return np.asarray(np.broadcast_to(share, len(plans)))

    def tied(self, plans: Array) -> Array:
        """Reduction of a tied embedding's gradient between two ranks. [s]"""
        return self.field.at_spots.tied(self.field.variant.columns.layout[self.field.row[plans]])

    def memory(self, kind: RankKind, plans: Array, alive: Array, logits: Array | float, versions: int = 1) -> Array:
        """Peak memory of such a rank.  [bytes]

        alive : first, middle and last stages' micro-batches kept at once, axis 0; one of the moments of axis 1 is where
            memory peaks.
        logits : micro-batches whose logits are kept.
        """
        field, row = self.field, self.field.row[plans]
        columns = field.variant.columns.take(row)
        place = (field.sequence_parallel[plans].astype(int), field.recompute[plans], field.facts.cell[row])
        layer, embedding, head, dense, working, of_logits, held_logits, boundary = self._bytes[(slice(None), *place)]
        blocks = (layer, embedding, head, *([dense] if field.scenario.model.num_dense_layers else []))
        peak = (alive.T.astype(float) @ np.stack(of_stages(field.scenario, columns, *blocks))).max(axis=0)
        held, _ = self.held(kind)
        held = held.take(columns.layout)
        needed = np.empty(len(plans))
        for zero_stage in range(4):
            here = np.flatnonzero(field.zero_stage[plans] == zero_stage)
            if not len(here):
                continue
            numbers: Any = {name: getattr(columns, name)[here] for name in ("tp", "cp", "pp", "dp", "ep", "num_chunks")}
            given = table(field.scenario, zero_stage=zero_stage, **numbers)
            of_cut = CutMemory(*(each[here] for each in (working, of_logits, held_logits, boundary)))
            part = held.take(here)
            needed[here] = memory_of(given, of_cut, part.params, peak[here], logits, versions, part.experts).total
        return needed


def _look_up_bytes(field: Field) -> Array:
    """Activations of layer, embedding, head and dense layer, then the fields of CutMemory; then sequence parallelism,
    recompute, cell. [bytes]"""
    scenario, cells = field.scenario, field.facts.cells
    found = np.zeros((8, 2, len(RECOMPUTES), len(cells.tp)))
    for flag in {*field.sequence_parallel.tolist()}:
        for number, recompute in enumerate(RECOMPUTES):
            given = cell_scenario(scenario, scenario.stack, cells, flag, recompute, field.variant.slices)
            cut = cut_of(given)
            kinds = (LAYER, EMBEDDING, HEAD, *([DENSE_LAYER] if scenario.model.num_dense_layers else []))
            for place, kind in enumerate(kinds):
                found[place, int(flag), number] = stage_activation_bytes(kind, scenario.model, scenario.stack, cut)
            sizes = cut_memory(given, cut)
            for place, part in enumerate((sizes.working, sizes.logits, sizes.held_logits, sizes.boundary), start=4):
                found[place, int(flag), number] = part
    return found
