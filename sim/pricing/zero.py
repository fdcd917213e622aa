"""What GPUs that hold the same parameters send each other: sums of gradients and gathers of weights, listed once.

Seconds, bytes on links and what a network card carries are sums over lists of `DataMove`. Parameters come in pairs
(everything but experts, experts), as do the groups that move them.

ZeRO stages 2 and 3 move some whenever a rank turns to a stage. Most schedules do so block by block with every
micro-batch, which lengthens the block's passes; through a pipeline only weights are gathered so (`Plans.in_turns`).
Schedules in layers move those of a whole chunk once a step, on a stream of their own beside compute (Lamy-Poirier 2021,
arXiv:2106.02679, section 4; 2022, arXiv:2211.05953, section 4.2); engines say when (`sim.engines.tasks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sim.arrays import BlockPlanFloats, Bools, Floats, Ints, KindPlanFloats, Number
from sim.costs.block import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from sim.costs.collectives import COLLECTIVES, Fabric
from sim.network.placement import Group
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import HELD, TRAINED, params_of, put_together
from sim.pricing.layouts import CostModel, Layouts
from sim.specs import LayerKind, ModelSpec, Scenario, StackSpec
from sim.work.layers import FIRST_KIND, HEAD, num_blocks
from sim.work.recompute import WHOLE
from sim.work.sums import layer_params

HOOK_LAUNCHES = 25.0, 40.0
"""Kernel launches in whose time the host runs DeepSpeed's hooks of one weight, forward and backward, the latter with
the reduction of its gradient (microsoft/DeepSpeed:deepspeed/runtime/zero/parameter_offload.py, hooks before and after a
module; partitioned_param_coordinator.py, fetch_sub_module and release_sub_module; stage3.py,
reduce_independent_p_g_buckets_and_remove_grads and partition_grads).

Measured with DeepSpeed 0.17 and PyTorch 2.13 on a CPU, in one process: 128 gated experts of three linears of 16 x 16 in
bf16, one after the other, whose input needs no gradient. A forward of an expert has six kernels (three multiplies, the
activation, a product and a sum), a backward seven (four multiplies and three of the others). Per linear the host takes
19 us forward and 29 us backward for these, and 262 and 530 us under stage 3 (medians of three runs); four later runs
give 12 to 30 launches forward and 28 to 52 backward. That the hooks take as much longer on a GPU's host as kernels do
is assumed. Streams, events and the ranks' slices are not in the measurement."""


class DataMove(NamedTuple):
    """A collective over what a GPU holds of some parameters. Numbers may be arrays.

    kind : all_reduce, all_gather or reduce_scatter.
    over : the field of `Layouts` that has the group: data and expert_data, that sum gradients of everything else and of
        experts; shards and expert_shards, within which ZeRO shards these; between, of those that hold the same shard.
    nbytes : the full buffer. [bytes]
    pieces : collectives in which it goes, one after the other.
    of_experts : nothing is sent where nbytes is zero, as there are no experts.
    """

    kind: str
    over: str
    group: Group
    nbytes: Number
    pieces: int = 1
    of_experts: bool = False


def ring_bytes(kind: str, nbytes: Number, size: Number) -> Number:
    """Sent by each of `size` ranks of a ring for a buffer of `nbytes`. [bytes]

    An all-reduce sends 2 (n − 1)/n of the buffer, a gather, a reduce-scatter, an all-to-all or a ring of sends half of
    that (Thakur, Rabenseifner, Gropp 2005, sections 4.1 to 4.4).
    """
    return (2.0 if kind == "all_reduce" else 1.0) * nbytes * (size - 1) / size


def move_seconds(moves: Iterable[DataMove], fabric: Fabric, *, on_card: bool = False) -> Number:
    """Time of collectives one after the other; or what they put on a network card, at the best rate it reaches.  [s]"""
    total: Number = 0.0
    for move in moves:
        pieces = 1 if on_card else move.pieces
        seconds = pieces * COLLECTIVES[move.kind](move.nbytes / pieces, move.group, fabric)
        if on_card:
            seconds = seconds * fabric.card_occupied(move.group, move.kind)
        total = total + (seconds * (np.asarray(move.nbytes) > 0) if move.of_experts else seconds)
    return total


def sent_by_group(moves: Iterable[DataMove]) -> dict[str, float]:
    """Bytes that a GPU sends of one layout's collectives, by kind of group. [bytes]"""
    found: Counter[str] = Counter()
    for move in moves:
        found[move.over] += np.asarray(ring_bytes(move.kind, move.nbytes, move.group.size)).item()
    return dict(found)


def _pair(kind: str, over: str, params: Floats, width: Number, layouts: Layouts, pieces: int = 1) -> list[DataMove]:
    """A collective over everything but experts in so many pieces, and one over experts where there are any."""
    moves = [DataMove(kind, over, getattr(layouts, over), params[0] * width, pieces)]
    if np.any(params[1]):
        of_experts = over if over == "between" else f"expert_{over}"
        moves.append(DataMove(kind, of_experts, getattr(layouts, of_experts), params[1] * width, of_experts=True))
    return moves


