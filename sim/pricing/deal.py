"""Which kinds of stages and ranks plans have: alike stages are priced once.

A plan's layers are dealt to stages, and the stages to ranks. Of evenly dealt layers a pipeline has three kinds of
stages and of ranks (with the embedding, with the head, and those in the middle), however deep it is; any other deal has
few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Ints, Number
from sim.pricing.batch import Batch, Layouts
from sim.pricing.cost_model import CostModel
from sim.pricing.ranks import RankKind
from sim.specs import ModelSpec, ParallelPlan
from sim.specs.dealing import num_stages_of
from sim.work.stages import EMBEDDING, FIRST_KIND, HEAD, ModelPart, Stage, deal_stages
from sim.work.sums import layer_params


@dataclass(frozen=True)
class Deal:
    """The stages of one plan, of all copies of its model.

    copies : of the model. span : pipeline ranks from that of its first stage to that of its last, both counted.
    stage_parts, kind_of_stage : what each kind of stage holds; and of which kind each stage is.
    rank_kinds, kind_of_rank : the same of ranks.
    """

    stages: tuple[Stage, ...]
    stage_parts: tuple[ModelPart, ...]
    kind_of_stage: Ints
    rank_kinds: tuple[RankKind, ...]
    kind_of_rank: Ints
    copies: int
    span: int

    @property
    def alone(self) -> bool:
        """Whether embedding and head share a stage."""
        return bool(self.stages[0].has_head)


def deal_of(costs: CostModel, plan: ParallelPlan, rank_of_stage: Ints, copies: int) -> Deal:
    """Deal the layers of a plan to stages, and the stages to ranks as an order does; remembered."""
    stages = num_stages_of(costs.model.num_layers, plan)
    how = (stages, plan.embedding_as_layer, plan.head_as_layer, plan.uneven_layers, plan.pipeline_layout)
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
        held.append((sum((parts[stage] for stage in here), ModelPart()), first_block(stages[here[0]])))
    alike = list(dict.fromkeys(held))
    return Deal(
        stages,
        tuple(kinds),
        np.array([number[part] for part in parts]),
        tuple(RankKind(*each, held.count(each)) for each in alike),
        np.array([alike.index(each) for each in held]),
        copies,
        1 + abs(int(rank_of_stage[0]) - int(rank_of_stage[len(stages) // copies - 1])),
    )


def first_block(stage: Stage) -> int:
    """Which block is first on a stage, as a place on the axis over blocks."""
    if stage.has_embedding:
        return EMBEDDING
    if stage.num_layers:
        return FIRST_KIND + stage.first_kind
    return FIRST_KIND + len(stage.layers) if stage.num_mtp else HEAD


def dealt_layers(model: ModelSpec, plan: ParallelPlan | Batch) -> int:
    """Layers that are dealt to stages, embedding and head counted where the plan says so."""
    return model.num_layers + plan.embedding_as_layer + plan.head_as_layer


def dealt_stages(batch: Batch, fullest: bool = False) -> tuple[ModelPart, ...]:
    """What the first, a middle and the last stage of every plan hold; and a longer middle one, where there are such.

    The only stage of a plan has all, whichever it is taken for. Where the stages do not divide the layers those from
    the second on hold one more (`sim.work.stages.deal_stages`). Of a model of several kinds of layers all middle stages
    are taken for their mean: what each of them takes is then right in sum, and no more than the busiest takes. Or for
    that of the most parameters (`fullest`), so that none holds more.
    """
    model, stages = batch.costs.model, batch.pp * batch.num_chunks
    alone = stages == 1
    layers, rest = np.divmod(dealt_layers(model, batch), stages)
    e, h, mtp = int(batch.embedding_as_layer), int(batch.head_as_layer), model.num_mtp_layers
    to_last = ~alone & (rest == stages - 1)
    of_first, of_last = layers - e - h * alone, layers - h - e * alone + to_last
    ends = _ends(batch, of_first, of_last, stages, fullest)
    shared = _shared_tables(model)
    first = ModelPart(ends.first, 1, alone * 1, alone * mtp, alone * shared[0])
    last = ModelPart(ends.last, alone * 1, 1, mtp, np.where(alone, *shared))
    middle = ModelPart(_of_middle(model, ends, layers))
    return first, middle, last, *([ModelPart(_of_middle(model, ends, layers + 1))] if rest.any() else [])


@dataclass(frozen=True, slots=True)
class _Ends:
    """Layers of each kind on the first stage or rank, on the last, and on what stands for those in the middle."""

    first: tuple[Number, ...]
    last: tuple[Number, ...]
    middle: tuple[Number, ...]


def _ends(batch: Batch, of_first: Ints, of_last: Ints, parts: Ints, fullest: bool) -> _Ends:
    """The first and the last layers by kind, so many; and of those that `parts` − 2 share the mean, or the fullest."""
    layers = dealt_layers(batch.costs.model, batch) // parts
    model = batch.costs.model
    if len(model.layer_kinds) == 1:
        return _Ends((of_first,), (of_last,), (0,))
    before, between = layers_before(model), np.maximum(parts - 2, 1)
    first, whole = before[:, of_first], before[:, -1].reshape(-1, *(1,) * np.ndim(of_first))
    last = whole - before[:, model.num_layers - of_last]
    # Of two ranks the stages in the middle are like the last rank's.
    middle = np.where(parts > 2, (whole - first - last) / between, last * (layers / np.maximum(of_last, 1)))
    if fullest:
        for number in np.unique(parts[parts > 2]).tolist():
            middle[:, parts == number] = _fullest_middle(batch, number)[:, np.newaxis]
    return _Ends(tuple(first), tuple(last), tuple(middle))


def _fullest_middle(batch: Batch, parts: int) -> Ints:
    """Layers by kind of the middle stage with the most parameters, of so many that are dealt evenly."""
    model = batch.costs.model
    layers, rest = divmod(dealt_layers(model, batch), parts)
    counts = layers + (np.arange(parts - 1) - 1 < rest) * (np.arange(parts - 1) > 0)
    counts[0] -= batch.embedding_as_layer
    held = np.diff(layers_before(model)[:, counts.cumsum()], axis=1)
    sizes = np.array([layer_params(model, kind) for kind in model.layer_kinds])
    return np.asarray(held[:, np.argmax(sizes @ held)])


def _of_middle(model: ModelSpec, ends: _Ends, layers: Ints) -> tuple[Number, ...]:
    return (layers,) if len(model.layer_kinds) == 1 else ends.middle


def layers_before(model: ModelSpec) -> Ints:
    """How many layers of each kind the model's first layers are; (kinds, layers + 1)."""
    kinds = np.array([[each == kind for each in model.kind_of_layer] for kind in model.layer_kinds], dtype=np.int64)
    return np.concatenate([np.zeros((len(kinds), 1), dtype=np.int64), kinds.cumsum(axis=1)], axis=1)


