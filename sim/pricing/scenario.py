"""Seconds of every virtual stage and every pipeline rank of one plan: what an order becomes a program with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Floats, Ints, RankFloats, StageFloats
from sim.pricing.batch import Batch, batch_of
from sim.pricing.cells import CAUSES
from sim.pricing.deal import Deal, deal_of
from sim.pricing.ranks import once_a_step, tied_reduction
from sim.pricing.replicas import Params, params_of, put_together
from sim.pricing.stages import price_stages, sends_by_stage
from sim.pricing.visits import VisitSeconds, price_visits
from sim.specs import Scenario
from sim.specs.dealing import num_stages_of
from sim.work.operations import Cause
from sim.work.stages import Stage


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of one micro-batch at every virtual stage, and of the once-a-step work of every rank. [s]

    forward, backward : arrays over virtual stages, by cause; `backward` is recomputation, input and weight gradient.
    at_peak : what the executed FLOPs of forward and backward, recomputation aside, would take at the GPU's peak.
    split : what the halves of a backward, each by itself, take more than the whole; likewise, by cause.
    weight_grad_s : a weight gradient by itself, for schedules that split the backward.
    send_forward_s, send_backward_s : to the next and to the previous stage; zero where there is none.
    p2p_blocks : sends occupy the rank that sends (compute overlaps them otherwise).
    reduce_s, reduce_tail_s : gradient reduction of each rank, and the part of it that no backward can hide.
    reduce_share : of its rank's gradients, those of each stage.
    gather_s : ZeRO's weight gather of each rank after the update.
    optimizer_s : the update on each rank, of which offload_s on the host or on the way there and back.
    tied_embedding_s : reduction of the tied embedding's gradient between the ranks of the first and the last stage.
    step_setup_s : host time once a step while the GPUs wait.
    hidden_share : of data-parallel communication that compute overlaps, the share of its time that is really hidden.
    visits : what a visit to every stage moves, of ranks with several chunks; None: nothing.
    """

    stages: tuple[Stage, ...]
    forward: dict[Cause, StageFloats]
    backward: dict[Cause, StageFloats]
    at_peak: dict[Cause, StageFloats]
    weight_grad_s: StageFloats
    send_forward_s: StageFloats
    send_backward_s: StageFloats
    p2p_blocks: bool
    reduce_s: RankFloats
    reduce_tail_s: RankFloats
    reduce_share: StageFloats
    gather_s: RankFloats
    optimizer_s: RankFloats
    offload_s: RankFloats
    tied_embedding_s: float
    step_setup_s: float
    hidden_share: float
    notes: frozenset[str]
    visits: VisitSeconds | None = None
    split: dict[Cause, StageFloats] = field(default_factory=dict)

    @classmethod
    def of_compute(
        cls,
        stages: tuple[Stage, ...],
        num_ranks: int,
        forward: StageFloats,
        backward: StageFloats,
        weight_grad_s: StageFloats | None = None,
        send_forward_s: StageFloats | None = None,
        send_backward_s: StageFloats | None = None,
        reduce_s: RankFloats | None = None,
    ) -> StageCosts:
        """Stages of given seconds, with nothing sent, reduced or done once a step but what is named. [s]"""
        nothing, of_ranks = np.zeros(len(stages)), np.zeros(num_ranks)
        return cls(
            stages=stages,
            forward={Cause.MATMUL: forward},
            backward={Cause.MATMUL: backward},
            at_peak={},
            weight_grad_s=nothing if weight_grad_s is None else weight_grad_s,
            send_forward_s=nothing if send_forward_s is None else send_forward_s,
            send_backward_s=nothing if send_backward_s is None else send_backward_s,
            p2p_blocks=False,
            reduce_s=of_ranks if reduce_s is None else reduce_s,
            reduce_tail_s=of_ranks,
            reduce_share=np.full(len(stages), num_ranks / len(stages)),
            gather_s=of_ranks,
            optimizer_s=of_ranks,
            offload_s=of_ranks,
            tied_embedding_s=0.0,
            step_setup_s=0.0,
            hidden_share=1.0,
            notes=frozenset(),
        )

    @property
    def forward_s(self) -> StageFloats:
        """Forward of one micro-batch, by stage. [s]"""
        return sum(self.forward.values(), np.zeros(len(self.stages)))

    @property
    def typical_send(self) -> float:
        """The longest send between two stages. [s]"""
        return float(max(self.send_forward_s.max(initial=0.0), self.send_backward_s.max(initial=0.0)))

    @property
    def backward_s(self) -> StageFloats:
        """Backward of one micro-batch, by stage. [s]"""
        return sum(self.backward.values(), np.zeros(len(self.stages)))

    @property
    def input_grad_s(self) -> StageFloats:
        """Input gradient of one micro-batch by itself, with what is recomputed, by stage. [s]"""
        return sum(self.split.values(), self.backward_s) - self.weight_grad_s


