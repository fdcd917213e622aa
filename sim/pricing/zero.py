"""What ZeRO stages 2 and 3 move while the pipeline runs, and what of it lengthens a block's passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import BlockPlanFloats, Bools, Number
from sim.costs.collectives import all_gather
from sim.network.placement import Group
from sim.pricing.batch import Batch, Layouts
from sim.pricing.cost_model import CostModel
from sim.pricing.replicas import Params, Replicas, params_of, reduced_to_shards, replicas_of, summed_over
from sim.specs import ModelSpec, Scenario, StackSpec
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.recompute import recompute_word
from sim.work.stages import ModelPart, blocks_of
from sim.work.sums import layer_params


def zero_visits(num_chunks: Number, num_forwards: Number, scheduled: Number | None = None) -> Number:
    """How often in a step ZeRO gathers a stage's weights and reduces its gradients. Takes arrays.

    As often as the schedule turns to a stage (`scheduled`; None: for every forward). But a rank with one chunk cannot
    keep all of its layers gathered: it visits them anew for every forward, of a micro-batch or of a slice of one.
    """
    each = num_forwards if scheduled is None else scheduled
    return np.where(np.asarray(num_chunks) == 1, num_forwards, each)


@dataclass(frozen=True, slots=True)
class ShardedBlocks:
    """The blocks of a model, their parameters sharded by ZeRO; arrays (blocks, layouts).

    weight_bytes, gradient_bytes : of a whole block. [bytes]
    gather_s, reduce_s : gathering its weights once, and reducing its gradients once. [s]
    again : whether its weights are gathered again for the backward where they are dropped after the forward; (blocks).
    after_recompute : share of its weights that are gathered for the gradients of a pass that was recomputed; (blocks).
    """

    weight_bytes: Number
    gradient_bytes: Number
    gather_s: Number
    reduce_s: Number
    again: Number
    after_recompute: Number


def gathered_widths(costs: CostModel) -> list[int]:
    """In numbers of how many bytes ZeRO gathers the weights of every block."""
    width = costs.training.activation_bytes
    layer = 1 if costs.training.format is not None and costs.stack.fp8_gathers else width
    return [width, width, *[layer] * len(costs.model.layer_kinds), layer]


def shard_blocks(costs: CostModel, layouts: Layouts, alone: Number, outer_zero_stage: int = 0) -> ShardedBlocks:
    """What moving the blocks takes, over layouts; remembered.

    alone : where one stage holds the embedding and the head, and one table for all that needs one.
    outer_zero_stage : with 1 sharding groups sum gradients once a step.
    """
    key = ("sharded", layouts.key, np.asarray(alone).tobytes(), outer_zero_stage)
    if key in costs.known:
        known: ShardedBlocks = costs.known[key]
        return known
    blocks = blocks_sharing(costs.model, alone)
    params, replicas = params_of(blocks, costs, layouts), replicas_of(layouts)
    replicas = replicas.inside if outer_zero_stage else replicas
    widths = np.array(gathered_widths(costs), dtype=float)[:, np.newaxis]
    gather, reduce = visit_seconds(costs, params, widths, replicas)
    grad_width = GRADIENT_WIDTH[costs.stack.gradient_precision]
    again, after = (
        np.array([each(part) for part in blocks])
        for each in (gathered_again, lambda part: gathered_after_recompute(part, costs.model, costs.stack))
    )
    found = ShardedBlocks(params.total * widths, params.trained.total * grad_width, gather, reduce, again, after)
    costs.remember(key, found)
    return found


def blocks_sharing(model: ModelSpec, alone: Number) -> list[ModelPart]:
    """The blocks of a model, of which head and multi-token prediction have no tables of their own where all share."""
    tied = int(model.tied_embeddings)
    return [
        replace(part, shared_tables=(part.heads * tied + part.mtps) * np.asarray(alone)) for part in blocks_of(model)
    ]


def gathered_again(part: ModelPart) -> bool:
    """Whether a block's weights are gathered for its backward too: the head's begins as soon as its forward ends.

    FSDP keeps the root's, torchtitan those of norm and output (torchtitan/models/llama3/infra/parallelize.py).
    """
    return not np.any(part.heads)


def gathered_after_recompute(part: ModelPart, model: ModelSpec, stack: StackSpec) -> float:
    """Of a block's weights, the share that a full recomputation drops again before their gradients.

    The last matrix of a layer is used next; of those before it, twice what follows them lies between.
    """
    if stack.max_reuse_params is None or part.num_layers == 0 or model.num_experts:
        return 0.0
    kind = next(kind for kind, count in zip(model.layer_kinds, part.layers, strict=True) if count)
    last, whole = model.hidden_size * model.intermediate_size, layer_params(model, kind)
    return 1.0 - min(1.0, max(last, stack.max_reuse_params / 2) / whole)


def gathers_for_backward(part: ModelPart, scenario: Scenario) -> float:
    """How often, at a visit, the weights of a block are gathered after its forward."""
    plan, model = scenario.plan, scenario.model
    full = recompute_word(plan, model) == "full"
    return gathered_again(part) * plan.reshard_after_forward + full * gathered_after_recompute(
        part, model, scenario.stack
    )


def visit_seconds(
    costs: CostModel, params: Params, gathered_width: Number, replicas: Replicas
) -> tuple[Number, Number]:
    """Gathering a block's weights, in numbers of so many bytes, and reducing its gradients.  [s]"""
    stack, fabric = costs.stack, costs.fabric
    pieces, slicing = stack.gathers_per_layer, _slices_s(stack, replicas.shards)
    # Gradients are reduced at once, or slice by slice in as many collectives as the weights.
    at_once = pieces if stack.slice_s else 1
    grad_width = GRADIENT_WIDTH[stack.gradient_precision]
    gather = summed_over(all_gather, params, gathered_width, replicas.sharding, fabric, pieces) + pieces * slicing
    reduce = reduced_to_shards(params.trained, grad_width, replicas, fabric, at_once) + at_once * slicing
    if stack.slice_s:  # zeros are written, what arrived or is to be sent is read and written
        copied = (np.asarray(replicas.shards.size) > 1) / costs.compute.memory_bandwidth("copy")
        gather = gather + 3 * params.total * gathered_width * copied
        reduce = reduce + 2 * params.trained.total * grad_width * copied
    return gather, reduce


