"""What ZeRO stages 2 and 3 move while the pipeline runs, and what of it lengthens a block's passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.block import BlockCosts, Part
from sim.costs.collectives import Fabric, all_gather, reduce_scatter
from sim.costs.replicas import Held, Replicas, replicas_of, summed_over
from sim.network.placement import Group
from sim.specs import Scenario, StackSpec
from sim.work.operations import Number
from sim.work.optimizer import GRADIENT_WIDTH


def with_zero_traffic(
    block: BlockCosts, held: Held, gathered_width: float, scenario: Scenario, fabric: Fabric, visits: float
) -> BlockCosts:
    """Add what ZeRO moves at a visit: stage 3 gathers weights forward and backward, 2 and 3 reduce gradients.

    Weights are gathered in numbers of `gathered_width` bytes.

    A visit's traffic is spread over its micro-batches; with overlap, what their compute does not hide is exposed.
    """
    plan = scenario.plan
    if plan.zero_stage < 2 or plan.num_replicas == plan.num_expert_replicas == 1:
        return block
    sharded = sharded_block(held, gathered_width, scenario, replicas_of(scenario), fabric)
    sums = (block.forward_s, block.backward_s)
    extra = zero_traffic(*sums, sharded, scenario, fabric, visits, scenario.num_microbatches)
    forward, backward = (
        {**table, Part.DATA_PARALLEL: seconds}
        for table, seconds in zip((block.forward, block.backward), extra, strict=True)
    )
    return BlockCosts(forward, backward, block.at_peak, block.weight_grad)


def zero_visits(num_chunks: Number, num_microbatches: Number, scheduled: Number | None = None) -> Number:
    """How often in a step ZeRO gathers a stage's weights and reduces its gradients. Takes arrays.

    As often as the schedule turns to a stage (`scheduled`; None: for every micro-batch). But a rank with one chunk
    cannot keep all of its layers gathered: it visits them anew for every micro-batch.
    """
    each = num_microbatches if scheduled is None else scheduled
    return np.where(np.asarray(num_chunks) == 1, num_microbatches, each)


def gathered_widths(scenario: Scenario) -> tuple[int, ...]:
    """In numbers of how many bytes ZeRO gathers the weights of a layer, the embedding, the head and a dense layer."""
    width = scenario.training.activation_bytes
    eight = scenario.training.precision == "fp8" and scenario.stack.fp8_gathers
    layer = 1 if eight else width
    return (layer, width, width, layer) if scenario.model.num_dense_layers else (layer, width, width)


@dataclass(frozen=True, slots=True)
class Sharded:
    """A block whose parameters ZeRO shards; numbers may be arrays.

    group : over which.
    weights, grads : of the whole block. [bytes]
    gather, scatter : seconds of gathering its weights once and of reducing its gradients once. [s]
    """

    group: Group
    weights: Number
    grads: Number
    gather: Number
    scatter: Number


def sharded_block(held: Held, gathered_width: float, scenario: Scenario, replicas: Replicas, fabric: Fabric) -> Sharded:
    """A block's parameters under the scenario's ZeRO stage, its weights gathered in so wide numbers."""
    stack = scenario.stack
    weights = held.params * gathered_width
    grad_width = GRADIENT_WIDTH[stack.gradient_precision]
    pieces = stack.gathers_per_layer
    gather = summed_over(all_gather, held, gathered_width, replicas, fabric, pieces)
    gather = gather + pieces * _slices_s(stack, replicas.data)
    # Gradients are reduced at once, or slice by slice in as many collectives as the weights.
    at_once = pieces if stack.slice_s else 1
    scatter = summed_over(reduce_scatter, held, grad_width, replicas, fabric, at_once)
    scatter = scatter + at_once * _slices_s(stack, replicas.data)
    return Sharded(replicas.data, weights, held.params * grad_width, gather * (scenario.plan.zero_stage == 3), scatter)


def _slices_s(stack: StackSpec, group: Group) -> Number:
    """Cutting a buffer into a slice for each rank.  [s]"""
    return stack.slice_s * group.size * (np.asarray(group.size) > 1)


def zero_traffic(
    forward_s: Number,
    backward_s: Number,
    block: Sharded,
    scenario: Scenario,
    fabric: Fabric,
    visits: Number,
    num_microbatches: Number,
) -> tuple[Number, Number]:
    """What ZeRO stages 2 and 3 add to forward and backward of a block.  [s]

    Takes arrays, but for what the scenario says of ZeRO and overlap.
    """
    plan, stack, group = scenario.plan, scenario.stack, block.group
    share = visits / num_microbatches
    # A sharded gradient is accumulated on its shard only: every visit reduces. A single visit is the step's reduction.
    scatter = block.scatter * ((np.asarray(visits) > 1) | (plan.zero_stage == 3))

    def exposed(gathering: Number, scattering: Number, compute: Number) -> Number:
        hidden = gathering * stack.overlap_param_gather + scattering * stack.overlap_grad_reduce
        moved = (block.weights * (gathering > 0) + block.grads * (scattering > 0)) * share
        return gathering + scattering - hidden + fabric.exposed(group, moved, hidden, compute)

    gather, scatter = block.gather * share, scatter * share
    return exposed(gather, 0.0, forward_s), exposed(gather, scatter, backward_s)
