"""Step time of many plans at once: the closed-form engine's formula over arrays.

Prices come from the cost model's own functions; what is new here is only which ranks need to be looked at. The layers
are dealt evenly, so a pipeline has at most four kinds of rank: the first (embedding), the last (head), and middle ranks
whose link to the rank before stays inside an NVLink domain or leaves it. Of a kind the first rank ends last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.costs.block import block_costs, pricing
from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.costs.stage import gathered_widths, rank_once_a_step, send_seconds, tied_reduction, zero_traffic
from sim.engines.closed_form import pipeline_time
from sim.engines.timeline import step_end
from sim.search.facts import Facts
from sim.search.space import Category, dealt_layers
from sim.specs import Scenario
from sim.work.layers import Cut, embedding_work, head_work, layer_work
from sim.work.operations import BlockWork
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.stages import Stage, stage_params

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one GPU, over rows: of a layer, the embedding, the head; of first, middle and last rank."""

    layer: Array
    embedding: Array
    head: Array
    ranks: tuple[Array, Array, Array]
    first_of_rank: tuple[Array, Array, Array]
    """What each of them holds first: the gradients that are complete last."""


@dataclass(frozen=True, slots=True)
class OnceAStep:
    """Gradient reduction, its tail, weight gather and update of first, middle and last rank (first axis). [s]"""

    reduce: Array
    tail: Array
    gather: Array
    update: Array
    hidden_share: Array


def tools(scenario: Scenario) -> tuple[ComputeModel, Fabric]:
    """What turns counts into seconds; the same for every plan."""
    _, compute, fabric = pricing(scenario)
    return compute, fabric


def cut_of_rows(scenario: Scenario, facts: Facts, category: Category) -> Cut:
    """The cut of every row."""
    columns, training = facts.columns, scenario.training
    return Cut(
        tp=columns.tp,
        microbatch_size=columns.microbatch_size,
        sequence_length=training.sequence_length,
        sequence_parallel=category.sequence_parallel,
        recompute=category.recompute,
        width=training.activation_bytes,
        cp=columns.cp,
        fp8=training.precision == "fp8",
    )


def params_held(scenario: Scenario, facts: Facts) -> Held:
    """Parameters by rank of every row."""
    model, plan, columns = scenario.model, scenario.plan, facts.columns
    kinds = [
        Stage(0, 1, False, False),
        Stage(0, 0, True, False),
        Stage(0, 0, False, True),
        Stage(0, 0, True, True),
    ]
    degrees, place = np.unique(columns.tp, return_inverse=True)
    table = np.array([[stage_params(kind, model, int(tp)) for tp in degrees] for kind in kinds])[:, place]
    layer, embedding, head, both = table
    alone = columns.pp == 1
    head = np.where(alone, both - embedding, head)  # a tied projection beside its embedding adds only the norm
    layers = dealt_layers(scenario) / columns.pp
    e, h = int(plan.embedding_as_layer), int(plan.head_as_layer)
    single = (layers - e - h) * layer + embedding + head
    ranks = (
        np.where(alone, single, (layers - e) * layer + embedding),
        np.where(alone, single, layers * layer),
        np.where(alone, single, (layers - h) * layer + head),
    )
    return Held(layer, embedding, head, ranks, (embedding, layer, np.where(alone, embedding, layer)))


LAYER = (layer_work,)
ENDS = (embedding_work, head_work)
"""Never recomputed, so that every way to recompute shares them."""


