"""Which virtual pipeline stage holds what: layers, embedding, head, multi-token prediction; and its parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.specs import ModelSpec, ParallelPlan
from sim.specs.dealing import layers_of_stages

EMBEDDING, HEAD, FIRST_KIND = range(3)
"""Places on the axis over blocks; the kinds of layers follow one another, and last comes multi-token prediction."""


def num_blocks(model: ModelSpec) -> int:
    """Return how many blocks a model is made of: embedding, head, the kinds of layers, multi-token prediction.

    Seconds and bytes of blocks stand in this order wherever blocks are an axis. The last is there of all models, and
    held by none that has no such modules.
    """
    return FIRST_KIND + len(model.layer_kinds) + 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual stage: what it holds of the model.

    layers : of each of the model's `layer_kinds`. num_mtp : modules of multi-token prediction.
    first_kind : of the first of its layers, as a place in `layer_kinds`.
    tied : the head has the embedding's table.
    """

    index: int
    layers: tuple[int, ...]
    has_embedding: bool
    has_head: bool
    num_mtp: int = 0
    first_kind: int = 0
    tied: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of all kinds, modules of multi-token prediction apart."""
        return sum(self.layers)

    @property
    def part(self) -> Floats:
        """How often it has each block; and behind the blocks, how many of the vocabulary's tables that these need it
        holds once for two of them.

        The embedding and every module of multi-token prediction look tokens up in one table, which a tied head shares.
        """
        readers = self.has_embedding + self.num_mtp
        shared = max(0, readers - 1) + (self.tied and self.has_head and readers > 0)
        return np.array([self.has_embedding, self.has_head, *self.layers, self.num_mtp, shared], dtype=float)


def deal_stages(model: ModelSpec, plan: ParallelPlan) -> tuple[Stage, ...]:
    """Deal the layers, in order, to the stages: as the plan's layout says, or evenly.

    Evenly, the first stage holds the embedding, the last the head and multi-token prediction; `embedding_as_layer` and
    `head_as_layer` let them take the place of a layer (Llama 3, arXiv:2407.21783, section 3.3.2). Under
    `uneven_layers` some get one more.
    """
    numbers = layers_of_stages(model.num_layers, plan)
    last = len(numbers) - 1
    others = [(index == 0, index == last, model.num_mtp_layers * (index == last)) for index in range(last + 1)]
    if plan.pipeline_layout:
        others = [("E" in each, "L" in each, each.count("m")) for each in plan.stages_of_layout]
    stages, first = [], 0
    for index, (number, other) in enumerate(zip(numbers, others, strict=True)):
        held = model.kind_of_layer[first : first + number]
        layers = tuple(held.count(kind) for kind in model.layer_kinds)
        kind = model.layer_kinds.index(held[0]) if held else 0
        stages.append(Stage(index, layers, *other, kind, model.tied_embeddings))
        first += number
    return tuple(stages)
