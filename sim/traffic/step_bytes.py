"""Collectives of the average GPU in a step, one by one; and the bytes it sends, by network: between pipeline ranks, in
layers, between replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.arrays import Floats
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import HELD, TRAINED, params_of
from sim.pricing.layouts import Layouts, cut_of
from sim.pricing.zero import visited_blocks
from sim.specs import Scenario
from sim.work.layers import block_operations, deal_stages
from sim.work.optimizer import GRADIENT_WIDTH
from sim.work.sums import block_works

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_ring"]


@dataclass(frozen=True, slots=True)
class StepCollective:
    """Collectives that are alike, of the average GPU in a step.

    group : tp, cp or ep; data and expert_data, that sum gradients of everything else and of experts; shards and
        expert_shards, within which ZeRO shards these; between, of those that hold the same shard.
    size : of the group. [GPUs]
    nbytes : of each, as of `sim.work.operations.Collective`. [bytes]
    count : in a step.
    """

    name: str
    group: str
    kind: Kind
    size: int
    nbytes: float
    count: float

    @property
    def sent_bytes(self) -> float:
        """Bytes that the GPU sends, over all kinds of traffic. [bytes]"""
        return self.count * ring_bytes(self.kind, self.nbytes, self.size)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What the average GPU sends in a step. [bytes]

    pipeline : activations and their gradients to other pipeline ranks.
    tensor : collectives within layers, over the tensor-, the context- and the expert-parallel group.
    data : gradient reductions and weight gathers over the data-parallel group.
    """

    pipeline: float
    tensor: float
    data: float


def ring_bytes(kind: str, nbytes: float, size: int) -> float:
    """Sent by each of `size` ranks of a ring for a buffer of `nbytes`. [bytes]

    An all-reduce sends 2 (n − 1)/n of the buffer, a gather, a reduce-scatter, an all-to-all or a ring of sends half of
    that (Thakur, Rabenseifner, Gropp 2005, sections 4.1 to 4.4).
    """
    return (2.0 if kind == "all_reduce" else 1.0) * nbytes * (size - 1) / size


def sent_to_shards(params: Floats, layouts: Layouts) -> dict[str, float]:
    """Parameters whose gradients a GPU sends at a reduction, of those it holds of one layout (everything but experts,
    experts), by kind of group: in rings of its sharding groups, as a gather of weights does, and of those of its
    experts; and in all-reduces between these groups."""
    rings = zip(("shards", "expert_shards"), params, layouts.sharding, strict=True)
    sent = {name: ring_bytes("reduce_scatter", each.item(), group.size.item()) for name, each, group in rings}
    if layouts.between_shards is None:
        return {**sent, "between": 0.0}
    held = layouts.shard_of(params).item()
    return {**sent, "between": ring_bytes("all_reduce", held, layouts.between_shards.size.item())}


def step_traffic(scenario: Scenario, sends: float, *, copies: int = 1, updates: float = 1.0) -> StepBytes:
    """Count a step's bytes.

    Parameters
    ----------
    sends : float
        From one pipeline rank to another in a step, forward and backward, of all ranks together.
    copies : int
        Pipelines, each with a model of its own, that run through the ranks.
    updates : float
        Weight updates in a step.

    Notes
    -----
    In a layer of a GPT without sequence parallelism each GPU sends 8 b s h (t − 1)/t numbers a micro-batch, and half as
    many more under full recomputation; a boundary between ranks moves b s h numbers each way (Narayanan et al. 2021,
    arXiv:2104.04473, section 3.2).
    """
    model, plan, stack, cut = scenario.model, scenario.plan, scenario.stack, cut_of(scenario)
    boundary = float(cut.width * cut.tokens * model.hidden_size)
    scatter = stack.p2p_scatter_gather and not plan.sequence_parallel and plan.tp > 1
    each = boundary / plan.tp if scatter or plan.sequence_parallel else boundary
    pipeline = sends * each / plan.pp
    tensor = sends * ring_bytes("all_gather", boundary, plan.tp) / plan.pp if scatter else 0.0
    listed = step_collectives(scenario, copies=copies, updates=updates)
    tensor += sum(each.sent_bytes for each in listed if each.group in _IN_LAYERS)
    return StepBytes(pipeline, tensor, sum(each.sent_bytes for each in listed if each.group not in _IN_LAYERS))


_IN_LAYERS = ("tp", "cp", "ep")


def step_collectives(scenario: Scenario, *, copies: int = 1, updates: float = 1.0) -> list[StepCollective]:
    """Every collective of a step but sends between pipeline ranks, as they are priced.

    Parameters as of `step_traffic`.

    Notes
    -----
    Left out, as they are not priced: sums over the tensor-parallel group of the gradients of what its GPUs hold whole
    (norms and routers, some numbers a layer), of the gradient's norm, of the loss that is logged.
    """
    plans = plans_of(scenario)
    stages = deal_stages(scenario.model, scenario.plan)
    whole = np.sum([stage.part for stage in stages], axis=0)
    found = list(_in_layers(scenario, whole))
    moving, gathers = int(plans.moving_stage.item()), bool(plans.gathers_in_turns)
    if moving == 3 or gathers:
        found += _of_blocks(scenario, plans, whole, copies)
    if moving < 3:
        found += _of_all(scenario, plans, moving, whole, updates, copies)
    if scenario.plan.outer_zero_stage:
        found += _between_groups(scenario, plans, whole, updates, copies)
    return [each for each in found if each.size > 1 and each.count > 0 and each.nbytes > 0]


