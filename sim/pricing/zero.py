"""What ZeRO stages 2 and 3 move whenever a rank turns to a stage: gathered weights, and reduced gradients.

Most schedules move them block by block with every micro-batch, which lengthens the block's passes; through a pipeline
only weights are gathered so (`sim.pricing.cells.Plans.in_turns`). Schedules in layers move those of a whole chunk when
a rank turns to it, once a step, on a stream of their own beside compute (Lamy-Poirier 2021, arXiv:2106.02679, section
4; 2022, arXiv:2211.05953, section 4.2); engines say when (`sim.engines.tasks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import BlockPlanFloats, Bools, Floats, Ints, KindPlanFloats, Number
from sim.costs.block import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import HELD, TRAINED, params_of, put_together
from sim.pricing.layouts import CostModel, Layouts
from sim.pricing.replicas import DataMove, card_seconds, gathered, move_seconds, reduced_to_shards
from sim.specs import LayerKind, ModelSpec, Scenario, StackSpec
from sim.work.layers import FIRST_KIND, HEAD, num_blocks
from sim.work.sums import layer_params

HOOK_LAUNCHES = 25.0, 40.0
"""Kernel launches in whose time the host runs DeepSpeed's hooks of one weight, forward and backward, the latter with
the reduction of its gradient (microsoft/DeepSpeed:deepspeed/runtime/zero/parameter_offload.py, hooks before and after a
module; partitioned_param_coordinator.py, fetch_sub_module and release_sub_module; stage3.py,
reduce_independent_p_g_buckets_and_remove_grads and partition_grads).

Measured with DeepSpeed 0.17 and PyTorch 2.13 on a CPU, in one process: 128 experts of three linears of 16 x 16 in bf16,
one after the other. Per linear the host takes 19 us forward and 29 us backward for 2 and 2.3 kernels, and 262 and 530
us under stage 3 (medians of three runs). That the hooks take as much longer on a GPU's host as kernels do is assumed.
Streams, events and the ranks' slices are not in the measurement."""


class Moved(NamedTuple):
    """What a visit to every block moves, (blocks, plans); nothing where the plan's ZeRO stage moves nothing then.

    weight_bytes, gradient_bytes : of the whole block. [bytes]
    gather_s, regather_s : gathering its weights for the forward, and for the backward. [s]
    reduce_s : reducing its gradients. A sharded gradient is accumulated on its shard only, so every visit reduces. [s]
    on_card : what all of it puts on a network card, forward and backward, at the best rate; (2, blocks, plans). [s]
    """

    weight_bytes: BlockPlanFloats
    gradient_bytes: BlockPlanFloats
    gather_s: BlockPlanFloats
    regather_s: BlockPlanFloats
    reduce_s: BlockPlanFloats
    on_card: BlockPlanFloats


@dataclass(frozen=True, slots=True)
class VisitSeconds:
    """Seconds of one visit to each kind of stage; arrays (kinds of stages, plans), with two passes on the axis before
    where there are, forward and backward. [s]

    gather : the weights, before a visit's first micro-batch needs them: one block after the other.
    early : of the gather, what that first micro-batch's pass through the blocks before hides by itself; a third pass is
        a backward's input-gradient half.
    reduce : the gradients, when the last micro-batch of a backward visit gives them: one block after the other.
    tail : of the reduction, what is left when that backward is over, at least.
    gather_slows, reduce_slows : what compute loses beside them.
    ahead : whether the weights of visits to come are gathered while a rank computes; else it waits. Arrays (plans).
    beside : the same of gradients that are reduced.
    prefetched : visits whose weights may be gathered ahead of the one at work: one, as frameworks have it.
    """

    gather: Floats
    early: Floats
    reduce: KindPlanFloats
    tail: KindPlanFloats
    gather_slows: Floats
    reduce_slows: KindPlanFloats
    ahead: Bools
    beside: Bools
    prefetched: int = 1

    def take(self, plans: Any) -> VisitSeconds:
        """Return the seconds of some plans, the last axis; or of one, without it."""
        some: dict[str, Any] = {name: getattr(self, name)[..., plans] for name in _OVER_PLANS}
        return replace(self, **some)

    def rows(self) -> Iterator[Floats]:
        """Yield all arrays over plans, one after the other."""
        for name in _OVER_PLANS:
            whole = getattr(self, name)
            yield from whole.reshape(-1, whole.shape[-1])

    def of_stages(self, kind_of_stage: Ints) -> VisitSeconds:
        """Return the seconds with stages in the place of their kinds."""
        names = ("gather", "early", "reduce", "tail", "gather_slows", "reduce_slows")
        changed: dict[str, Any] = {name: getattr(self, name)[..., kind_of_stage, :] for name in names}
        return replace(self, **changed)


