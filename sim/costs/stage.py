"""Seconds of every virtual stage and every pipeline rank: the bridge from counts to a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.costs.block import Part, block_costs, model_groups, pricing
from sim.costs.collectives import Fabric, all_gather, all_reduce, reduce_scatter, send
from sim.costs.compute import ComputeModel
from sim.costs.replicas import Held, Replicas, held_by, replicas_of, summed_over
from sim.costs.zero import gathered_widths, with_zero_traffic, zero_visits
from sim.network.placement import Group, hop_crosses_domains, tensor_group
from sim.specs import ModelSpec, Scenario
from sim.work.layers import embedding_work, head_work, layer_work
from sim.work.operations import BlockWork, Number
from sim.work.optimizer import GRADIENT_WIDTH, optimizer_work
from sim.work.pieces import Cut
from sim.work.stages import DENSE_LAYER, EMBEDDING, LAYER, Stage, deal_stages, stage_params

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of one micro-batch at every virtual stage, and of the once-a-step work of every rank. [s]

    forward, backward : arrays over virtual stages, by Part; `backward` is recomputation, input and weight gradient.
    at_peak : what the executed FLOPs of forward and backward, recomputation aside, would take at the GPU's peak.
    weight_grad : the weight-gradient share of the backward, for schedules that split it.
    send_forward, send_backward : to the next and to the previous stage; zero where there is none.
    p2p_blocks : sends occupy the rank that sends (they run beside compute otherwise).
    reduce, reduce_tail : gradient reduction of each rank, and the part of it that no backward can hide.
    reduce_share : of its rank's gradients, those of each stage.
    gather : ZeRO's weight gather of each rank after the update.
    optimizer : the update on each rank.
    hidden_share : of data-parallel communication beside compute, the share of its time that is really hidden.
    step_setup : host time once a step while the GPUs wait.
    tied_embedding : reduction of the tied embedding's gradient between first and last rank.
    """

    stages: tuple[Stage, ...]
    forward: dict[Part, Array]
    backward: dict[Part, Array]
    at_peak: dict[Part, Array]
    weight_grad: Array
    send_forward: Array
    send_backward: Array
    p2p_blocks: bool
    reduce: Array
    reduce_tail: Array
    reduce_share: Array
    gather: Array
    optimizer: Array
    tied_embedding: float
    step_setup: float
    hidden_share: float
    notes: frozenset[str]

    @property
    def forward_s(self) -> Array:
        """Forward of one micro-batch, by stage. [s]"""
        return sum(self.forward.values(), np.zeros(len(self.stages)))

    @property
    def typical_send(self) -> float:
        """The longest send between two stages. [s]"""
        return float(max(self.send_forward.max(initial=0.0), self.send_backward.max(initial=0.0)))

    @property
    def backward_s(self) -> Array:
        """Backward of one micro-batch, by stage. [s]"""
        return sum(self.backward.values(), np.zeros(len(self.stages)))


