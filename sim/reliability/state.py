"""What a checkpoint holds: which GPU has which bytes of weights and optimizer state, and how many others have the same.

Frozen weights, beside which adapters are trained, are read at a start and never written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sim.arrays import Floats, Ints, Number
from sim.engines.program import price_order
from sim.errors import require_positive
from sim.network.placement import Group, places_of_ranks
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import HELD, MOMENTS, TRAINED, Deal, params_of
from sim.pricing.stages import params_of_ranks
from sim.specs import Scenario
from sim.work.layers import EMBEDDING, HEAD
from sim.work.optimizer import state_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the state that every GPU has some of, and several GPUs the same.

    held_bytes : by one GPU of each pipeline rank. [bytes]
    own_bytes : of these, what no rank before it holds, which a checkpoint has of it. [bytes]
    copies : GPUs that hold the same.
    group : of these, where there are more than one.
    saved : a checkpoint has it.
    on_gpu : share of it that is not in host memory anyway.
    """

    kind: Literal["weights", "optimizer", "frozen weights"]
    held_bytes: Floats
    own_bytes: Floats
    copies: int = 1
    group: Group | None = None
    saved: bool = True
    on_gpu: float = 1.0

    def scaled(self, share: float) -> Piece:
        """A share of it on every GPU."""
        return replace(self, held_bytes=share * self.held_bytes, own_bytes=share * self.own_bytes)