_OVER_PLANS = tuple(each.name for each in fields(VisitSeconds) if each.name != "prefetched")


def moved_at_visits(plans: Plans, alone: Number) -> Moved | None:
    """Price what plans move every time that they turn to a stage; None where no plan does.

    alone : embedding and head share a stage, and one table serves all that need it.
    """
    zero, in_turns, layouts, layout = plans.moving_stage, plans.gathers_in_turns, plans.layouts, plans.layout
    replicas = layouts.data.size * layouts.expert_data.size
    if not ((zero >= 2) | in_turns).any() or not (replicas > 1).any():
        return None
    weights, gradients, gather, reduce, *card = _of_blocks(layouts, alone)[:, :, layout]
    if plans.like.outer_zero_stage:  # sharding groups sum gradients once a step
        reduce = np.where(zero == 3, _of_blocks(layouts.without_sums_between, alone)[3][:, layout], reduce)
    gathers, reduces = (zero == 3) | in_turns, zero >= 2
    again = gathers * regathers(plans)
    on_card = np.stack(np.broadcast_arrays(card[0] * gathers, card[0] * again + card[1] * reduces))
    return Moved(weights, gradients, gather * gathers, gather * again, reduce * reduces, on_card)


def _of_blocks(layouts: Layouts, alone: Number) -> Floats:
    """Bytes of weights and gradients, and seconds of a gather and a reduction, and of these on a card, of every block;
    (6, blocks, layouts).
    """
    if np.all(alone) or not np.any(alone):
        return _of_blocks_sharing(layouts, bool(np.any(alone)))
    return np.where(alone, _of_blocks_sharing(layouts, True), _of_blocks_sharing(layouts, False))


@lru_cache(maxsize=32)
def _of_blocks_sharing(layouts: Layouts, alone: bool) -> Floats:
    costs = layouts.costs
    params = params_of(blocks_sharing(costs.model, alone), layouts)
    width = np.array(gathered_widths(costs), dtype=float)[:, np.newaxis]
    weights = params[HELD].sum(axis=0) * width
    gradients = params[TRAINED].sum(axis=0) * costs.gradient_width
    cards = (card_seconds(each, costs.fabric) for each in visit_moves(layouts, params, width))
    return np.stack([weights, gradients, *visit_seconds(layouts, params, width), *cards])


def gathered_widths(costs: CostModel) -> list[int]:
    """Bytes of the numbers in which ZeRO gathers the weights of every block. [bytes]"""
    width = costs.training.activation_bytes
    layer = 1 if costs.training.format is not None and costs.stack.fp8_gathers else width
    return [width, width, *[layer] * len(costs.model.layer_kinds), layer]


def blocks_sharing(model: ModelSpec, alone: bool) -> Floats:
    """Counts of each block by itself (`sim.pricing.deal`); (blocks, blocks + 1).

    Where all share one stage, head and multi-token prediction have no tables of their own.
    """
    counts = np.eye(num_blocks(model), num_blocks(model) + 1)
    counts[[HEAD, -1], -1] = alone and model.tied_embeddings, alone
    return counts