def gathered(params: Floats, width: Number, layouts: Layouts, pieces: int = 1) -> list[DataMove]:
    """Weights gathered within sharding groups; all but experts in so many pieces."""
    return _pair("all_gather", "shards", params, width, layouts, pieces)


def reduced_to_shards(params: Floats, width: Number, layouts: Layouts, pieces: int = 1) -> list[DataMove]:
    """Gradients until every GPU has the sum of its shard's: within sharding groups, then between them."""
    moves = _pair("reduce_scatter", "shards", params, width, layouts, pieces)
    if layouts.between is not None:
        shards = np.stack([params[0] / layouts.shards.size, params[1] / layouts.expert_shards.size])
        moves += _pair("all_reduce", "between", shards, width, layouts, pieces)
    return moves


def moved_once(
    layouts: Layouts, trained: Floats, zero_stage: int, copies: int
) -> tuple[list[DataMove], list[DataMove]]:
    """Gradient reduction and weight gather of ranks that train so much, once an update.

    Stages 2 and 3 reduce gradients whenever a rank turns to a stage, and 3 gathers weights then.

    copies : of the model, which sum gradients together.
    """
    costs, whole = layouts.costs, layouts.of_copies(copies)
    gradient, weight = costs.stack.gradient_bytes, costs.training.activation_bytes
    if zero_stage == 0:
        return _pair("all_reduce", "data", trained, gradient, whole), []
    reduction = reduced_to_shards(trained, gradient, whole) if zero_stage == 1 else []
    return reduction, gathered(trained, weight, layouts) if zero_stage < 3 else []


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


class VisitSeconds(NamedTuple):
    """Seconds of one visit to each kind of stage; arrays (kinds of stages, plans), with two passes on the axis before
    where there are, forward and backward. [s]

    gather : the weights, before a visit's first micro-batch needs them: one block after the other.
    early : of the gather, what that first micro-batch's pass through the blocks before hides by itself; a third pass is
        a backward's input-gradient half.
    reduce : the gradients, when the last micro-batch of a backward visit gives them: one block after the other.
    tail : of the reduction, what is left when that backward is over, at least.
    gather_slows, reduce_slows : what compute loses beside them.
    ahead : whether the weights of the next visit are gathered while a rank computes; else it waits. Arrays (plans).
    beside : the same of gradients that are reduced.
    """

    gather: Floats
    early: Floats
    reduce: KindPlanFloats
    tail: KindPlanFloats
    gather_slows: Floats
    reduce_slows: KindPlanFloats
    ahead: Bools
    beside: Bools

    def take(self, plans: Ints | int) -> VisitSeconds:
        """Return the seconds of some plans, the last axis; or of one, without it."""
        return VisitSeconds._make(each[..., plans] for each in self)

    def of_stages(self, kind_of_stage: Ints) -> VisitSeconds:
        """Return the seconds with stages in the place of their kinds."""
        *over_kinds, ahead, beside = self
        return VisitSeconds._make([*(each[..., kind_of_stage, :] for each in over_kinds), ahead, beside])


def moved_at_visits(plans: Plans, alone: Number) -> Moved | None:
    """Price what plans move every time that they turn to a stage; None where no plan does.

    alone : embedding and head share a stage, and one table serves all that need it.
    """
    zero, in_turns, layouts, layout = plans.moving_stage, plans.gathers_in_turns, plans.layouts, plans.layout
    replicas = layouts.data.size * layouts.expert_data.size
    if not ((zero >= 2) | in_turns).any() or not (replicas > 1).any():
        return None
    shares_stage = np.asarray(alone).tobytes()
    weights, gradients, gather, reduce, *card = _of_blocks(layouts, shares_stage)[:, :, layout]
    gathers, reduces = (zero == 3) | in_turns, zero >= 2
    again = gathers * regathers(plans)
    on_card = np.stack(np.broadcast_arrays(card[0] * gathers, card[0] * again + card[1] * reduces))
    return Moved(weights, gradients, gather * gathers, gather * again, reduce * reduces, on_card)


@lru_cache(maxsize=32)
def _of_blocks(layouts: Layouts, alone: bytes) -> Floats:
    """Bytes of weights and gradients, seconds of a gather and a reduction, and of these on a card, of every block;
    (6, blocks, layouts).
    """
    costs, width = layouts.costs, np.array(gathered_widths(layouts.costs), dtype=float)[:, np.newaxis]
    params = params_of(blocks_sharing(costs.model, np.frombuffer(alone, dtype=bool)), layouts)
    gradients = params[TRAINED].sum(axis=0) * costs.stack.gradient_bytes
    moves, seconds = visit_moves(layouts, params, width)
    card = [move_seconds(each, costs.fabric, on_card=True) for each in moves]
    return np.stack([params[HELD].sum(axis=0) * width, gradients, *seconds, *card])