def block_seconds(
    scenario: Scenario,
    facts: Facts,
    category: Category,
    compute: ComputeModel,
    fabric: Fabric,
    works: Sequence[Callable[..., BlockWork]] = LAYER + ENDS,
) -> Array:
    """Forward and backward of some blocks of every row, each computed once a kind.  [s]

    Returns
    -------
    array of shape (2, blocks, rows)
        Forward of layer, embedding and head; and backward.
    """
    model, stack, training = scenario.model, scenario.stack, scenario.training
    sizes, place = np.unique(facts.columns.microbatch_size, return_inverse=True)
    table = np.zeros((2, len(works), len(facts.blocks), len(sizes)))
    used = np.unique(facts.block)
    for number in used.tolist():
        tp, cp, tensor, context = facts.blocks[number]
        cut = Cut(
            tp=tp,
            microbatch_size=sizes.astype(float),
            sequence_length=training.sequence_length,
            sequence_parallel=category.sequence_parallel,
            recompute=category.recompute,
            width=training.activation_bytes,
            cp=cp,
            fp8=training.precision == "fp8",
        )
        groups = {"tp": tensor, "cp": context}
        for which, work in enumerate(works):
            costs = block_costs(work(model, stack, cut), compute, groups, fabric)
            table[0, which, number], table[1, which, number] = costs.forward_s, costs.backward_s
    return table[:, :, facts.block, place]


def once_a_step(scenario: Scenario, facts: Facts, held: Held, compute: ComputeModel, fabric: Fabric) -> OnceAStep:
    """What every rank does once a step.

    Parameters
    ----------
    scenario : Scenario
        Of one ZeRO stage; its plan may be a table.
    """
    rows = [
        rank_once_a_step(params, first, scenario, facts.data, facts.data, compute, fabric, facts.visits)
        for params, first in zip(held.ranks, held.first_of_rank, strict=True)
    ]
    size = len(facts.columns)
    reduce, tail, gather, update = (
        np.stack([np.broadcast_to(row[part], size) for row in rows]).astype(float) for part in range(4)
    )
    pp = facts.columns.pp
    mean = np.where(pp > 1, (reduce[0] + (pp - 2) * reduce[1] + reduce[2]) / pp, reduce[0])
    params = np.where(pp > 1, (held.ranks[0] + (pp - 2) * held.ranks[1] + held.ranks[2]) / pp, held.ranks[0])
    grads = params * GRADIENT_WIDTH[scenario.stack.gradient_precision]
    share = np.broadcast_to(fabric.hidden_share(facts.data, grads, mean), size)
    return OnceAStep(reduce, tail, gather, update, share)


def step_times(
    scenario: Scenario, facts: Facts, category: Category, held: Held, blocks: Array, once: OnceAStep, fabric: Fabric
) -> Array:
    """Step time of every row of a category.  [s]

    Parameters
    ----------
    scenario : Scenario
        As `Space.table` makes it.
    blocks : array
        As `block_seconds` gives it.
    """
    stack, columns = scenario.stack, facts.columns
    pp, chunks = columns.pp, columns.num_chunks
    alone = pp == 1
    per_stage = forward, backward = _stages(scenario, facts, held, blocks, fabric)
    cut = cut_of_rows(scenario, facts, category)
    sends = None if (pp == 1).all() else _Sends.of(scenario, facts, cut, fabric)
    blocking = 0.0 if stack.overlap_p2p or sends is None else 1.0

    first, middle, last = (_of_rank(per_stage, chunks, which) for which in range(3))
    total = np.where(alone, first, first + (pp - 2) * middle + last)
    slowest = np.maximum(first, last)
    if sends is None:
        pipeline = pipeline_time(facts.num_microbatches, slowest, total, chunks)
    else:
        # With two ranks there is no middle one: the patterns are all false then.
        worst = np.where(pp > 2, middle + blocking * sends.worst_middle, 0.0)
        slowest = np.maximum(np.maximum(first + blocking * sends.first, last + blocking * sends.last), worst)
        pipeline = pipeline_time(facts.num_microbatches, slowest, total + blocking * sends.total, chunks)
        pipeline = pipeline + (1.0 - blocking) * sends.total / chunks

    # Rank r drains before rank 0 by what the ranks before it still do in the last micro-batch.
    near, far = facts.crossings.near_rank, facts.crossings.far_rank
    ahead = [backward[0] + (rank - 1) * backward[1] for rank in (near, far, pp - 1)]
    ends = np.stack([pipeline, *(pipeline - seconds for seconds in ahead)])
    exposed = once.reduce[[0, 1, 1, 2]]
    if stack.overlap_grad_reduce and exposed.any():
        after = _reduction_after_end(facts, held, backward, once, sends, blocking)
        hidden = exposed - after
        exposed = exposed - once.hidden_share * np.clip(hidden, 0.0, exposed)
    ready = ends + exposed
    missing = np.stack([np.zeros(len(pp), bool), near == 0, far == 0, alone])
    ready = np.where(missing, ready[0], ready)

    gather = once.gather
    if stack.overlap_param_gather and gather.any():
        gather = gather - once.hidden_share * np.minimum(gather, _gather_windows(facts, forward))
    update = np.where(np.stack([np.zeros(len(pp), bool), pp < 3, alone]), 0.0, once.update + gather)
    tied: Any = 0.0
    if scenario.model.tied_embeddings and sends is not None:
        width = columns.tp * columns.num_replicas
        tied = tied_reduction(scenario, columns.tp, width, columns.num_gpus, fabric) * ~alone
    times: Array = step_end(ready, tied, update) + stack.step_setup_s
    return times