def regathers(plans: Plans) -> Floats:
    """How often plans that gather at visits gather the weights of every block after its forward; (blocks, plans).

    The head's backward begins as soon as its forward ends: FSDP keeps the root's weights, torchtitan those of norm and
    output (torchtitan/models/llama3/infra/parallelize.py).
    """
    model, over_blocks = plans.costs.model, (-1, *[1] * len(plans.shape))
    again, after = np.ones(num_blocks(model)), np.zeros(num_blocks(model))
    again[HEAD] = 0.0
    after[FIRST_KIND:-1] = [gathered_after_recompute(kind, model, plans.costs.stack) for kind in model.layer_kinds]
    again = again.reshape(over_blocks) * plans.reshards
    if after.any():
        again = again + after.reshape(over_blocks) * fully_recomputed(plans)
    return np.asarray(again * ~plans.in_turns)


def fully_recomputed(plans: Plans) -> Bools:
    """Return which plans run every layer's forward again."""
    return np.array([way.recompute == "full" for way in plans.prices.cells.ways])[plans.way]


def gathered_after_recompute(kind: LayerKind, model: ModelSpec, stack: StackSpec) -> float:
    """Share of a layer's weights that a full recomputation drops again before their gradients.

    The last matrix of a layer is used next; of those before it, twice what follows them lies between.
    """
    if stack.max_reuse_params is None or model.num_experts:
        return 0.0
    last, whole = model.hidden_size * model.intermediate_size, layer_params(model, kind)
    return 1.0 - min(1.0, max(last, stack.max_reuse_params / 2) / whole)


class VisitedBlock(NamedTuple):
    """What one plan moves of a block whenever it turns to a stage.

    gather, reduce : of its weights and of its gradients. gather_s, reduce_s : what these take. [s]
    regathers : how often weights are gathered after the forward.
    """

    gather: list[DataMove]
    reduce: list[DataMove]
    gather_s: float
    reduce_s: float
    regathers: float


def visited_blocks(scenario: Scenario) -> list[VisitedBlock]:
    """Return what a scenario moves of every block at a visit, if it moves anything then."""
    plans, found = plans_of(scenario), []
    layouts = plans.layouts.without_sums_between if scenario.plan.outer_zero_stage else plans.layouts
    held = params_of(blocks_sharing(scenario.model, scenario.plan.num_stages == 1), layouts)
    again = regathers(plans)[:, 0].tolist()
    for block, width in enumerate(gathered_widths(layouts.costs)):
        gather_s, reduce_s = visit_seconds(layouts, held[:, block], width)
        moves = visit_moves(layouts, held[:, block], width)
        found.append(VisitedBlock(*moves, gather_s.item(), reduce_s.item(), again[block]))
    return found


def visit_moves(layouts: Layouts, params: Floats, gathered_width: Number) -> tuple[list[DataMove], list[DataMove]]:
    """Gathers of blocks' weights, in numbers of so many bytes, and reductions of their gradients."""
    # Gradients are reduced at once, or slice by slice in as many collectives as the weights.
    stack = layouts.costs.stack
    pieces, at_once = stack.gathers_per_layer, stack.gathers_per_layer if stack.slice_s else 1
    return (
        gathered(params[HELD], gathered_width, layouts, pieces),
        reduced_to_shards(params[TRAINED], layouts.costs.gradient_width, layouts, at_once),
    )


