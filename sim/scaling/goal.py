"""What a training run is to reach: a number of tokens or a loss, as data and steps at any batch.

.. [1] McCandlish et al. 2018, "An empirical model of large-batch training", arXiv:1812.06162.
.. [2] Kaplan et al. 2020, arXiv:2001.08361, equations 5.1 to 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.arrays import Number
from sim.errors import SpecError, require_positive
from sim.scaling.loss_laws import (
    BATCH_LAWS,
    DEFAULT_LAW,
    FLOP_PER_PARAM_TOKEN,
    LossLaw,
    best_tokens,
    form_of,
    get_law,
    mccandlish_batch,
    power_sum_loss,
    tokens_for_loss,
)
from sim.specs import ModelSpec
from sim.units import show_short
from sim.work.sums import active_params, total_params

DEFAULT_BATCH_LAW = "kaplan-2020"


@dataclass(frozen=True, slots=True)
class Goal:
    """A model trained to a loss, as what that takes.

    min_tokens : data far below the critical batch. [tokens]
    critical_batch : by McCandlish's definition: there twice the data and twice the least steps are needed. [tokens]
    loss : at the end, by a loss law; nan where it was not asked for and no law gives it.
    notes : what was assumed.
    """

    params: float
    min_tokens: float
    critical_batch: float
    loss: float
    notes: tuple[str, ...] = ()

    def tokens(self, batch: Number) -> Number:
        """Data that the goal takes at a batch of so many tokens: E = E_min (1 + B/B_crit) [1]_.  [tokens]"""
        require_positive(min_tokens=self.min_tokens, batch=batch, critical=self.critical_batch)
        return np.asarray(self.min_tokens, dtype=float) * (1 + np.asarray(batch, dtype=float) / self.critical_batch)

    def steps(self, batch: Number) -> Number:
        """Optimizer steps that the goal takes at a batch of so many tokens.

        S = S_min (1 + B_crit/B) with S_min = E_min / B_crit: the hyperbola (S/S_min − 1)(E/E_min − 1) = 1 [1]_ [2]_.
        """
        return self.tokens(batch) / np.asarray(batch, dtype=float)

    @property
    def least_steps(self) -> float:
        """Optimizer steps that no batch, however large, goes below."""
        return self.min_tokens / self.critical_batch


def goal_of(
    params: float,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    batch_law: str = DEFAULT_BATCH_LAW,
    critical_batch: float | None = None,
    loss_law: LossLaw | None = None,
) -> Goal:
    """The goal of training `params` parameters on so many tokens, or to a loss.

    tokens : tokens that the run would take at a small batch; default: the compute-optimal number. With a loss: what
        that takes.
    loss : loss to reach, instead of tokens. [nats/token]
    batch_law : law of the critical batch (flopcast scaling laws). One that names a limit.
    critical_batch : critical batch, instead of a law. McCandlish's definition. [tokens]
    loss_law : that turns loss into data and data into loss.

    Raises SpecError: both tokens and loss, a loss that the model cannot reach, or an unknown law.
    """
    require_positive(params=params)
    law = loss_law or get_law(DEFAULT_LAW)
    if tokens is not None and loss is not None:
        raise SpecError("give either tokens or a loss; the loss law says what the other is")
    notes = []
    if loss is not None:
        tokens = tokens_for_loss(loss, params, form_of(law))
        notes.append(f"{show_short(tokens)} tokens for a loss of {loss:g} by {law.name}")
    elif tokens is None:
        tokens = best_tokens(params, law)
        notes.append(f"{show_short(tokens)} tokens, compute-optimal by {law.name}")
    require_positive(tokens=tokens)
    if loss is None:
        loss = float("nan") if law.form is None else float(power_sum_loss(params, tokens, law.form))
    if critical_batch is None:
        facts = {"params": params, "tokens": tokens, "loss": loss, "flop": FLOP_PER_PARAM_TOKEN * params * tokens}
        critical_batch = float(mccandlish_batch(batch_law, **facts))
        limits = [each for each in BATCH_LAWS.values() if each.data_overhead and np.isfinite(facts[each.fact])]
        others = ", ".join(
            f"{show_short(float(mccandlish_batch(each.name, **facts)))} ({each.name})"
            for each in limits
            if each.name != batch_law
        )
        checked = BATCH_LAWS[batch_law].checked
        notes.append(f"critical batch by {batch_law} ({checked}); other laws: {others}")
    require_positive(critical_batch=critical_batch)
    notes.append("data at batch B: (1 + B/critical) times the least (McCandlish et al. 2018)")
    return Goal(params, tokens, critical_batch, loss, tuple(notes))


def goal_of_model(model: ModelSpec, **asked: Any) -> Goal:
    """`goal_of` for a described model. A mixture of experts counts as a dense model of its active parameters.

    Published laws are of dense models; a mixture reaches a lower loss than its active parameters and a higher one than
    all of its parameters would (the effective parameter count of Clark et al. 2022, arXiv:2202.01169), so this takes no
    less data than it needs.
    """
    goal = goal_of(float(active_params(model)), **asked)
    if not model.num_experts:
        return goal
    note = f"loss and batch laws are of dense models; taken at the {show_short(active_params(model))} active parameters"
    return replace(goal, params=float(total_params(model)), notes=(*goal.notes, note))
