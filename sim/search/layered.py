"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, cast

import numpy as np

from sim.costs.block import block_costs, pricing
from sim.costs.replicas import Held, Replicas
from sim.costs.stage import rank_once_a_step, reduced_bytes, send_seconds, tied_reduction
from sim.costs.zero import gathered_widths, sharded_block, zero_traffic
from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate, estimate
from sim.network.placement import Group, data_group
from sim.search.columns import table as table_of
from sim.search.space import divisors, tensor_degrees
from sim.specs import ParallelPlan, Scenario
from sim.units import show
from sim.work.layers import embedding_work, head_work, layer_work
from sim.work.memory import cut_memory, memory_of, stage_activation_bytes
from sim.work.pieces import Cut
from sim.work.stages import EMBEDDING, HEAD, LAYER, stage_params

Array = np.ndarray

CHOICES = ("recompute", "sequence_parallel", "zero_stage")


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


@dataclass(frozen=True, slots=True)
class LayeredTable:
    """Every layered plan of some batches and numbers of GPUs, that fits in memory.

    choice : place in `choices`, (recompute, sequence_parallel, zero_stage), of each row.
    bound_s : time that its step cannot go below. [s]
    memory_bytes : of the fullest rank. [bytes]
    plans : looked at, with those that do not fit.
    """

    scenario: Scenario
    choices: tuple[tuple[str, bool, int], ...]
    rows: Rows
    choice: Array
    bound_s: Array
    memory_bytes: Array
    plans: int
    offloaded_layers: int

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        rows, given = self.rows, self.scenario
        fields_of_plan = ("tp", "pp", "dp", "num_chunks", "microbatch_size")
        numbers: dict[str, Any] = {name: int(getattr(rows, name)[place]) for name in fields_of_plan}
        numbers["offloaded_layers"] = self.offloaded_layers
        numbers |= dict(zip(CHOICES, self.choices[int(self.choice[place])], strict=True))
        one_layer = numbers["pp"] * numbers["num_chunks"] == given.model.num_layers
        plan = ParallelPlan(**numbers, schedule="modular" if one_layer else "breadth_first")
        return given.replace(plan=plan, training=given.training.replace(global_batch_size=int(rows.batch[place])))


@dataclass(frozen=True, slots=True)
class LayeredResult:
    """The best layered plans by the exact engine, best first.

    run : plans that it ran; the others' bounds are no better than the worst of `best`.
    """

    best: tuple[Estimate, ...]
    plans: int
    run: int


def search_layered(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    steps: Callable[[Array], Array] | None = None,
    top: int = 1,
    **space: Any,
) -> LayeredResult:
    """The layered plans that make a run shortest.

    Parameters
    ----------
    scenario : Scenario
        Model, cluster, training and stack are kept.
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    steps : callable, optional
        Steps of a run at a batch in sequences, up to a factor. Default: as many tokens at every batch.
    top : int
        How many to return.
    **space
        As `layered_table` takes it.

    Raises
    ------
    InfeasiblePlan
        No plan keeps the rules and fits.
    """
    table = layered_table(scenario, gpus=gpus, batches=batches, **space)
    share = np.asarray(1.0 / table.rows.batch if steps is None else steps(table.rows.batch), dtype=float)
    best, run = best_of(table, table.bound_s * share, lambda place: float(share[place]), top)
    if not best:
        raise InfeasiblePlan(
            f"none of {table.plans:,} layered plans on {gpus[0]:,} to {gpus[1]:,} GPUs fits in "
            f"{show(scenario.cluster.gpu.memory_bytes, 'B')}; use more GPUs, or GPUs with more memory"
        )
    return LayeredResult(tuple(best), table.plans, run)


def best_of(
    table: LayeredTable, bound: Array, share: Callable[[int], float], top: int = 1
) -> tuple[list[Estimate], int]:
    """Run plans in the order of their bounds until no other can be among the `top` best; and how many were run.

    `bound` is what none goes below of its step time times its `share`; infinite for those to be left out.
    """
    found: list[tuple[float, Estimate]] = []
    run = 0
    for place in np.argsort(bound, kind="stable").tolist():
        if not np.isfinite(bound[place]) or (len(found) == top and bound[place] >= found[-1][0]):
            break
        answer = estimate(table.scenario_at(place))
        run += 1
        if answer.fits:
            found = sorted([*found, (answer.step_time_s * share(place), answer)], key=lambda item: item[0])[:top]
    return [answer for _, answer in found], run