def stage_costs(
    scenario: Scenario, visits: float | None = None, rank_of_stage: Array | None = None, copies: int = 1
) -> StageCosts:
    """Turn a scenario into seconds for every stage and rank.

    Parameters
    ----------
    scenario : Scenario
    visits : float, optional
        How often in a step the schedule turns to a stage (`Order.visits_per_stage`); with ZeRO stages 2 and 3 weights
        are gathered and gradients reduced once a visit. Default: once a micro-batch.
    rank_of_stage : array over stages, optional
        Which pipeline rank holds each (`Order.rank_of_stage`). Default: stages dealt in turn.
    copies : int
        Pipelines, each with a model of its own, that run through the ranks (`Order.copies`).

    Returns
    -------
    StageCosts
        With notes on everything that was extrapolated.
    """
    model, plan, stack = scenario.model, scenario.plan, scenario.stack
    cut, compute, fabric = pricing(scenario)
    groups = model_groups(scenario)
    stages = deal_stages(model, plan) * copies
    home = np.arange(len(stages)) % plan.pp if rank_of_stage is None else rank_of_stage

    visits = zero_visits(plan.num_chunks, scenario.num_microbatches, visits)
    blocks = [
        with_zero_traffic(block_costs(work, compute, groups, fabric), held, gathered, scenario, fabric, visits)
        for (work, held), gathered in zip(model_blocks(scenario, cut), gathered_widths(scenario), strict=True)
    ]
    counts = blocks_of(stages, model)

    def spread(tables: list[dict[Part, float]]) -> dict[Part, Array]:
        parts = {part for table in tables for part in table}
        return {part: counts @ np.array([table.get(part, 0.0) for table in tables]) for part in Part if part in parts}

    forward = spread([block.forward for block in blocks])
    forward[Part.HOST] = forward.get(Part.HOST, 0.0) + np.full(len(stages), stack.forward_setup_s)
    send_forward, send_backward = _sends(scenario, cut, fabric, home, len(stages) // copies)
    reduce, tail, gather, optimizer = _once_a_step(scenario, stages, home, copies, compute, fabric, visits)
    params = np.array([stage_params(stage, model, plan.tp, plan.ep) for stage in stages])
    average = float(params.sum() / plan.pp)
    return StageCosts(
        stages=stages,
        forward=forward,
        backward=spread([block.backward for block in blocks]),
        at_peak=spread([block.at_peak for block in blocks]),
        weight_grad=counts @ np.array([block.weight_grad for block in blocks]),
        send_forward=send_forward,
        send_backward=send_backward,
        p2p_blocks=not stack.overlap_p2p,
        reduce=reduce,
        reduce_tail=tail,
        reduce_share=params / np.bincount(home, params)[home],
        gather=gather,
        optimizer=optimizer,
        step_setup=stack.step_setup_s,
        tied_embedding=0.0 if home[0] == home[len(stages) // copies - 1] else _tied_embedding(scenario, fabric),
        hidden_share=float(
            fabric.hidden_share(replicas_of(scenario).data, reduced_bytes(average, scenario), reduce.mean())
        ),
        notes=frozenset(compute.notes),
    )


def reduced_bytes(params: Number, scenario: Scenario) -> Number:
    """What a rank sends, but for its own share, to sum so many gradients: an all-reduce sends them twice.  [bytes]"""
    passes = 2.0 if scenario.plan.zero_stage == 0 else 1.0
    return passes * params * GRADIENT_WIDTH[scenario.stack.gradient_precision]


def model_blocks(scenario: Scenario, cut: Cut) -> list[tuple[BlockWork, Held]]:
    """What stages are made of: a layer, the embedding, the head; and a layer without experts where the first are so."""
    model, plan, stack = scenario.model, scenario.plan, scenario.stack
    layer, embedding, dense = (held_by(each, model, plan.tp, plan.ep) for each in (LAYER, EMBEDDING, DENSE_LAYER))
    blocks = [
        (layer_work(model, stack, cut), layer),
        (embedding_work(model, stack, cut), embedding),
        (head_work(model, stack, cut), Held(head_params(scenario))),
    ]
    if model.num_dense_layers:
        blocks.append((layer_work(model, stack, cut, dense=True), dense))
    return blocks


def blocks_of(stages: Sequence[Stage], model: ModelSpec) -> Array:
    """How many of each of the `model_blocks` every stage has."""
    rows = [(s.num_layers - s.num_dense_layers, s.has_embedding, s.has_head, s.num_dense_layers) for s in stages]
    return np.array(rows, dtype=float)[:, : 4 if model.num_dense_layers else 3]


def head_params(scenario: Scenario) -> float:
    """Parameters that the head adds to its stage: none for a tied projection beside its embedding."""
    model, tp = scenario.model, scenario.plan.tp
    alone = scenario.plan.num_stages == 1
    with_head = stage_params(Stage(0, 0, alone, True), model, tp)
    return with_head - stage_params(Stage(0, 0, alone, False), model, tp)


def sent_bytes(scenario: Scenario, cut: Cut) -> float:
    """What one GPU sends to the next pipeline rank: all activations, or its tensor-parallel share.  [bytes]"""
    plan = scenario.plan
    activations = cut.width * cut.tokens * scenario.model.hidden_size
    shared = scenario.stack.p2p_scatter_gather or plan.sequence_parallel
    return float(activations / plan.tp if shared else activations)


def _sends(scenario: Scenario, cut: Cut, fabric: Fabric, home: Array, per_copy: int) -> tuple[Array, Array]:
    """Seconds from each stage to the next and to the previous one; none between stages of one rank."""
    plan = scenario.plan
    forward, backward = np.zeros(len(home)), np.zeros(len(home))
    if plan.pp == 1:
        return forward, backward
    seconds = send_seconds(scenario, cut, tensor_group(plan, scenario.cluster), fabric)
    crosses: dict[tuple[int, int], bool] = {}
    for stage in range(len(home) - 1):
        pair = (int(home[stage]), int(home[stage + 1]))
        if pair[0] != pair[1] and (stage + 1) % per_copy:
            if pair not in crosses:
                crosses[pair] = bool(hop_crosses_domains(*pair, plan, scenario.cluster))
            forward[stage] = backward[stage + 1] = seconds[crosses[pair]]
    return forward, backward


def send_seconds(scenario: Scenario, cut: Cut, group: Group, fabric: Fabric) -> tuple[Number, Number]:
    """Send of one micro-batch's activations to the next stage: (inside an NVLink domain, between domains).  [s]

    With scatter/gather each tensor-parallel rank sends 1/t of the activations and the receivers gather over NVLink
    (Narayanan et al. 2021, section 4.1); under sequence parallelism the activations are cut already. Takes arrays.
    """
    plan = scenario.plan
    nbytes = cut.width * cut.tokens * scenario.model.hidden_size
    scatter = scenario.stack.p2p_scatter_gather and not plan.sequence_parallel
    share = nbytes / cut.tp if scatter or plan.sequence_parallel else nbytes
    regather = all_gather(nbytes, group, fabric) if scatter else 0.0
    return send(share, False, fabric) + regather, send(share, True, fabric) + regather


def _once_a_step(
    scenario: Scenario,
    stages: tuple[Stage, ...],
    home: Array,
    copies: int,
    compute: ComputeModel,
    fabric: Fabric,
    visits: float,
) -> tuple[Array, Array, Array, Array]:
    """Gradient reduction, its unhideable tail, weight gather and optimizer, of every rank.

    Copies of the model sum their gradients too, over ranks that lie apart, and every copy updates all its weights.
    """
    model, plan = scenario.model, scenario.plan
    replicas = replicas_of(scenario)
    summed = (
        replicas
        if copies == 1
        else Replicas(*(_over_copies(each, copies) for each in (replicas.data, replicas.experts)))
    )
    rows = []
    for rank in range(plan.pp):
        stages_here = [stage for stage, where in zip(stages, home, strict=True) if where == rank]
        held = sum((held_by(stage, model, plan.tp, plan.ep) for stage in stages_here), Held(0.0))
        # The last bucket, with the first layer or the embedding, is complete only when the backward ends.
        first = EMBEDDING if stages_here[0].has_embedding else LAYER
        if stages_here[0].num_dense_layers and first is LAYER:
            first = DENSE_LAYER
        first_held = held_by(first, model, plan.tp, plan.ep)
        rows.append(rank_once_a_step(held, first_held, scenario, replicas, summed, compute, fabric, visits))
    reduce, tail, gather_all, optimizer = np.array(rows, dtype=float).T
    return reduce, tail, gather_all, optimizer


def _over_copies(group: Group, copies: int) -> Group:
    return Group(group.size * copies, group.per_domain, group.shares_network, group.num_domains * copies)


def rank_once_a_step(
    held: Held,
    first: Held,
    scenario: Scenario,
    replicas: Replicas,
    summed: Replicas,
    compute: ComputeModel,
    fabric: Fabric,
    visits: Number,
) -> tuple[Number, Number, Number, Number]:
    """Gradient reduction, its unhideable tail, weight gather and optimizer of a rank.  [s]

    Takes arrays, but for the scenario's ZeRO stage.

    Parameters
    ----------
    held, first : Held
        What the rank holds, and what of it comes first.
    replicas, summed : Replicas
        The ranks that shard, and those that sum gradients.
    visits : float or array
        As in `stage_costs`.
    """
    plan, stack, training = scenario.plan, scenario.stack, scenario.training
    width = GRADIENT_WIDTH[stack.gradient_precision]
    collective = all_reduce if plan.zero_stage == 0 else reduce_scatter
    reduced_already = (plan.zero_stage == 3) | ((plan.zero_stage == 2) & (np.asarray(visits) > 1))
    reduction: Number = 0.0
    if plan.zero_stage != 3:
        reduction = summed_over(collective, held, width, summed, fabric) * ~reduced_already
    gather: Number = 0.0
    if plan.zero_stage in (1, 2):
        gather = summed_over(all_gather, held, training.activation_bytes, replicas, fabric)
    shard = held.params
    if plan.zero_stage:
        shard = (held.params - held.experts) / replicas.data.size + held.experts / replicas.experts.size
    update = sum(compute.operation_time(item) for item in optimizer_work(shard, stack, training))
    return reduction, reduction * np.minimum(1.0, first.params / held.params), gather, update


def _tied_embedding(scenario: Scenario, fabric: Fabric) -> float:
    """All-reduce of a tied embedding's gradient between first and last pipeline rank."""
    plan = scenario.plan
    if plan.pp == 1 or not scenario.model.tied_embeddings:
        return 0.0
    return float(tied_reduction(scenario, plan.tp, plan.tp * plan.num_replicas, plan.num_gpus, fabric))


def tied_reduction(scenario: Scenario, tp: Number, rank_gpus: Number, num_gpus: Number, fabric: Fabric) -> Number:
    """All-reduce of a tied embedding's gradient between two pipeline ranks of `rank_gpus` each. Takes arrays.  [s]"""
    model = scenario.model
    grads = model.vocab_size * model.hidden_size / tp * GRADIENT_WIDTH[scenario.stack.gradient_precision]
    apart = np.asarray(num_gpus) > scenario.cluster.nvlink_domain_gpus
    return all_reduce(grads, Group(2, np.where(apart, 1, 2), np.asarray(rank_gpus) > 1), fabric)