def _stages(scenario: Scenario, facts: Facts, held: Held, blocks: Array, fabric: Fabric) -> tuple[Array, Array]:
    """(forward, backward) of one micro-batch on the first, a middle and the last stage.  [s]"""
    columns, plan = facts.columns, scenario.plan
    kinds = (held.layer, held.embedding, held.head)
    if plan.zero_stage >= 2 and np.max(columns.num_replicas) > 1:
        blocks = blocks.copy()
        for which, (params, width) in enumerate(zip(kinds, gathered_widths(scenario), strict=True)):
            more = zero_traffic(
                blocks[0, which], blocks[1, which], params, scenario, facts.data, fabric, facts.visits,
                facts.num_microbatches, width,
            )  # fmt: skip
            blocks[0, which] += more[0]
            blocks[1, which] += more[1]
    layers = dealt_layers(scenario) / columns.num_stages
    e, h, alone = int(plan.embedding_as_layer), int(plan.head_as_layer), columns.pp == 1

    def stages(layer: Array, embedding: Array, head: Array, setup: float) -> Array:
        single = (layers - e - h) * layer + embedding + head
        first, last = (layers - e) * layer + embedding, (layers - h) * layer + head
        return np.stack([np.where(alone, single, first), layers * layer, np.where(alone, single, last)]) + setup

    (layer_f, embedding_f, head_f), (layer_b, embedding_b, head_b) = blocks
    forward = stages(layer_f, embedding_f, head_f, scenario.stack.forward_setup_s)
    return forward, stages(layer_b, embedding_b, head_b, 0.0)


def _of_rank(per_stage: tuple[Array, Array], chunks: Array, which: int) -> Array:
    """Forward and backward of one micro-batch over all chunks of the first, a middle or the last rank.  [s]"""
    own, middle = (per_stage[0][index] + per_stage[1][index] for index in (which, 1))
    seconds: Array = own + (chunks - 1) * middle
    return seconds


@dataclass(frozen=True, slots=True)
class _Sends:
    """Seconds of sends of one micro-batch over all chunks, by rank, and of one backward send. [s]"""

    first: Array
    worst_middle: Array
    last: Array
    total: Array
    back_near: Array
    back_far: Array
    back_wrap: Array
    back_last: Array

    @classmethod
    def of(cls, scenario: Scenario, facts: Facts, cut: Cut, fabric: Fabric) -> _Sends:
        columns, links = facts.columns, facts.crossings
        here = columns.pp > 1
        near, far = (seconds * here for seconds in send_seconds(scenario, cut, facts.tensor, fabric))
        pick = [np.where(link, far, near) for link in (links.first, links.last, links.wrap)]
        to_second, to_last, wrap = pick
        v = columns.num_chunks
        pairs = ((links.near_near, near + near), (links.mixed, near + far), (links.far_far, far + far))
        middle = np.stack([np.where(exists, seconds, 0.0) for exists, seconds in pairs]).max(axis=0)
        inner = links.inner_far * far + (columns.pp - 1 - links.inner_far) * near
        around = (v - 1) * wrap
        return cls(
            first=v * to_second + around,
            worst_middle=v * middle,
            last=v * to_last + around,
            total=2 * (v * inner + around),
            back_near=near,
            back_far=far,
            back_wrap=wrap,
            back_last=to_last,
        )