def visit_seconds(layouts: Layouts, params: Floats, gathered_width: Number) -> tuple[Number, Number]:
    """Time of `visit_moves`, and of cutting lists for them.  [s]"""
    costs, stack, size = layouts.costs, layouts.costs.stack, layouts.shards.size
    moves = visit_moves(layouts, params, gathered_width)
    slicing = stack.slice_s * size * (np.asarray(size) > 1)  # cutting a buffer into a slice for each rank
    gather, reduce = (move_seconds(each, costs.fabric) + each[0].pieces * slicing for each in moves)
    if stack.slice_s:  # zeros are written, what arrived or is to be sent is read and written
        copied = (np.asarray(size) > 1) / costs.compute.memory_bandwidth("copy")
        gather = gather + 3 * params[HELD].sum(axis=0) * gathered_width * copied
        reduce = reduce + 2 * params[TRAINED].sum(axis=0) * costs.gradient_width * copied
    return gather, reduce


def lengthened_passes(plans: Plans, moved: Moved, passes: Floats, card: Floats) -> Floats:
    """What moves with a micro-batch adds to the passes of every block; (passes, blocks, plans).  [s]

    What compute does not hide of what overlaps it is exposed. Gathers are hidden by the layer before, which takes one
    to be gathered ahead. A card carries what the pass's own collectives and ZeRO's put on it together.

    passes : forward and backward, and the halves of a backward where they are asked for. [s]
    card : what collectives of forward and backward put on a card. [s]
    """
    here, ahead = ~plans.at_visits, np.asarray(plans.overlap_param_gather)
    group, nothing = plans.layouts.data.take(plans.layout), np.zeros(1)
    gather, regather, reduce = (each * here for each in (moved.gather_s, moved.regather_s, moved.reduce_s))
    # An input gradient needs the weights; a weight gradient does not, and leaves gradients to be reduced.
    moving = (gather, nothing), (regather, reduce), (regather, nothing), (nothing, reduce)
    exposed = []
    for place, (compute, (gathering, reducing)) in enumerate(zip(passes, moving, strict=False)):
        if place < WEIGHT_GRAD:  # a pass hides as much as the card has room for; weight gradients have it to themselves
            way = min(place, BACKWARD)
            room = np.maximum(compute - card[way], 0.0) * (gather, regather + reduce)[way]
            room = room / np.maximum(moved.on_card[way], 1e-30)
            compute = np.where(moved.on_card[way] > 0, np.minimum(compute, room), compute)
        hidden = gathering * ahead + reducing * plans.overlap_grad_reduce
        nbytes = moved.weight_bytes * (gathering > 0) + moved.gradient_bytes * (reducing > 0)
        beside = plans.costs.fabric.exposed(group, nbytes, hidden, compute)
        exposed.append(gathering + reducing - hidden + beside + copied_s(moved, gathering, reducing, plans.costs))
        if place < WEIGHT_GRAD:
            exposed[-1] = exposed[-1] + hooked_s(plans, min(place, BACKWARD)) * (gathering > 0)
    return np.stack(np.broadcast_arrays(*exposed))


def copied_s(moved: Moved, gathering: Number, reducing: Number, costs: CostModel) -> Number:
    """Copies on the compute stream where weights are gathered tensor by tensor.  [s]

    What arrived of a tensor is joined; gradients go into a bucket, are joined and divided (microsoft/DeepSpeed:runtime/
    zero/partition_parameters.py, AllGatherCoalescedHandle.wait; stage3.py, __add_grad_to_ipg_bucket; runtime/comm/
    coalesced_collectives.py). Each reads and writes all. What adds gradients up, thrice their bytes, falls away.
    """
    if costs.stack.gathers_per_layer == 1 or costs.stack.slice_s:
        return 0.0
    gathers = gathering / np.maximum(moved.gather_s, 1e-30)
    nbytes = 2 * moved.weight_bytes * gathers + (6 - 3) * moved.gradient_bytes * (reducing > 0)
    return nbytes / costs.compute.memory_bandwidth("copy")