def layered_table(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    tensor: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    zero_stages: Sequence[int] = (0, 1, 2, 3),
    offloaded_layers: int = 0,
) -> LayeredTable:
    """Bound and memory-check every layered plan.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    tensor, pipeline : sequences of int, optional
        Degrees to try. Default: tensor-parallel degrees that divide NVLink domains or fill them, and all divisors of
        the layers.
    recomputes, sequence_parallel, zero_stages : sequences
        Choices to try.
    offloaded_layers : int
        Layers of the model whose activations wait in host memory.

    Notes
    -----
    At least as many micro-batches as pipeline ranks: with fewer the ranks only wait for each other.

    Raises
    ------
    SpecError
        The model is a mixture of experts.
    """
    if scenario.model.num_experts:
        raise SpecError(
            f"layered plans are searched for models without experts, and {scenario.model.name!r} has "
            f"{scenario.model.num_experts}; use flopcast search, or estimate one layered plan"
        )
    domain, layers = scenario.cluster.nvlink_domain_gpus, scenario.model.num_layers
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    degrees = [tp for tp in whole if tensor is None or tp in tensor]
    depths = [pp for pp in divisors(layers) if pipeline is None or pp in pipeline]
    everything = _rows(scenario, degrees, depths, batches or (scenario.training.global_batch_size,), gpus)
    choices = tuple(product(recomputes, sequence_parallel, zero_stages))
    # Memory first: most plans of a large model do not fit, and need no price.
    fitting: list[tuple[int, Array, Array]] = []
    looked_at = 0
    for number, (recompute, sp, zero) in enumerate(choices):
        able = (everything.tp > 1) & (scenario.training.sequence_length % everything.tp == 0) | (not sp)
        able &= (everything.dp > 1) | (zero == 0)
        where = np.flatnonzero(able)
        if not len(where):
            continue
        needed = _Part(scenario, everything.take(where), recompute, sp, zero, offloaded_layers).memory_bytes()
        looked_at += len(where)
        fits = needed <= scenario.cluster.gpu.memory_bytes * (1 + 1e-9)
        fitting.append((number, where[fits], needed[fits]))
    places = np.concatenate([where for _, where, _ in fitting] or [np.empty(0, dtype=int)])
    choice = np.repeat([number for number, _, _ in fitting], [len(where) for _, where, _ in fitting]).astype(int)
    memory = np.concatenate([needed for _, _, needed in fitting] or [np.empty(0)])
    rows, bound = everything.take(places), np.empty(len(places))
    data = _data_groups(scenario, rows)
    kinds = {choices[number][:2] for number, where, _ in fitting if len(where)}
    seconds = {kind: _block_seconds(scenario, rows, *kind) for kind in kinds}
    for number, (recompute, sp, zero) in enumerate(choices):
        here = np.flatnonzero(choice == number)
        if len(here):
            group = Group(data.size[here], data.per_domain[here], data.shares_network[here], data.spans[here])  # type: ignore[index]
            part = _Part(scenario, rows.take(here), recompute, sp, zero, offloaded_layers)
            bound[here] = part.bound_s(group, seconds[recompute, sp][:, :, here])
    return LayeredTable(scenario, choices, rows, choice, bound, memory, looked_at, offloaded_layers)


def _rows(
    scenario: Scenario, degrees: list[int], depths: list[int], batches: Sequence[int], gpus: tuple[int, int]
) -> Rows:
    layers, most = scenario.model.num_layers, min(gpus[1], scenario.cluster.num_gpus)
    shapes = [(tp, pp, v) for tp in degrees for pp in depths for v in divisors(layers // pp) if v > 1]
    cuts = [
        (batch, dp, size) for batch in batches for dp in divisors(batch) if dp <= most for size in divisors(batch // dp)
    ]
    shape, cut = np.array(shapes, dtype=np.int64).reshape(-1, 3), np.array(cuts, dtype=np.int64).reshape(-1, 3)
    first, second = (each.ravel() for each in np.indices((len(shape), len(cut))))
    (tp, pp, chunks), (batch, dp, size) = shape[first].T, cut[second].T
    used = tp * pp * dp
    kept = (used >= gpus[0]) & (used <= most) & (batch // (dp * size) >= pp)
    return Rows(*(each[kept] for each in (batch, tp, pp, dp, chunks, size)))


def _data_groups(scenario: Scenario, rows: Rows) -> Group:
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


def _block_seconds(scenario: Scenario, rows: Rows, recompute: str, sequence_parallel: bool) -> Array:
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


class _Part:
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
        there_and_back : as of `_block_seconds`. [s]
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
