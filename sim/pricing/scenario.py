"""Seconds of every virtual stage and every pipeline rank of one plan: what an order becomes a program with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import Floats, Ints
from sim.pricing.deal import Deal, deal_of
from sim.pricing.plans import Plans, plans_of
from sim.pricing.ranks import once_a_step, tied_reduction
from sim.pricing.replicas import HELD, params_of
from sim.pricing.stages import StageSeconds, price_stages, sends_by_stage
from sim.specs import Scenario
from sim.specs.dealing import num_stages_of

StageCosts = StageSeconds


def stage_costs(
    scenario: Scenario,
    rank_of_stage: Ints | None = None,
    copies: int = 1,
) -> StageSeconds:
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
    StageSeconds
        With notes on everything that was extrapolated.
    """
    plan = scenario.plan
    stages = num_stages_of(scenario.model.num_layers, plan)
    home = np.arange(stages * copies) % plan.pp if rank_of_stage is None else rank_of_stage
    plans = plans_of(scenario)
    return price_plan(plans, scenario, deal_of(scenario.model, plan, home, copies), home)[0]


def price_plan(plans: Plans, scenario: Scenario, deal: Deal, rank_of_stage: Ints) -> tuple[StageSeconds, Floats]:
    """Seconds of every stage and rank of one plan; and parameters that one GPU of every rank holds."""
    once = once_a_step(plans, deal)
    send_forward, send_backward = sends_by_stage(plans, rank_of_stage, deal.copies)
    held = params_of(deal.rank_kinds.counts, plans.layouts)[:, deal.kind_of_rank, 0]
    of_stages = params_of(deal.stage_kinds, plans.layouts)[HELD, deal.kind_of_stage, 0].sum(axis=0)
    reduce, tail, gather, update, offload, _ = (each[deal.kind_of_rank, 0] for each in once[:6])
    seconds = replace(
        price_stages(plans, deal, by_cause=True).of_stages(deal.kind_of_stage),
        stages=deal.stages,
        send_forward_s=send_forward[:, 0],
        send_backward_s=send_backward[:, 0],
        p2p_blocks=not scenario.stack.overlap_p2p,
        reduce_s=reduce,
        reduce_tail_s=tail,
        reduce_share=of_stages / held[HELD].sum(axis=0)[rank_of_stage],
        gather_s=gather,
        optimizer_s=update,
        offload_s=offload,
        tied_embedding_s=float(tied_reduction(plans, deal)[0]),
        step_setup_s=scenario.stack.step_setup_s,
        hidden_share=float(once.hidden_share[0]),
        notes=plans.prices.notes,
    )
    return seconds, held
