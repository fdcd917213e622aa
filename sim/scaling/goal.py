"""What a run has to reach, as data and steps at any batch: a loss or a token budget under a critical-batch law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.errors import SpecError, require_positive
from sim.scaling.allocation import flop_for_params
from sim.scaling.critical_batch import (
    critical_batch_laws,
    get_critical_batch_law,
    mccandlish_batch,
    steps_needed,
    tokens_needed,
)
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, PowerSum, power_sum_loss, tokens_for_loss
from sim.scaling.published import DEFAULT_LAW, LossLaw, form_of, get_law
from sim.specs import ModelSpec
from sim.units import show_short
from sim.work.operations import Number
from sim.work.sums import active_params, total_params

DEFAULT_BATCH_LAW = "kaplan-2020"


@dataclass(frozen=True, slots=True)
class Goal:
    """A model trained to a loss, as what that takes.

    min_tokens : data far below the critical batch. [tokens]
    critical_batch : by McCandlish's definition: there twice the data and twice the least steps are needed. [tokens]
    loss : at the end, by a loss law; nan where it was not asked for and no law gives it.
    notes : what was assumed.
    batch_law : of the critical batch; None where it was given, and is the same all the way.
    form : loss on the way, for laws that ask for it; None where no law gives it.
    """

    params: float
    min_tokens: float
    critical_batch: float
    loss: float
    notes: tuple[str, ...] = ()
    batch_law: str | None = None
    form: PowerSum | None = None

    def tokens(self, batch_tokens: Number) -> Number:
        """Data that the goal takes at a batch of so many tokens.  [tokens]"""
        return tokens_needed(self.min_tokens, batch_tokens, self.critical_batch)

    def steps(self, batch_tokens: Number) -> Number:
        """Optimizer steps that the goal takes at a batch of so many tokens."""
        return steps_needed(self.min_tokens, batch_tokens, self.critical_batch)

    @property
    def least_steps(self) -> float:
        """Optimizer steps that no batch, however large, goes below."""
        return self.min_tokens / self.critical_batch

    def least_steps_by(self, min_tokens: Array) -> Array:
        """Least steps to where ever more tokens at a small batch would lead; ends with `least_steps`.

        A law names the critical batch of a run that ends at a loss, E_min/S_min, so that S_min follows for every loss
        on the way. Where its batch would grow faster than the data, at the very beginning, no steps are counted.
        """
        if self.batch_law is None:
            return np.asarray(min_tokens, dtype=float) / self.critical_batch
        facts: dict[str, Number] = {"params": self.params, "tokens": min_tokens, "loss": float("nan")}
        if self.form is not None:
            facts["loss"] = power_sum_loss(self.params, min_tokens, self.form)
        facts["flop"] = FLOP_PER_PARAM_TOKEN * self.params * np.asarray(min_tokens)
        steps = min_tokens / mccandlish_batch(self.batch_law, **facts)
        never_back: Array = np.minimum.accumulate(np.broadcast_to(steps, np.shape(min_tokens))[::-1])[::-1]
        return never_back


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

    Parameters
    ----------
    tokens : float, optional
        Tokens that the run would take at a small batch; default: the compute-optimal number.
        With a loss: what that takes.
    loss : float, optional
        Loss to reach, instead of tokens. [nats/token]
    batch_law : str
        Law of the critical batch (flopcast scaling laws). One that names a limit.
    critical_batch : float, optional
        Critical batch, instead of a law. McCandlish's definition. [tokens]
    loss_law : LossLaw, optional
        That turns loss into data and data into loss.

    Raises
    ------
    SpecError
        Both tokens and loss, a loss that the model cannot reach, or an unknown law.
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
        tokens = float(flop_for_params(params, law)) / FLOP_PER_PARAM_TOKEN / params
        notes.append(f"{show_short(tokens)} tokens, compute-optimal by {law.name}")
    require_positive(tokens=tokens)
    if loss is None:
        loss = float("nan") if law.form is None else float(power_sum_loss(params, tokens, law.form))
    law_name = batch_law if critical_batch is None else None
    if critical_batch is None:
        facts = {"params": params, "tokens": tokens, "loss": loss, "flop": FLOP_PER_PARAM_TOKEN * params * tokens}
        critical_batch = float(mccandlish_batch(batch_law, **facts))
        checked = get_critical_batch_law(batch_law).checked
        others = _other_laws(batch_law, facts)
        notes.append(f"critical batch by {batch_law} ({checked}); other laws: {others}")
    require_positive(critical_batch=critical_batch)
    notes.append("data at batch B: (1 + B/critical) times the least (McCandlish et al. 2018)")
    return Goal(params, tokens, critical_batch, loss, tuple(notes), law_name, law.form)


def _other_laws(name: str, facts: dict[str, float]) -> str:
    """What the laws that name a limit say that was not chosen."""
    found = {
        law.name: float(mccandlish_batch(law.name, **facts))
        for law in critical_batch_laws().values()
        if law.data_overhead is not None and law.name != name and np.isfinite([facts[need] for need in law.needs]).all()
    }
    return ", ".join(f"{show_short(batch)} ({other})" for other, batch in found.items())


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