def _in_layers(scenario: Scenario, whole: Floats) -> Iterator[StepCollective]:
    """Collectives of tensor, context and expert parallelism."""
    plan, cut = scenario.plan, cut_of(scenario)
    sizes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    microbatches = scenario.num_microbatches * plan.sequence_slices / plan.pp
    blocks = block_operations(scenario.model, scenario.stack, cut)
    for count, block in zip(whole, blocks, strict=False):
        (work,) = block_works(block, scenario.stack, (cut.recompute,))
        for phase in (work.forward, work.input_grad, work.weight_grad, work.recompute):
            for item in phase.collectives:
                size, times = sizes[item.group], float(microbatches * count)
                yield StepCollective(item.name, item.group, item.kind, size, float(item.nbytes), times)


def _turns(scenario: Scenario, plans: Plans) -> float:
    """How often in a step ZeRO moves what it shards block by block."""
    return 1.0 if plans.at_visits else float(scenario.num_forwards)


def _of_blocks(scenario: Scenario, plans: Plans, whole: Floats, copies: int) -> Iterator[StepCollective]:
    """Collectives of ZeRO stage 3, block by block; in pipelines gradients are summed once a step, by `_of_all`."""
    plan, stack, visits = scenario.plan, scenario.stack, _turns(scenario, plans)
    pieces, of_gradients = stack.gathers_per_layer, GRADIENT_WIDTH[stack.gradient_precision]
    at_once = pieces if stack.slice_s else 1
    for count, (held, width, again) in zip(whole, visited_blocks(scenario, plans.layouts), strict=False):
        times, gradients = float(count) * visits * copies / plan.pp, held[TRAINED]
        yield from _over_shards("gather weights", "all_gather", held[HELD], width, plans, times * (1 + again), pieces)
        if not plans.gathers_in_turns:
            yield from _over_shards(
                "reduce gradients", "reduce_scatter", gradients, of_gradients, plans, times, at_once
            )


def _of_all(
    scenario: Scenario, plans: Plans, stage: int, whole: Floats, updates: float, copies: int
) -> Iterator[StepCollective]:
    """Collectives of other ZeRO stages: of all that a GPU holds, once an update; stage 2 may reduce more often."""
    share, width = copies / scenario.plan.pp, GRADIENT_WIDTH[scenario.stack.gradient_precision]
    updates *= 1 if scenario.stack.sums_at_last_flush else scenario.flushes
    held = params_of(whole[np.newaxis], plans.layouts)[TRAINED] * share
    if stage == 0:
        for name, params, group in zip(("data", "expert_data"), held, plans.layouts.replicas, strict=True):
            size, nbytes = int(np.asarray(group.size).item()) * copies, np.asarray(params * width).item()
            yield StepCollective("reduce gradients", name, "all_reduce", size, nbytes, updates)
        return
    # Copies of the model sum theirs once.
    reductions, together = (_turns(scenario, plans), 1) if stage == 2 else (updates, copies)
    yield from _over_shards("reduce gradients", "reduce_scatter", held, width, plans, reductions, 1, together)
    if not plans.gathers_in_turns:
        width, often = scenario.training.activation_bytes, 1 if scenario.plan.zero_stage == 3 else scenario.flushes
        yield from _over_shards("gather weights", "all_gather", held, width, plans, updates / often)


def _over_shards(
    name: str, kind: Kind, held: Floats, width: float, plans: Plans, times: float, pieces: int = 1, copies: int = 1
) -> Iterator[StepCollective]:
    """Gathers or reductions within sharding groups; behind reductions, the sums between groups.

    pieces : collectives for everything but experts. copies : of the model, that sum gradients together.
    """
    layouts = plans.layouts
    between = None if plans.like.outer_zero_stage else layouts.between_shards
    groups = (
        ("shards", held[0].item() / pieces, layouts.shards, pieces),
        ("expert_shards", held[1].item(), layouts.expert_shards, 1),
    )
    for group, params, lies, number in groups:
        size, nbytes = int(np.asarray(lies.size).item()), params * width
        together = copies if layouts.between_shards is None else 1
        yield StepCollective(name, group, kind, size * together, nbytes, times * number)
        if between is not None and kind == "reduce_scatter":
            apart = int(np.asarray(between.size).item()) * copies
            yield StepCollective("sum shards", "between", "all_reduce", apart, nbytes / size, times * number)


def _between_groups(
    scenario: Scenario, plans: Plans, whole: Floats, updates: float, copies: int
) -> Iterator[StepCollective]:
    """Collectives of groups that shard the optimizer's state among each other: of a GPU's shard, once an update."""
    layouts, stack = plans.layouts, scenario.stack
    assert layouts.between_shards is not None
    shard = layouts.shard_of(params_of(whole[np.newaxis], layouts)[TRAINED]).item() * copies / scenario.plan.pp
    size, width = int(layouts.between_shards.size.item()), GRADIENT_WIDTH[stack.gradient_precision]
    yield StepCollective("reduce shards", "between", "reduce_scatter", size * copies, shard * width, updates)
    width = scenario.training.activation_bytes
    yield StepCollective("gather shards", "between", "all_gather", size, shard * width, updates)