@dataclass(frozen=True, slots=True)
class Spread:
    """Bytes that GPUs write, read or hold: all of them, of the node with most, of the GPU with most. [bytes]"""

    total: float
    node: float
    gpu: float


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run over its GPUs: pipeline rank after pipeline rank `width` of each.

    places : of these, in the order in which the nodes fill.
    """

    pieces: tuple[Piece, ...]
    width: int
    gpus_per_node: int
    places: Ints

    @property
    def checkpoint_bytes(self) -> float:
        """Size of a checkpoint: everything that is saved, once. [bytes]"""
        return float(sum(piece.own_bytes.sum() * self.width / piece.copies for piece in self.pieces if piece.saved))

    @property
    def num_nodes(self) -> int:
        """Nodes that the state lies on."""
        return -(-self.width * len(self.pieces[0].held_bytes) // self.gpus_per_node)

    def saved(self, parallel: bool) -> Spread:
        """What is written of a checkpoint, by all who hold a piece of it or by the first of them."""
        pieces = tuple(piece for piece in self.pieces if piece.saved)
        return self._shared(pieces) if parallel else self._first(pieces)

    def copied(self, parallel: bool) -> Spread:
        """Saved bytes that are copied from GPUs; the others are in host memory already."""
        there = tuple(piece.scaled(piece.on_gpu) for piece in self.pieces)
        return replace(self, pieces=there).saved(parallel)

    def offloaded(self) -> Spread:
        """What host memory holds of it."""
        return self._whole(tuple(each.scaled(1.0 - each.on_gpu) for each in self.pieces))

    def read(self, by: Literal["all", "one", "shares"]) -> Spread:
        """What is read at a start: all by everyone, or each piece once, by one who holds it or a share by each."""
        return {"all": self._whole, "one": self._first, "shares": self._shared}[by](self.pieces)

    def _first(self, pieces: tuple[Piece, ...]) -> Spread:
        """Spread with every piece whole on the first GPU that holds it.

        They are neighbours: whoever holds another part of a layer stands nearer than who holds the same, as
        tensor-parallel ranks and the members of a sharding group follow each other (`sim.network.placement`).
        """
        total = np.zeros((len(self.pieces[0].held_bytes), self.width))
        for piece in pieces:
            total[:, : self.width // piece.copies] += piece.own_bytes[:, np.newaxis]
        return self._spread(total.ravel())

    def _shared(self, pieces: tuple[Piece, ...]) -> Spread:
        """Spread with every piece divided evenly among the GPUs that hold it."""
        return self._spread(np.repeat(np.sum([each.own_bytes / each.copies for each in pieces], axis=0), self.width))

    def _whole(self, pieces: tuple[Piece, ...]) -> Spread:
        """Spread of everything that every GPU holds."""
        return self._spread(np.repeat(np.sum([each.held_bytes for each in pieces], axis=0), self.width))

    def _spread(self, bytes_of_gpus: Floats) -> Spread:
        nodes = self.places // self.gpus_per_node
        node = float(np.bincount(nodes, weights=bytes_of_gpus).max())
        return Spread(float(bytes_of_gpus.sum()), node, float(bytes_of_gpus.max()))


def _held(
    nbytes: Number, own: Number, sharded: bool, everyone: Group, within: Group, between: Group | None
) -> tuple[Floats, Floats, int, Group]:
    """What one GPU has of so many bytes and of its rank's own, how many have the same, and who they are.

    everyone : GPUs that hold the same parameters. within : a sharding group of them. between : of those that hold the
        same shard; None where all shard together.
    """
    count, size = int(np.max(everyone.size)), int(np.max(within.size)) if sharded else 1
    group = everyone if size == 1 or between is None else between
    held, first = (np.asarray(each, dtype=float) / size for each in (nbytes, own))
    return held, first, count // size, group.take(0)


def _own_params(plans: Plans, deal: Deal, tied: bool) -> Floats:
    """Parameters that one GPU of every rank holds, of one plan, and no rank before it.

    Two pipelines through the ranks, as DualPipe's, hold every stage twice; embedding, tied head and multi-token
    prediction share a table of which each rank that reads it has a copy, saved once
    (NVIDIA/Megatron-LM:megatron/core/models/common/language_module/language_module.py, tie_word_embeddings_state_dict).
    """
    seen, table, parts = set[int](), False, list[Floats]()
    for rank in range(len(deal.kind_of_rank)):
        here = [stage for stage in np.flatnonzero(deal.rank_of_stage == rank) if deal.stages[stage].index not in seen]
        seen |= {deal.stages[stage].index for stage in here}
        part = sum((deal.stages[stage].part for stage in here), np.zeros(deal.stage_kinds.shape[1]))
        readers = part[EMBEDDING] + part[-2] + tied * part[HEAD]
        part[-1] = readers - (readers > 0 and not table)
        parts.append(part)
        table = table or bool(readers)
    return params_of(np.array(parts), plans.layouts)[..., 0]


def even_state(nbytes: float, num_gpus: int, gpus_per_node: int) -> State:
    """A state of so many bytes that lies evenly over all GPUs."""
    require_positive(num_gpus=num_gpus)
    held = np.full(num_gpus, nbytes / num_gpus)
    return State((Piece("optimizer", held, held),), 1, gpus_per_node, np.arange(num_gpus))


def state_of(scenario: Scenario) -> State:
    """The state of a scenario's run.

    Weights are replicated unless ZeRO stage 3 shards them, the optimizer's state unless any stage does; experts are
    copied over groups of their own. Fully sharded frameworks whose shards are fp32 have no 16-bit weights besides.
    """
    plans = plans_of(scenario)
    plan, training, stack, layouts = scenario.plan, scenario.training, scenario.stack, plans.layouts
    deal = price_order(scenario, plans)[2]
    held, owned = params_of_ranks(plans, deal), _own_params(plans, deal, scenario.model.tied_embeddings)
    trained, stage = held[TRAINED].sum(axis=0), plan.zero_stage
    width = 0.0 if stage == 3 and stack.fp32_shards else float(training.activation_bytes)
    # Bytes of optimizer state a parameter; experts have the average rank's.
    everywhere, on_gpu = (
        state_bytes(trained, held[MOMENTS], training, stack, offloaded) for offloaded in (0.0, plan.optimizer_offload)
    )
    each = everywhere / np.maximum(trained, 1e-30)
    kept = float(np.sum(on_gpu) / max(float(np.sum(everywhere)), 1e-30))
    pieces: list[Piece] = []
    rows = (held[HELD], held[TRAINED], owned[HELD], owned[TRAINED])
    for name, params, own, first, of_first in zip(("others", "experts"), *rows, strict=True):
        if not params.any():
            continue
        holders = (layouts.data, layouts.shards, layouts.between)
        if name == "experts":
            holders = (layouts.expert_data, layouts.expert_shards, layouts.between)
        if training.adapter_rank:
            nbytes = training.activation_bytes
            frozen = _held(nbytes * (params - own), nbytes * (first - of_first), stage == 3, *holders)
            pieces.append(Piece("frozen weights", *frozen, saved=False))
        if width:
            pieces.append(Piece("weights", *_held(width * own, width * of_first, stage == 3, *holders)))
        pieces.append(Piece("optimizer", *_held(each * own, each * of_first, stage > 0, *holders), on_gpu=kept))
    places = places_of_ranks(plan.placement, (plan.tp, plan.cp, plan.dp, plan.pp)).ravel()
    return State(tuple(pieces), plan.tp * plan.cp * plan.dp, scenario.cluster.node.gpus_per_node, places)
