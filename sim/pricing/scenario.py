"""Seconds of every virtual stage and every pipeline rank of one plan: what an order becomes a program with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sim.arrays import Ints
from sim.pricing.deal import Deal, deal_of
from sim.pricing.plans import Plans, plans_of
from sim.pricing.ranks import RankSeconds, once_a_step, tied_reduction
from sim.pricing.replicas import HELD, params_of
from sim.pricing.stages import StageSeconds, price_stages, sends_by_stage
from sim.specs import Scenario
from sim.specs.dealing import num_stages_of


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
    return price_plan(plans, deal_of(scenario.model, plan, home, copies), home)


def price_plan(plans: Plans, deal: Deal, rank_of_stage: Ints) -> StageSeconds:
    """Price every stage and rank of one plan."""
    once, stack = once_a_step(plans, deal), plans.costs.stack
    send_forward, send_backward = sends_by_stage(plans, rank_of_stage, deal.copies)
    of_stages = params_of(deal.stage_kinds, plans.layouts)[HELD, deal.kind_of_stage, 0].sum(axis=0)
    of_ranks: dict[str, Any] = {name: getattr(once, name)[deal.kind_of_rank, 0] for name in RankSeconds._fields[:6]}
    params = of_ranks.pop("params")
    return replace(
        price_stages(plans, deal, by_cause=True).of_stages(deal.kind_of_stage),
        stages=deal.stages,
        send_forward_s=send_forward[:, 0],
        send_backward_s=send_backward[:, 0],
        p2p_blocks=not stack.overlap_p2p,
        reduce_share=of_stages / params[rank_of_stage],
        tied_embedding_s=float(tied_reduction(plans, deal)[0]),
        step_setup_s=stack.step_setup_s,
        hidden_share=float(once.hidden_share[0]),
        notes=plans.prices.notes,
        **of_ranks,
    )