def _reduction_after_end(
    facts: Facts, held: Held, backward: Array, once: OnceAStep, sends: _Sends | None, blocking: float
) -> Array:
    """When reductions beside the backward are done, after the rank's last action: first, two middle kinds, last.  [s]

    `sim.engines.timeline.reductions` in closed form. A rank ends with pp backwards on each of its chunks, the last
    chunk's first. Each reduction begins when the last backward on its chunk does and the reductions before it are done,
    and ends at least one bucket after that backward; so the last one ends at the latest of what any chunk alone would
    lead to, and as chunks between the first and the last are alike, only the outermost of them can set it.
    """
    columns = facts.columns
    zero = np.zeros(len(columns))
    near, far, wrap, before = (
        (zero,) * 4 if sends is None else (sends.back_near, sends.back_far, sends.back_wrap, sends.back_last)
    )
    layer = held.ranks[1] / columns.num_chunks  # of a chunk in the middle of the model
    rows = []
    for rank, chunk_sends in ((0, (zero, wrap, wrap)), (1, (near,) * 3), (1, (far,) * 3), (2, (before,) * 3)):
        params = held.ranks[rank]
        # The chunk that a rank holds first, those between, and the last, by backward seconds and by parameters.
        stages = ((0, 1, 1), (1, 1, 1), (1, 1, 2))[rank]
        one = columns.num_chunks == 1
        occupied = [backward[stage] + blocking * each for stage, each in zip(stages, chunk_sends, strict=True)]
        occupied[0] = np.where(one, backward[rank] + blocking * chunk_sends[0], occupied[0])
        middle = layer / np.maximum(params, 1.0)
        outer = 1.0 - (columns.num_chunks - 1) * middle  # of the chunk with embedding or head
        shares = [outer if stage != 1 else middle for stage in stages]
        shares[0] = np.where(one, 1.0, shares[0])
        durations = [once.reduce[rank] * share for share in shares]
        rows.append(_latest(columns.pp, columns.num_chunks, occupied, durations, once.tail[rank]))
    return np.stack(rows)


def _latest(pp: Array, chunks: Array, occupied: list[Array], durations: list[Array], tail: Array) -> Array:
    """End of a rank's reductions after its last action, from its first, middle and last chunk.  [s]"""
    v = chunks

    def lead(waited: Array, kind: int, before: Array) -> Array:
        """The end if from this chunk on nothing waits; `before`: reductions of the chunks after it in time."""
        own = np.maximum(durations[kind] - occupied[kind], np.minimum(tail, durations[kind]))
        end: Array = own - waited + before
        return end

    latest: Array = lead(np.zeros(len(v)), 0, np.zeros(len(v)))
    if (v > 1).any():
        whole, rest = pp * occupied[0], np.maximum(v - 2, 0)
        of_last = lead(whole + rest * pp * occupied[1], 2, durations[0] + rest * durations[1])
        latest = np.maximum(latest, np.where(v > 1, of_last, -np.inf))
        inner = np.maximum(v - 3, 0)  # middle chunks before the last of them
        for others in (np.zeros(len(v)), inner):
            of_middle = lead(whole + others * pp * occupied[1], 1, durations[0] + others * durations[1])
            latest = np.maximum(latest, np.where(v > 2, of_middle, -np.inf))
    return latest


def _gather_windows(facts: Facts, forward: Array) -> Array:
    """Forward seconds of first, middle and last rank before the last gathered weights are needed.  [s]

    `sim.engines.timeline.gather_window` for these schedules: pp micro-batches through every chunk but the last, one
    through that.
    """
    pp, v = facts.columns.pp, facts.columns.num_chunks
    one = v == 1
    first, middle, last = forward
    return np.stack(
        [
            np.where(one, first, pp * (first + (v - 2) * middle) + middle),
            np.where(one, middle, (pp * (v - 1) + 1) * middle),
            np.where(one, last, pp * (v - 1) * middle + last),
        ]
    )