def _shared_tables(model: ModelSpec) -> tuple[int, int]:
    """Of a stage that holds everything, and of the last of several, tables that it holds once for two readers."""
    mtp, tied = model.num_mtp_layers, int(model.tied_embeddings)
    return mtp + tied, max(0, mtp - 1) + tied * (mtp > 0)


def dealt_ranks(batch: Batch, fullest: bool = False) -> tuple[RankKind, ...]:
    """The first, the second and the last rank of every layout; and a shorter middle one, where there are such.

    Of layouts whose ranks do not divide the layers each rank has one stage (`sim.work.stages.deal_stages`). Kinds of
    layers are those of ranks with one stage; with more of them they are the same where the stages in the middle are
    alike (`stages_alike`). `fullest` as of `dealt_stages`.
    """
    pp, model = batch.layouts.pp, batch.costs.model
    alone, e, h = pp == 1, int(batch.embedding_as_layer), int(batch.head_as_layer)
    mtp, shared = model.num_mtp_layers, _shared_tables(model)
    layers, rest = np.divmod(dealt_layers(model, batch), pp)
    of_first, of_last = layers - e - h * alone, layers - h - e * alone + (~alone & (rest == pp - 1))
    ends = _ends(batch, of_first, of_last, pp, fullest)
    first = ModelPart(ends.first, 1, alone * 1, alone * mtp, alone * shared[0])
    last = ModelPart(ends.last, 0, 1, mtp, shared[1])
    between, longer = np.maximum(pp - 2, 0), longer_ranks(model, batch, batch.layouts)
    second, at_last = (_block_at(model, layer) for layer in (of_first, model.num_layers - of_last))
    kinds = [
        RankKind(first, EMBEDDING, np.ones_like(pp)),
        RankKind(
            ModelPart(_of_middle(model, ends, layers + (longer > 0))), second, np.where(longer > 0, longer, between)
        ),
        RankKind(last, at_last, (pp > 1) * 1),
    ]
    if longer.any():
        shorter = ModelPart(_of_middle(model, ends, layers))
        kinds.append(RankKind(shorter, second, np.where(longer > 0, between - longer, 0)))
    return tuple(kinds)


def _block_at(model: ModelSpec, layer: Ints) -> Number:
    """The block of a layer, as a place on the axis over blocks; any behind the last."""
    if len(model.layer_kinds) == 1:
        return FIRST_KIND
    kinds = np.array([model.layer_kinds.index(kind) for kind in model.kind_of_layer])
    return FIRST_KIND + kinds[np.clip(layer, 0, model.num_layers - 1)]


def stages_alike(model: ModelSpec, plan: ParallelPlan | Batch, pp: int, num_chunks: int) -> bool:
    """Whether evenly dealt stages other than the first and the last hold the same kinds of layers."""
    if len(model.layer_kinds) == 1 or pp * num_chunks <= 3:
        return True
    layers, rest = divmod(dealt_layers(model, plan), pp * num_chunks)
    if rest:
        return False
    starts = layers * np.arange(1, pp * num_chunks) - int(plan.embedding_as_layer)
    held = np.diff(layers_before(model)[:, starts], axis=1)
    return bool((held == held[:, :1]).all())


def longer_ranks(model: ModelSpec, plan: ParallelPlan | Batch, layouts: Layouts) -> Ints:
    """How many of the middle ranks of every layout hold a layer more than others; they follow the first rank."""
    return np.asarray(np.minimum(dealt_layers(model, plan) % layouts.pp, np.maximum(layouts.pp - 2, 0)))