def _slices_s(stack: StackSpec, group: Group) -> Number:
    """Cutting a buffer into a slice for each rank.  [s]"""
    return stack.slice_s * group.size * (np.asarray(group.size) > 1)


def zero_traffic(batch: Batch, passes: Sequence[BlockPlanFloats], alone: Number) -> list[BlockPlanFloats] | None:
    """What ZeRO stages 2 and 3 add to the passes of every block; None where they are not used.  [s]

    Of ranks with one chunk, which move things block by block with every micro-batch; those with several move them once
    a visit (`sim.pricing.visits`). Stage 3 gathers weights forward and, where it drops them in between, backward; 2 and
    3 reduce gradients. What compute does not hide of what overlaps it is exposed. Gathers are hidden by the layer
    before, which takes one to be gathered ahead.

    Parameters
    ----------
    passes : arrays over blocks and plans
        Forward and backward; and the backward's halves, input and weight gradient, where these are asked for. [s]
    alone : array over layouts
        As of `shard_blocks`.
    """
    zero, here = batch.moving_stage, batch.num_chunks == 1
    if not moves_at_visits(batch) or not here.any():
        return None
    sharded, layout = shard_blocks(batch.costs, batch.layouts, alone), batch.layout
    group = batch.layouts.data.take(layout)
    gather = sharded.gather_s[:, layout] * (here * (zero == 3))
    gather_again = gather * gathered_later(batch, sharded, gather.ndim)
    ahead = gathers_ahead(batch)
    reduce = reduced_at_visits(batch, sharded, alone) * here
    weights, gradients = sharded.weight_bytes[:, layout], sharded.gradient_bytes[:, layout]

    def exposed(gathering: Number, reducing: Number, compute: Number) -> BlockPlanFloats:
        hidden = gathering * ahead + reducing * batch.overlap_grad_reduce
        moved = weights * (gathering > 0) + gradients * (reducing > 0)
        seconds = gathering + reducing - hidden + batch.costs.fabric.exposed(group, moved, hidden, compute)
        return np.asarray(seconds)

    nothing = np.zeros(1)
    # An input gradient needs the weights; a weight gradient does not, and leaves gradients to be reduced.
    moved = (gather, nothing), (gather_again, reduce), (gather_again, nothing), (nothing, reduce)
    return [exposed(*each, compute) for each, compute in zip(moved, passes, strict=False)]


def gathered_later(batch: Batch, sharded: ShardedBlocks, axes: int) -> Number:
    """How often, at a visit, the weights of every block are gathered after its forward: (blocks, … plans)."""
    over_blocks = (-1, *[1] * (axes - 1))
    again = sharded.again.reshape(over_blocks) * batch.reshard_after_forward
    if not sharded.after_recompute.any():
        return again
    full = np.array([word == "full" for word in batch.prices.cells.recomputes])[batch.recompute]
    return again + sharded.after_recompute.reshape(over_blocks) * full


def moves_at_visits(batch: Batch) -> bool:
    """Whether any plan moves something every time that it turns to a stage."""
    replicas = batch.layouts.data.size * batch.layouts.expert_data.size
    return bool((batch.moving_stage >= 2).any() and (replicas > 1).any())


def gathers_ahead(batch: Batch) -> Bools:
    """Whether weights are gathered while the rank computes with others."""
    return np.asarray(batch.overlap_param_gather & (batch.costs.stack.prefetched_layers > 0))


def reduced_at_visits(batch: Batch, sharded: ShardedBlocks, alone: Number) -> BlockPlanFloats:
    """Reducing every block's gradients at the end of a backward visit.  [s]

    A sharded gradient is accumulated on its shard only: every visit reduces.
    """
    zero, layout = batch.moving_stage, batch.layout
    reduce = sharded.reduce_s[:, layout]
    if batch.outer_zero_stage:
        inside = shard_blocks(batch.costs, batch.layouts, alone, batch.outer_zero_stage)
        reduce = np.where(zero == 3, inside.reduce_s[:, layout], reduce)
    return np.asarray(reduce * (zero >= 2))


def assumed(scenario: Scenario, visits: float) -> Iterator[str]:
    """How often ZeRO moves what it shards, where the schedule turns to a stage so many times a step."""
    plan, stack = scenario.plan, scenario.stack
    if plan.zero_stage >= 2 and plan.num_replicas > 1 and scenario.num_microbatches > 1:
        kept = plan.zero_stage == 3 and not plan.reshard_after_forward
        moved = "gathers weights and reduces gradients" if plan.zero_stage == 3 else "reduces gradients"
        often = "micro-batch" if plan.num_chunks == 1 else "step" if visits <= 1 else "group of micro-batches"
        often = "step" if kept and plan.pp > 1 else often
        hidden = "beside compute" if stack.overlap_grad_reduce else f"not beside compute in stack {stack.name!r}"
        yield f"ZeRO stage {plan.zero_stage} {moved} once a {often}, {hidden}"
