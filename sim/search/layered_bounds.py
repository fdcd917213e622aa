"""Layered plans of one way to run them: a time that their step cannot go below, and their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from sim.costs.block import block_costs, pricing
from sim.costs.replicas import Held, Replicas
from sim.costs.stage import rank_once_a_step, reduced_bytes, send_seconds, tied_reduction
from sim.costs.zero import gathered_widths, sharded_block, zero_traffic
from sim.network.placement import Group, data_group
from sim.search.plans.columns import table as table_of
from sim.specs import ParallelPlan, Scenario
from sim.work.layers import embedding_work, head_work, layer_work
from sim.work.memory import cut_memory, memory_of, stage_activation_bytes
from sim.work.pieces import Cut
from sim.work.stages import EMBEDDING, HEAD, LAYER, stage_params

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Rows:
    """Layered plans, one a row: every rank holds `num_chunks` chunks of equally many layers."""

    batch: Array
    tp: Array
    pp: Array
    dp: Array
    num_chunks: Array
    microbatch_size: Array

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Array) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def num_gpus(self) -> Array:
        """GPUs of each plan."""
        return cast("Array", self.tp * self.pp * self.dp)

    @property
    def num_microbatches(self) -> Array:
        """Of each pipeline and step."""
        return cast("Array", self.batch // (self.dp * self.microbatch_size))


def data_groups(scenario: Scenario, rows: Rows) -> Group:
    """The group over which each row sums gradients, as arrays."""
    keys, place = np.unique(np.stack([rows.tp, rows.pp, rows.dp], axis=1), axis=0, return_inverse=True)
    groups = [data_group(ParallelPlan(tp=tp, pp=pp, dp=dp), scenario.cluster) for tp, pp, dp in keys.tolist()]
    names = ("size", "per_domain", "shares_network", "spans")
    return Group(*(np.array([getattr(group, name) for group in groups])[place.ravel()] for name in names))


def _cut(scenario: Scenario, tp: Any, size: Any, recompute: str, sequence_parallel: bool) -> Cut:
    training = scenario.training
    return Cut(
        tp, size, training.sequence_length, sequence_parallel, recompute, training.activation_bytes,
        fp8=training.precision == "fp8",
    )  # fmt: skip


def _tensor_group(scenario: Scenario, tp: Any, alone: Any) -> Group:
    return Group(tp, np.minimum(tp, scenario.cluster.nvlink_domain_gpus), shares_network=~np.asarray(alone))


def block_seconds(scenario: Scenario, rows: Rows, recompute: str, sequence_parallel: bool) -> Array:
    """Forward and backward of layer, embedding and head of every row: axes pass, block, row.  [s]"""
    _, compute, fabric = pricing(scenario)
    sizes, size_place = np.unique(rows.microbatch_size, return_inverse=True)
    alone = rows.pp * rows.dp == 1
    degrees, tp_place = np.unique(np.stack([rows.tp, alone]), axis=1, return_inverse=True)
    known = np.zeros((2, 3, degrees.shape[1], len(sizes)))
    for place, (tp, by_itself) in enumerate(degrees.T.tolist()):
        cut = _cut(scenario, tp, sizes.astype(float), recompute, sequence_parallel)
        groups = {"tp": _tensor_group(scenario, tp, bool(by_itself)), "cp": Group(1, 1), "ep": Group(1, 1)}
        for which, work in enumerate((layer_work, embedding_work, head_work)):
            costs = block_costs(work(scenario.model, scenario.stack, cut), compute, groups, fabric)
            known[0, which, place], known[1, which, place] = costs.forward_s, costs.backward_s
    return known[:, :, tp_place.ravel(), size_place]


class Part:
    """Rows of one recomputation, sequence parallelism and ZeRO stage, and what their bound and memory are made of."""

    def __init__(
        self,
        scenario: Scenario,
        rows: Rows,
        recompute: str,
        sequence_parallel: bool,
        zero_stage: int,
        offloaded_layers: int,
    ) -> None:
        self.scenario, self.rows = scenario, rows
        self.cut = _cut(scenario, rows.tp, rows.microbatch_size, recompute, sequence_parallel)
        ones = np.ones(len(rows), dtype=np.int64)
        self.table = table_of(
            scenario.replace(plan=scenario.plan.replace(embedding_as_layer=False, head_as_layer=False)),
            tp=rows.tp,
            cp=ones,
            pp=rows.pp,
            dp=rows.dp,
            num_chunks=rows.num_chunks,
            microbatch_size=rows.microbatch_size,
            recompute=recompute,
            sequence_parallel=sequence_parallel,
            zero_stage=zero_stage,
            offloaded_layers=offloaded_layers,
        )
        self.layers = scenario.model.num_layers / (rows.pp * rows.num_chunks)  # of a chunk
        self.params = [self._by_tp(lambda tp, kind=kind: stage_params(kind, scenario.model, tp)) for kind in  # type: ignore[misc]
                       (LAYER, EMBEDDING, HEAD)]  # fmt: skip

    def _by_tp(self, of: Callable[[int], float]) -> Array:
        degrees, place = np.unique(self.rows.tp, return_inverse=True)
        return np.array([of(tp) for tp in degrees.tolist()], dtype=float)[place]

    def bound_s(self, data: Group, there_and_back: Array) -> Array:
        """Time that a step cannot go below.  [s]

        A rank turns to its next chunk when it has done all micro-batches of this one, and when the first of them has
        come round through all ranks; then the last chunk fills and drains the pipeline once. Embedding and head are
        counted where they stand, links between ranks at the nearest they can be.

        data : over which each row sums gradients.
        there_and_back : as of `block_seconds`. [s]
        """
        scenario, rows, table = self.scenario, self.rows, self.table
        stack, plan = scenario.stack, table.plan
        _, compute, fabric = pricing(scenario)
        replicas = Replicas(data, data)  # there are no experts
        m, v, pp = rows.num_microbatches, rows.num_chunks, rows.pp
        if plan.zero_stage >= 2:
            widths = gathered_widths(scenario)
            kinds = zip(*there_and_back, self.params, widths, strict=True)
            more = [
                zero_traffic(f, b, sharded_block(Held(params), width, table, replicas, fabric), table, fabric, 1.0, m)
                for f, b, params, width in kinds
            ]
            there_and_back = there_and_back + np.array(more).transpose(1, 0, 2)
        (layer_f, embedding_f, head_f), (layer_b, embedding_b, head_b) = there_and_back
        forward, backward = self.layers * layer_f + stack.forward_setup_s, self.layers * layer_b
        domain = scenario.cluster.nvlink_domain_gpus
        near, far = send_seconds(table, self.cut, _tensor_group(scenario, rows.tp, rows.pp * rows.dp == 1), fabric)
        send = np.where(rows.tp * rows.dp >= domain, far, near) * (pp > 1)
        fill, drain = (pp - 1) * (forward + send), (pp - 1) * (backward + send)
        sending = 0.0 if stack.overlap_p2p else m * send
        round_f = np.maximum(m * forward + sending, pp * (forward + send))
        round_b = np.maximum(m * backward + sending, pp * (backward + send))
        begin = np.maximum(m * (forward + embedding_f) + sending, round_f)
        there = begin + (v - 2) * round_f + fill + m * (forward + head_f)
        first = np.maximum(m * (backward + head_b) + sending, round_b)
        back = first + (v - 2) * round_b + drain + m * (backward + embedding_b)

        # The first rank's backward is the last to end, and the embedding's gradients are complete only then.
        layers, embedding, head = self.params[0] * self.layers * v, self.params[1], self.params[2]
        held = np.stack([layers + embedding + head * (pp == 1), layers, layers + head])
        of_ranks = rank_once_a_step(Held(held), Held(embedding), table, replicas, replicas, compute, fabric, 1.0)
        reduce, tail, gather, update = (np.broadcast_to(part, held.shape)[0] for part in of_ranks)
        average, reduction = (
            np.where(pp == 1, first, (first + (pp - 2) * middle + last) / pp)
            for first, middle, last in (held, np.broadcast_to(of_ranks[0], held.shape))
        )
        hidden = fabric.hidden_share(data, reduced_bytes(average, table), reduction)
        if stack.overlap_grad_reduce:
            reduce = reduce - hidden * np.minimum(reduce - tail, back)
        if stack.overlap_param_gather:
            window = (v - 1) * m * forward + m * embedding_f + forward + head_f * (pp == 1)
            gather = gather - hidden * np.minimum(gather, window)
        tied: Any = 0.0
        if scenario.model.tied_embeddings:
            tied = tied_reduction(table, rows.tp, rows.tp * rows.dp, rows.num_gpus, fabric) * (pp > 1)
        bound: Array = there + back + reduce + tied + gather + update + stack.step_setup_s
        return bound

    def memory_bytes(self) -> Array:
        """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
        scenario, rows = self.scenario, self.rows
        model, stack = scenario.model, scenario.stack
        layer, embedding, head = (
            stage_activation_bytes(kind, model, stack, self.cut, self.table.plan.offloaded_layers)
            for kind in (LAYER, EMBEDDING, HEAD)
        )
        m, alone = rows.num_microbatches, rows.pp == 1
        held = self.layers * rows.num_chunks
        kinds = [(1.0, 1.0 * alone), (0.0, 0.0), (1.0 * alone, 1.0)]  # (embedding, head) of first, middle and last rank
        totals = []
        of_cut = cut_memory(self.table, self.cut)
        for with_embedding, with_head in kinds:
            params = held * self.params[0] + with_embedding * self.params[1] + with_head * self.params[2]
            peak = m * (held * layer + with_embedding * embedding + with_head * head)
            totals.append(memory_of(self.table, of_cut, params, peak, m * with_head).total)
        fullest: Array = np.stack([np.broadcast_to(total, len(rows)) for total in totals]).max(axis=0)
        return fullest
