"""What every rank of many plans holds, and what it does with it once a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.costs.replicas import Held, Replicas
from sim.costs.stage import rank_once_a_step, reduced_bytes, tied_reduction
from sim.costs.zero import Sharded, gathered_widths, sharded_block
from sim.search.plans.columns import table
from sim.search.plans.layouts import dealt_layers
from sim.search.prices.facts import Spots, take_group
from sim.specs import Scenario
from sim.work.stages import DENSE_LAYER, EMBEDDING, HEAD, LAYER, Stage, stage_expert_params, stage_params

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class AllHeld:
    """What GPUs hold, over spots.

    blocks : of a layer, the embedding, the head, and a first layer without experts where there are such.
    ranks : of the first, a middle and the last rank (first axis).
    first_of_rank : what each of them holds first: the gradients that are complete last.
    """

    blocks: list[Held]
    ranks: Held
    first_of_rank: Held


@dataclass(frozen=True, slots=True)
class OnceAStep:
    """Gradient reduction, its tail, weight gather and update of first, middle and last rank (first axis). [s]"""

    reduce: Array
    tail: Array
    gather: Array
    update: Array
    hidden_share: Array

    def take(self, rows: Array) -> OnceAStep:
        """Of some rows instead of spots."""
        reduce, tail, gather, update = (each[:, rows] for each in (self.reduce, self.tail, self.gather, self.update))
        return OnceAStep(reduce, tail, gather, update, self.hidden_share[rows])


def params_held(scenario: Scenario, spots: Spots) -> AllHeld:
    """What is held at every spot."""
    model, plan = scenario.model, scenario.plan
    kinds = (LAYER, EMBEDDING, HEAD, Stage(0, 0, True, True), DENSE_LAYER)
    degrees, place = np.unique(np.stack([spots.tp, spots.ep]), axis=1, return_inverse=True)
    counts = np.array([[stage_params(kind, model, tp, ep) for tp, ep in degrees.T.tolist()] for kind in kinds])
    layer, embedding, head, both, dense = counts[:, place.ravel()]
    alone = spots.pp == 1
    head = np.where(alone, both - embedding, head)  # a tied projection beside its embedding adds only the norm
    layers = dealt_layers(scenario) / spots.pp
    e, h = int(plan.embedding_as_layer), int(plan.head_as_layer)
    # The first stage holds all layers without experts: see `sim.search.plans.layouts`.
    fewer = model.num_dense_layers * (dense - layer)
    single = (layers - e - h) * layer + embedding + head + fewer
    ranks = ((layers - e) * layer + embedding + fewer, layers * layer, (layers - h) * layer + head)
    firsts = (embedding, layer, np.where(alone, embedding, layer))
    # Of them experts' parameters, which no degree but ep cuts.
    of_layer = np.asarray(stage_expert_params(LAYER, model, spots.ep))
    none, without = np.zeros(len(spots.tp)), e + model.num_dense_layers
    in_ranks = ((layers - without) * of_layer, layers * of_layer, (layers - h) * of_layer)
    in_single = (layers - without - h) * of_layer
    in_firsts = (none, of_layer, np.where(alone, none, of_layer))
    blocks = [Held(layer, of_layer), Held(embedding), Held(head), Held(dense)]
    return AllHeld(
        blocks[: 4 if model.num_dense_layers else 3],
        Held(np.where(alone, single, np.stack(ranks)), np.where(alone, in_single, np.stack(in_ranks))),
        Held(np.stack(firsts), np.stack(in_firsts)),
    )


def once_a_step(
    scenario: Scenario, zero_stage: int, spots: Spots, held: AllHeld, compute: ComputeModel, fabric: Fabric
) -> OnceAStep:
    """What every rank does once a step under a ZeRO stage, over spots."""
    given = table(scenario, zero_stage=zero_stage)
    replicas = Replicas(spots.data, spots.data_of_experts)
    parts = rank_once_a_step(held.ranks, held.first_of_rank, given, replicas, replicas, compute, fabric, spots.visits)
    shape = held.ranks.params.shape
    reduce, tail, gather, update = (np.array(np.broadcast_to(part, shape), dtype=float) for part in parts)
    sent = reduced_bytes(_of_average(held.ranks.params, spots), given)
    share = fabric.hidden_share(spots.data, sent, _of_average(reduce, spots))
    return OnceAStep(reduce, tail, gather, update, np.array(np.broadcast_to(share, len(spots.tp))))


def _of_average(of_ranks: Array, spots: Spots) -> Array:
    """Mean over the ranks, of what the first, a middle and the last one have."""
    first, middle, last = of_ranks
    mean: Array = np.where(spots.pp > 1, (first + (spots.pp - 2) * middle + last) / spots.pp, first)
    return mean


def sharded_blocks(scenario: Scenario, zero_stage: int, spots: Spots, held: AllHeld, fabric: Fabric) -> list[Sharded]:
    """The blocks as ZeRO moves them at every visit, over spots."""
    given = table(scenario, zero_stage=zero_stage)
    replicas = Replicas(spots.data, spots.data_of_experts)
    return [
        sharded_block(block, width, given, replicas, fabric)
        for block, width in zip(held.blocks, gathered_widths(given), strict=True)
    ]


class AtSpots:
    """What spots hold, and its prices under every ZeRO stage, each computed once and looked up for rows."""

    def __init__(self, scenario: Scenario, spots: Spots, compute: ComputeModel, fabric: Fabric) -> None:
        self.scenario, self.spots, self.compute, self.fabric = scenario, spots, compute, fabric
        self.held = params_held(scenario, spots)
        self._once: dict[int, OnceAStep] = {}
        self._sharded: dict[int, list[Sharded]] = {}
        self._tied: Array | None = None

    def once(self, zero_stage: int, rows: Array) -> OnceAStep:
        """What the rows at these spots do once a step."""
        if zero_stage not in self._once:
            found = once_a_step(self.scenario, zero_stage, self.spots, self.held, self.compute, self.fabric)
            # Nothing waits for a rank that is not there.
            missing = np.stack([self.spots.pp < 1, self.spots.pp < 3, self.spots.pp < 2])
            found.update[missing] = found.gather[missing] = 0.0
            self._once[zero_stage] = found
        return self._once[zero_stage].take(rows)

    def sharded(self, zero_stage: int, rows: Array) -> list[Sharded]:
        """Their blocks as ZeRO moves them at every visit."""
        if zero_stage not in self._sharded:
            self._sharded[zero_stage] = sharded_blocks(self.scenario, zero_stage, self.spots, self.held, self.fabric)
        return [
            Sharded(
                take_group(each.group, rows),
                *(part[rows] for part in (each.weights, each.grads, each.gather, each.scatter)),
            )
            for each in self._sharded[zero_stage]
        ]

    def tied(self, rows: Array) -> Array:
        """Their reduction of a tied embedding's gradient between first and last rank. [s]"""
        spots = self.spots
        if not self.scenario.model.tied_embeddings:
            return np.zeros(len(rows))
        if self._tied is None:
            width = spots.tp * spots.dp * spots.cp
            self._tied = tied_reduction(self.scenario, spots.tp, width, width * spots.pp, self.fabric) * (spots.pp > 1)
        tied: Array = self._tied[rows]
        return tied