def gathered_widths(costs: CostModel) -> list[int]:
    """Bytes of the numbers in which ZeRO gathers the weights of every block. [bytes]"""
    width = costs.training.activation_bytes
    layer = 1 if costs.training.format is not None and costs.stack.fp8_gathers else width
    return [width, width, *[layer] * len(costs.model.layer_kinds), layer]


def blocks_sharing(model: ModelSpec, alone: Bools) -> Floats:
    """Counts of each block by itself (`sim.pricing.deal`); (blocks, blocks + 1, layouts or 1).

    Where all share one stage, head and multi-token prediction have no tables of their own.
    """
    counts = np.repeat(np.eye(num_blocks(model), num_blocks(model) + 1)[..., np.newaxis], len(alone), axis=-1)
    counts[HEAD, -1], counts[-1, -1] = alone & model.tied_embeddings, alone
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
    return np.array([way.recompute == WHOLE for way in plans.prices.ways])[plans.way]


def gathered_after_recompute(kind: LayerKind, model: ModelSpec, stack: StackSpec) -> float:
    """Share of a layer's weights that a full recomputation drops again before their gradients.

    The last matrix of a layer is used next; of those before it, twice what follows them lies between.
    """
    if stack.max_reuse_params is None or model.num_experts:
        return 0.0
    last, whole = model.hidden_size * model.intermediate_size, layer_params(model, kind)
    return 1.0 - min(1.0, max(last, stack.max_reuse_params / 2) / whole)


class VisitedBlock(NamedTuple):
    """What one plan moves of a block whenever it turns to a stage, and what that takes. [s]

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
    layouts = plans.layouts
    held = params_of(blocks_sharing(scenario.model, plans.pp * plans.num_chunks == 1), layouts)
    again = regathers(plans)[:, 0].tolist()
    for block, width in enumerate(gathered_widths(layouts.costs)):
        moves, (gather_s, reduce_s) = visit_moves(layouts, held[:, block], width)
        found.append(VisitedBlock(*moves, gather_s.item(), reduce_s.item(), again[block]))
    return found


def visit_moves(
    layouts: Layouts, params: Floats, gathered_width: Number
) -> tuple[tuple[list[DataMove], list[DataMove]], tuple[Number, Number]]:
    """Gathers of blocks' weights, in numbers of so many bytes, and reductions of gradients; and what they take.  [s]"""
    costs, stack, size = layouts.costs, layouts.costs.stack, layouts.shards.size
    # Gradients are reduced at once, or slice by slice in as many collectives as the weights.
    pieces, at_once = stack.gathers_per_layer, stack.gathers_per_layer if stack.slice_s else 1
    moves = (
        gathered(params[HELD], gathered_width, layouts, pieces),
        reduced_to_shards(params[TRAINED], costs.stack.gradient_bytes, layouts, at_once),
    )
    slicing = stack.slice_s * size * (np.asarray(size) > 1)  # cutting a buffer into a slice for each rank
    gather, reduce = (move_seconds(each, costs.fabric) + each[0].pieces * slicing for each in moves)
    if stack.slice_s:  # zeros are written, what arrived or is to be sent is read and written
        copied = (np.asarray(size) > 1) / costs.compute.memory_bandwidth("copy")
        gather = gather + 3 * params[HELD].sum(axis=0) * gathered_width * copied
        reduce = reduce + 2 * params[TRAINED].sum(axis=0) * costs.stack.gradient_bytes * copied
    return moves, (gather, reduce)


def lengthened_passes(plans: Plans, moved: Moved, passes: Floats, card: Floats) -> Floats:
    """What moves with a micro-batch adds to the passes of every block; (passes, blocks, plans).  [s]

    What compute does not hide of what overlaps it is exposed. Gathers are hidden by the layer before, which takes one
    to be gathered ahead. Beside a pass's own collectives the card is theirs: it carries what moves with a micro-batch
    in the rest of the pass.

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
        if place < WEIGHT_GRAD:  # weight gradients have the card to themselves
            way = min(place, BACKWARD)
            compute = np.where(moved.on_card[way] > 0, np.maximum(compute - card[way], 0.0), compute)
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
    gather, regather, reduce = (each * several for each in (moved.gather_s, moved.regather_s, moved.reduce_s))
    slows = (1.0 - fabric.hidden_share(group, moved.weight_bytes, gather)) * ahead
    reduce_slows = reduce * (1.0 - fabric.hidden_share(group, moved.gradient_bytes, reduce)) * beside
    gathers = np.stack([gather, regather])
    of_gather, gather_slows = (put_together(parts, each, axis=1) for each in (gathers, gathers * slows))
    of_reduce, of_slows = put_together(parts, reduce), put_together(parts, reduce_slows)
    first = 1.0 / np.maximum(put_together(parts, np.ones((len(gather), *[1] * (gather.ndim - 1)))), 1.0)
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