def hooked_s(plans: Plans, way: int) -> Number:
    """Host time that a pass spends on hooks of experts' tensors, each of which it fetches and releases.  [s]

    Only where a loop visits experts one by one: the GPU waits for the host there already, and each expert's matrices
    are parameters of their own. Elsewhere the host runs ahead of the GPU. A recomputation runs the forward's hooks.
    """
    costs, ep = plans.costs, plans.layouts.ep[plans.layout]
    model, stack, compute = costs.model, costs.stack, costs.compute
    if stack.expert_multiplies != "loop" or stack.gathers_per_layer == 1:
        return 0.0
    tensors = np.zeros(num_blocks(model))
    tensors[FIRST_KIND:-1] = [kind.sparse * (2 + model.gated_mlp) * model.num_experts for kind in model.layer_kinds]
    forward, backward = HOOK_LAUNCHES[0] * compute.kernel_launch_s, HOOK_LAUNCHES[1] * compute.backward_launch_s
    seconds = forward if way == FORWARD else backward + forward * fully_recomputed(plans)
    return tensors.reshape(-1, *[1] * len(plans.shape)) * seconds / ep


def price_visits(plans: Plans, moved: Moved | None, parts: Floats, passes: Floats) -> VisitSeconds | None:
    """What visits to kinds of stages move; None where no plan moves anything so.

    parts : counts of each kind of stage (`sim.pricing.deal`).
    passes : of one micro-batch; a backward's input gradient is of use where halves are asked for. [s]

    The blocks of a stage are taken for alike: b of them, each gathered in G/b and passed in C/b, let the first
    micro-batch begin when all but min(G, C) (b − 1)/b of the gather is done. Where a stack gathers a layer in several
    pieces, these are the blocks.
    """
    several, group, fabric = plans.at_visits, plans.layouts.data.take(plans.layout), plans.costs.fabric
    if moved is None or not several.any():
        return None
    ahead, beside = np.asarray(plans.overlap_param_gather), np.asarray(plans.overlap_grad_reduce)
    num_blocks = len(moved.gather_s)
    gather, regather, reduce = (each * several for each in (moved.gather_s, moved.regather_s, moved.reduce_s))
    slows = (1.0 - fabric.hidden_share(group, moved.weight_bytes, gather)) * ahead
    reduce_slows = reduce * (1.0 - fabric.hidden_share(group, moved.gradient_bytes, reduce)) * beside
    of_gather, gather_slows = (
        np.stack([put_together(parts, each) for each in both])
        for both in ((gather, regather), (gather * slows, regather * slows))
    )
    of_reduce, of_slows = put_together(parts, reduce), put_together(parts, reduce_slows)
    first = 1.0 / np.maximum(put_together(parts, np.ones((num_blocks, *[1] * (gather.ndim - 1)))), 1.0)
    took = passes[[FORWARD, BACKWARD, min(INPUT_GRAD, len(passes) - 1)]].sum(axis=1)
    return VisitSeconds(
        gather=of_gather,
        early=np.minimum(of_gather[[0, 1, 1]], took) * (1.0 - first / plans.costs.stack.gathers_per_layer) * ahead,
        reduce=of_reduce,
        tail=np.minimum(of_reduce * first, of_reduce - of_slows),
        gather_slows=gather_slows,
        reduce_slows=of_slows,
        ahead=ahead,
        beside=beside,
    )


def assumed(plans: Plans, num_forwards: int) -> Iterator[str]:
    """How often ZeRO moves what it shards, of one plan."""
    plan, stack = plans.like, plans.costs.stack
    if plan.zero_stage >= 2 and plan.num_replicas > 1 and num_forwards > 1:
        often = {True: "step", False: "micro-batch"}
        once = bool(plans.at_visits | (plans.moving_stage < 2))
        gathers = once and not plans.gathers_in_turns
        weights = f"gathers weights once per {often[gathers]} and " if plan.zero_stage == 3 else ""
        hidden = "overlapped with compute" if stack.overlap_grad_reduce else f"not overlapped (stack {stack.name})"
        yield f"ZeRO stage {plan.zero_stage} {weights}reduces gradients once per {often[once]}, {hidden}"