def stage_costs(
    scenario: Scenario,
    rank_of_stage: Ints | None = None,
    copies: int = 1,
) -> StageCosts:
    """Turn a scenario into seconds for every stage and rank.

    Parameters
    ----------
    scenario : Scenario
    rank_of_stage : array over stages, optional
        Which pipeline rank holds each (`Order.rank_of_stage`). Default: stages dealt in turn.
    copies : int
        Pipelines, each with a model of its own, that run through the ranks (`Order.copies`).

    Returns
    -------
    StageCosts
        With notes on everything that was extrapolated.
    """
    plan = scenario.plan
    stages = num_stages_of(scenario.model.num_layers, plan)
    home = np.arange(stages * copies) % plan.pp if rank_of_stage is None else rank_of_stage
    batch = batch_of(scenario)
    return price_plan(batch, scenario, deal_of(batch.costs, plan, home, copies), home)[0]


def price_plan(batch: Batch, scenario: Scenario, deal: Deal, rank_of_stage: Ints) -> tuple[StageCosts, Params]:
    """Seconds of every stage and rank of a batch of one, and what one GPU of every rank holds."""
    stack, copies = scenario.stack, deal.copies
    seconds = price_stages(batch, deal.stage_parts, deal.alone, by_cause=True)
    once = once_a_step(batch, deal.rank_kinds, copies)
    forward_send, backward_send = sends_by_stage(batch, rank_of_stage, copies)
    at_peak = put_together(deal.stage_parts, batch.prices.at_peak_s[:, :, batch.kind, batch.cell])
    of_stage, of_rank = deal.kind_of_stage, deal.kind_of_rank
    held = once.held.of_kinds(of_rank).take(0)
    stage_params = params_of(deal.stage_parts, batch.costs, batch.layouts).total[of_stage, 0]
    passes = (seconds.forward.sum(axis=1), seconds.backward.sum(axis=1))
    moved = price_visits(batch, deal.stage_parts, (*passes, seconds.input_grad), deal.alone)
    costs = StageCosts(
        stages=deal.stages,
        forward=_by_cause(seconds.forward, of_stage),
        backward=_by_cause(seconds.backward, of_stage),
        at_peak=_by_cause(at_peak, of_stage),
        weight_grad_s=seconds.weight_grad[of_stage, 0],
        send_forward_s=forward_send[:, 0],
        send_backward_s=backward_send[:, 0],
        p2p_blocks=not stack.overlap_p2p,
        reduce_s=once.reduce[of_rank, 0],
        reduce_tail_s=once.tail[of_rank, 0],
        reduce_share=stage_params / held.total[rank_of_stage],
        gather_s=once.gather[of_rank, 0],
        optimizer_s=once.update[of_rank, 0],
        offload_s=once.offload[of_rank, 0],
        tied_embedding_s=float(tied_reduction(batch, deal.span)[0]),
        step_setup_s=stack.step_setup_s,
        hidden_share=float(once.hidden_share[0]),
        notes=batch.prices.notes,
        visits=None if moved is None else moved.of_stages(of_stage).take(0),
        split=_by_cause(seconds.split, of_stage),
    )
    return costs, held


def _by_cause(seconds: Floats, kind_of_stage: Ints) -> dict[Cause, StageFloats]:
    """Seconds (kinds of stages, causes, 1) of every stage, of causes that take any."""
    of_stage = seconds[kind_of_stage, :, 0].T
    taken: list[bool] = (seconds != 0).any(axis=(0, 2)).tolist()
    causes = zip(CAUSES, of_stage, taken, strict=True)
    return {cause: each for cause, each, there in causes if there or cause is Cause.HOST}
