"""Which kinds of stages and ranks plans have: alike stages are priced once.

A plan's layers are dealt to stages, and the stages to ranks. Of evenly dealt layers a pipeline has three kinds of
stages and of ranks (with the embedding, with the head, and those in the middle), however deep it is; any other deal has
few. What they hold are *counts* of the model's blocks, arrays (kinds, blocks + 1, …): how often each has each block
(`sim.work.layers.num_blocks`), and behind the blocks how many of the vocabulary's tables it holds once for two of them.

Parameters on a GPU are arrays whose first axis MOMENTS, HELD and TRAINED name. Pairs stand for (everything but experts,
experts): of parameters as of the groups that move them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import Floats, Ints, Number
from sim.pricing.cells import Plans
from sim.pricing.layouts import CostModel, Layouts
from sim.specs import ModelSpec, ParallelPlan
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD, Stage, deal_stages
from sim.work.operations import Operation, Weight, adapters_of
from sim.work.optimizer import MOMENTS as MOMENTS_OF
from sim.work.sums import held_blocks, layer_params, matrices, moments, params

_NO_STAGES = np.zeros(0, dtype=np.int64)


def put_together(counts: Floats, blocks: Floats, axis: int = 0) -> Floats:
    """Return what parts have of what each block has, with parts on the axis of the blocks."""
    each = blocks.swapaxes(0, axis)
    parts: Floats = np.einsum("pb...,b...->p...", counts[:, : len(each)], each).swapaxes(0, axis)
    return parts


@dataclass(frozen=True, eq=False, slots=True)
class RankKinds:
    """Kinds of pipeline ranks. They hash by identity, so that what they do once a step can be cached.

    counts : what each kind holds, (kinds, blocks + 1[, layouts]).
    first_block : the block that is first on the first stage of each kind, as a place on the axis over blocks: its
        gradients are complete last; (kinds, layouts or 1).
    number : ranks of each kind, 0 where a layout has none; (kinds, layouts or 1).
    """

    counts: Floats
    first_block: Ints
    number: Ints


@dataclass(frozen=True, eq=False)
class Deal:
    """What the kinds of stages and of ranks of plans hold; and where their order is known, of which kind each is.

    stage_kinds : counts of each kind of stage, (kinds, blocks + 1[, plans]).
    rank_kinds : kinds of ranks.
    alone : whether embedding and head share a stage, and a tied table with it; of all plans, or an array over layouts.
    copies : models, each with a pipeline of its own, that run through the ranks.
    span : ranks from that of the first stage to that of the last, both counted; None: all.
    stages, kind_of_stage, rank_of_stage : the virtual stages of all copies, and the kind and the rank of each.
    kind_of_rank : the kind of every rank.
    """

    stage_kinds: Floats
    rank_kinds: RankKinds
    alone: Number = False
    copies: int = 1
    span: Number | None = None
    stages: tuple[Stage, ...] = ()
    kind_of_stage: Ints = field(default_factory=_NO_STAGES.copy)
    rank_of_stage: Ints = field(default_factory=_NO_STAGES.copy)
    kind_of_rank: Ints = field(default_factory=_NO_STAGES.copy)


def deal_of(model: ModelSpec, plan: ParallelPlan, rank_of_stage: Ints | None = None, copies: int = 1) -> Deal:
    """Deal the layers of a plan to stages, and the stages to ranks.

    rank_of_stage : pipeline rank that holds each (`Order.rank_of_stage`). Default: stages dealt in turn.
    copies : pipelines, each with a model of its own, that run through the ranks (`Order.copies`).
    """
    stages = deal_stages(model, plan) * copies
    home = np.arange(len(stages)) % plan.pp if rank_of_stage is None else rank_of_stage
    return _deal(stages, home.astype(np.int64).tobytes(), copies)


@lru_cache(maxsize=512)
def _deal(stages: tuple[Stage, ...], ranks: bytes, copies: int) -> Deal:
    rank_of_stage = np.frombuffer(ranks, dtype=np.int64)
    parts, first = np.array([stage.part for stage in stages]), np.array([first_block(stage) for stage in stages])
    kinds, kind_of_stage = _different(parts)
    on_rank = np.arange(rank_of_stage.max() + 1)[:, np.newaxis] == rank_of_stage
    held, kind_of_rank = _different(np.column_stack([on_rank @ parts, first[on_rank.argmax(axis=1)]]))
    rank_kinds = RankKinds(held[:, :-1], held[:, -1:].astype(np.int64), np.bincount(kind_of_rank)[:, np.newaxis])
    span = 1 + abs(int(rank_of_stage[0]) - int(rank_of_stage[len(stages) // copies - 1]))
    whole = stages, kind_of_stage, rank_of_stage, kind_of_rank
    return Deal(kinds, rank_kinds, stages[0].has_head, copies, span, *whole)


def _different(rows: Floats) -> tuple[Floats, Ints]:
    """Return the different rows, in the order in which they come, and which of them each row is."""
    found = {row: number for number, row in enumerate(dict.fromkeys(map(tuple, rows.tolist())))}
    return np.array(list(found)), np.array([found[row] for row in map(tuple, rows.tolist())])


def first_block(stage: Stage) -> int:
    """Which block is first on a stage, as a place on the axis over blocks."""
    if stage.has_embedding:
        return EMBEDDING
    if stage.num_layers:
        return FIRST_KIND + stage.first_kind
    return FIRST_KIND + len(stage.layers) if stage.num_mtp else HEAD


def even_deal(plans: Plans, fullest: bool = False) -> Deal:
    """Deal the layers of plans evenly to stages, and the stages in turn to ranks.

    The kinds of stages are the first, a middle and the last one of every plan; and a longer middle one, where there are
    such. The only stage of a plan has all, whichever it is taken for. Where the stages do not divide the layers those
    from the second on hold one more (`sim.work.layers.deal_stages`). Of a model of several kinds of layers all middle
    stages are taken for their mean: what each of them takes is then right in sum, and no more than the busiest takes.
    Or for that of the most parameters (`fullest`), so that none holds more.

    The kinds of ranks are the first, the second and the last one; and a shorter middle one, where there are such. Of
    layouts whose ranks do not divide the layers each rank has one stage. Kinds of layers are those of ranks with one
    stage; with more of them they are the same where the stages in the middle are alike (`stages_alike`).
    """
    model, stages = plans.costs.model, plans.pp * plans.num_chunks
    ends = int(plans.like.embedding_as_layer), int(plans.like.head_as_layer)
    kinds, _ = _even_parts(model, ends, stages, fullest)
    uneven = ((model.num_layers + sum(ends)) % stages).any()
    return Deal(kinds if uneven else kinds[:3], _even_ranks(model, plans.layouts, ends, fullest), plans.layouts.pp == 1)


@lru_cache(maxsize=8)
def _even_ranks(model: ModelSpec, layouts: Layouts, ends: tuple[int, int], fullest: bool) -> RankKinds:
    pp, more = layouts.pp, longer_ranks(model.num_layers + sum(ends), layouts.pp)
    (first, middle, last, longer), (second, at_last) = _even_parts(model, ends, pp, fullest)
    between, embedding = np.maximum(pp - 2, 0), np.full_like(pp, EMBEDDING)
    kinds = 4 if more.any() else 3
    return RankKinds(
        np.stack([first, np.where(more > 0, longer, middle), last, middle])[:kinds],
        np.stack([embedding, second, at_last, second])[:kinds],
        np.stack([embedding + 1, np.where(more > 0, more, between), pp > 1, (between - more) * (more > 0)])[:kinds],
    )


def _even_parts(model: ModelSpec, ends: tuple[int, int], parts: Ints, fullest: bool) -> tuple[Floats, Ints]:
    """Counts of the first, a middle, the last and a longer middle one of so many parts of a model that is dealt evenly;
    (4, blocks + 1, plans). And the block that is first on the second part and on the last; (2, plans).
    """
    numbers, which = np.unique(parts, return_inverse=True)
    counts, blocks = zip(*(_parts_of(model, ends, number, fullest) for number in numbers.tolist()), strict=True)
    which = which.reshape(parts.shape)
    return np.stack(counts, axis=-1)[..., which], np.array(blocks).T[:, which]


@lru_cache(maxsize=1024)
def _parts_of(model: ModelSpec, ends: tuple[int, int], number: int, fullest: bool) -> tuple[Floats, tuple[int, int]]:
    """The result of `_even_parts` for one number of parts."""
    embedding, head = map(bool, ends)
    plan = ParallelPlan(pp=number, uneven_layers=True, embedding_as_layer=embedding, head_as_layer=head)
    stages = deal_stages(model, plan)
    counts, layers = np.array([stage.part for stage in stages]), (model.num_layers + sum(ends)) // number
    kinds, between = slice(FIRST_KIND, FIRST_KIND + len(model.layer_kinds)), counts[1:-1]
    middle, longer = np.zeros((2, counts.shape[1]))
    if len(model.layer_kinds) == 1:
        middle[kinds], longer[kinds] = layers, layers + 1
    elif len(between):
        sizes = np.array([layer_params(model, kind) for kind in model.layer_kinds])
        middle = longer = between[np.argmax(between[:, kinds] @ sizes)] if fullest else between.mean(axis=0)
    else:  # of two parts a chunk in the middle is like the last
        middle[kinds] = longer[kinds] = counts[-1, kinds] * layers / max(stages[-1].num_layers, 1)
    return np.stack([counts[0], middle, counts[-1], longer]), (first_block(stages[1 % number]), first_block(stages[-1]))


def dealt_layers(model: ModelSpec, plan: ParallelPlan) -> int:
    """Layers that are dealt to stages, embedding and head counted where the plan says so."""
    return model.num_layers + plan.embedding_as_layer + plan.head_as_layer


def stages_alike(model: ModelSpec, plan: ParallelPlan, pp: int, num_chunks: int) -> bool:
    """Whether evenly dealt stages other than the first and the last hold the same kinds of layers."""
    if len(model.layer_kinds) == 1 or pp * num_chunks <= 3:
        return True
    layers, rest = divmod(dealt_layers(model, plan), pp * num_chunks)
    if rest:
        return False
    starts = (layers * stage - plan.embedding_as_layer for stage in range(1, pp * num_chunks - 1))
    first, *others = (Counter(model.kind_of_layer[start : start + layers]) for start in starts)
    return all(each == first for each in others)


def longer_ranks(layers: int, pp: Ints) -> Ints:
    """How many of the middle ranks of every layout hold a layer more than others; they follow the first rank."""
    return np.asarray(np.minimum(layers % pp, np.maximum(pp - 2, 0)))


MOMENTS, CAST, HELD, TRAINED = 0, 1, slice(2, 4), slice(-2, None)
"""Places on the first axis of parameters: numbers that the optimizer keeps, whatever their width; those in matrices of
layers, which multiplies may read in fewer bits; a pair of all parameters, of frozen ones in fewer bits as many as take
their memory; and a pair of those with gradients and an optimizer: all, or behind them adapters where these alone
are."""


def params_of(counts: Floats, layouts: Layouts, layout: Any = slice(None)) -> Floats:
    """Return what one GPU holds of parts of the model: parameters (…, parts, layouts), or plans with these layouts."""
    return put_together(counts, block_params(*layouts.holds)[..., layout], axis=1)


@lru_cache(maxsize=32)
def block_params(costs: CostModel, *degrees: bytes) -> Floats:
    """Return what one GPU holds of every block, where it holds so much (`Layouts.holds`): (…, blocks + 1, layouts).

    Each block has a table of its own; a table that is there once for two of them counts against them.
    """
    tp, ep, etp = (np.frombuffer(each, dtype=np.int64) for each in degrees)
    model, adapters, optimizer = costs.model, adapters_of(costs.training), costs.training.optimizer
    blocks = held_blocks(model, tp, ep, etp, adapters)
    held = np.zeros((4 if adapters is None else 6, len(blocks) + 1, len(tp)))
    every, experts = held[HELD]
    for number, block in enumerate(blocks):
        every[number] = params(block.operations, stored=True)
        experts[number] = params(block.operations, stored=True, experts=True)
        held[MOMENTS, number] = moments(block.operations, optimizer)
        held[CAST, number] = sum(each.params for each in matrices(block.operations))
    table = (Operation("table", weights=(Weight(model.vocab_size / tp, model.hidden_size, is_table=True),)),)
    every[-1], held[MOMENTS, -1] = -params(table), -moments(table, optimizer)
    every -= experts
    if adapters is not None:
        trained, experts = held[TRAINED]
        for number, block in enumerate(blocks):
            trained[number] = params(block.operations, adapters=True)
            experts[number] = params(block.operations, adapters=True, experts=True)
        held[MOMENTS] = MOMENTS_OF[optimizer] * trained
        trained -= experts
        held[HELD] += held[TRAINED]
    return held
