"""Which kinds of stages and ranks plans have: alike stages are priced once.

A plan's layers are dealt to stages, and the stages to ranks. Of evenly dealt layers a pipeline has three kinds of
stages and of ranks (with the embedding, with the head, and those in the middle), however deep it is; any other deal has
few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Ints
from sim.pricing.batch import Batch, Layouts
from sim.pricing.cost_model import CostModel
from sim.pricing.ranks import DENSE_FIRST, EMBEDDING_FIRST, LAYER_FIRST, RankKind
from sim.specs import ModelSpec, ParallelPlan
from sim.work.stages import ModelPart, Stage, deal_stages


@dataclass(frozen=True)
class Deal:
    """The stages of one plan, of all copies of its model.

    copies : of the model. ends_apart : whether its first and last stage are on different ranks.
    stage_parts, kind_of_stage : what each kind of stage holds; and of which kind each stage is.
    rank_kinds, kind_of_rank : the same of ranks.
    """

    stages: tuple[Stage, ...]
    stage_parts: tuple[ModelPart, ...]
    kind_of_stage: Ints
    rank_kinds: tuple[RankKind, ...]
    kind_of_rank: Ints
    copies: int
    ends_apart: bool

    @property
    def alone(self) -> bool:
        """Whether embedding and head share a stage."""
        return bool(self.stages[0].has_head)


def deal_of(costs: CostModel, plan: ParallelPlan, rank_of_stage: Ints, copies: int) -> Deal:
    """Deal the layers of a plan to stages, and the stages to ranks as an order does; remembered."""
    how = (plan.num_stages, plan.embedding_as_layer, plan.head_as_layer, plan.uneven_layers)
    key = ("deal", how, rank_of_stage.tobytes(), copies)
    found: Deal | None = costs.known.get(key)
    if found is None:
        found = _deal(deal_stages(costs.model, plan), rank_of_stage, copies)
        costs.remember(key, found)
    return found


def _deal(stages: tuple[Stage, ...], rank_of_stage: Ints, copies: int) -> Deal:
    stages = stages * copies
    parts = [stage.part for stage in stages]
    kinds = list(dict.fromkeys(parts))
    number = {part: place for place, part in enumerate(kinds)}
    held: list[tuple[ModelPart, int]] = []
    for rank in range(int(rank_of_stage.max()) + 1):
        here = np.flatnonzero(rank_of_stage == rank).tolist()
        first = stages[here[0]]
        block = EMBEDDING_FIRST if first.has_embedding else DENSE_FIRST if first.num_dense_layers else LAYER_FIRST
        held.append((sum((parts[stage] for stage in here), ModelPart()), block))
    alike = list(dict.fromkeys(held))
    return Deal(
        stages,
        tuple(kinds),
        np.array([number[part] for part in parts]),
        tuple(RankKind(*each, held.count(each)) for each in alike),
        np.array([alike.index(each) for each in held]),
        copies,
        bool(rank_of_stage[0] != rank_of_stage[len(stages) // copies - 1]),
    )


def dealt_layers(model: ModelSpec, plan: ParallelPlan | Batch) -> int:
    """Layers that are dealt to stages, embedding and head counted where the plan says so."""
    return model.num_layers + plan.embedding_as_layer + plan.head_as_layer


def dealt_stages(batch: Batch) -> tuple[ModelPart, ...]:
    """What the first, a middle and the last stage of every plan hold; and a longer middle one, where there are such.

    The only stage of a plan has all, whichever it is taken for. The first stage holds all layers without experts. Where
    the stages do not divide the layers those from the second on hold one more (`sim.work.stages.deal_stages`).
    """
    model, stages = batch.costs.model, batch.pp * batch.num_chunks
    alone = stages == 1
    layers, rest = np.divmod(dealt_layers(model, batch), stages)
    e, h, dense = int(batch.embedding_as_layer), int(batch.head_as_layer), model.num_dense_layers
    first = ModelPart(layers - e - h * alone, dense, 1, alone * 1, alone * 1)
    to_last = ~alone & (rest == stages - 1)
    last = ModelPart(layers - h - e * alone + to_last, dense * alone, alone * 1, 1, alone * 1)
    return first, ModelPart(layers), last, *([ModelPart(layers + 1)] if rest.any() else [])


def dealt_ranks(batch: Batch) -> tuple[RankKind, ...]:
    """The first, the second and the last rank of every layout; and a shorter middle one, where there are such.

    Of layouts whose ranks do not divide the layers each rank has one stage (`sim.work.stages.deal_stages`).
    """
    pp, model = batch.layouts.pp, batch.costs.model
    alone, e, h, dense = pp == 1, int(batch.embedding_as_layer), int(batch.head_as_layer), model.num_dense_layers
    layers, rest = np.divmod(dealt_layers(model, batch), pp)
    first = ModelPart(layers - e - h * alone, dense, 1, alone * 1, alone * 1)
    last = ModelPart(layers - h + (~alone & (rest == pp - 1)), 0, 0, 1, 0)
    between, longer = np.maximum(pp - 2, 0), longer_ranks(model, batch, batch.layouts)
    kinds = [
        RankKind(first, EMBEDDING_FIRST, np.ones_like(pp)),
        RankKind(ModelPart(layers + (longer > 0)), LAYER_FIRST, np.where(longer > 0, longer, between)),
        RankKind(last, LAYER_FIRST, (pp > 1) * 1),
    ]
    if longer.any():
        kinds.append(RankKind(ModelPart(layers), LAYER_FIRST, np.where(longer > 0, between - longer, 0)))
    return tuple(kinds)


def longer_ranks(model: ModelSpec, plan: ParallelPlan | Batch, layouts: Layouts) -> Ints:
    """How many of the middle ranks of every layout hold a layer more than others; they follow the first rank."""
    return np.asarray(np.minimum(dealt_layers(model, plan) % layouts.pp, np.maximum(layouts.pp - 2, 0)))
