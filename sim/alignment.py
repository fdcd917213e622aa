"""Sizes of a model that keep its multiplies from wide loads, and what padding saves: found by pricing the padded model.

Anthony et al. 2024, arXiv:2401.14489, "The Case for Co-Designing Model Architectures with Hardware", section VII.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sim.costs.efficiency import SECTOR
from sim.pricing.cost_model import cut_of
from sim.specs import Scenario
from sim.units import show_time
from sim.work.pieces import vocabulary_rows

LEAST = 0.002
"""Share of the step below which a saving is not worth a line."""


class Padded(NamedTuple):
    """A size of a model, the next one above it that is aligned on every GPU, and the scenario with that."""

    field: str
    size: int
    to: int
    scenario: Scenario


def padded_sizes(scenario: Scenario) -> Iterator[Padded]:
    """Sizes whose share on one GPU is no whole number of sectors, each padded by itself; none of aligned models.

    Columns of a head count where their multiplies are kernels of their own, and with all the heads of a GPU.
    """
    model, plan, stack = scenario.model, scenario.plan, scenario.stack
    if not scenario.profile.gemm.alignment:
        return
    whole = int(SECTOR // scenario.training.activation_bytes)
    dense = any(kind.mlp == "dense" for kind in model.layer_kinds)
    columns = model.num_heads * model.head_dim / plan.tp
    sizes = {
        "vocab_size": (vocabulary_rows(model, stack, cut_of(scenario)), plan.tp),
        "hidden_size": (model.hidden_size, 1),
        "intermediate_size": (model.intermediate_size / plan.tp if dense else 0, plan.tp),
        "expert_intermediate_size": (model.expert_intermediate_size / plan.etp if model.num_experts else 0, plan.etp),
        "head_dim": (model.head_dim if stack.attention == "math" else columns, 1),
    }
    for field, (share, degree) in sizes.items():
        if share % whole:
            size, multiple = getattr(model, field), whole * degree
            to = -(-size // multiple) * multiple
            more = {"value_head_dim": to} if field == "head_dim" and model.value_head_dim == size else {}
            # What follows from the hidden size where nobody states it stays as it is.
            own = {"head_dim": model.head_dim, "intermediate_size": model.intermediate_size}
            changed = model.replace(**{**own, field: to}, **more)
            yield Padded(field, size, to, scenario.replace(model=changed))


def padding_advice(scenario: Scenario, step_time_s: float, step_time_of: Callable[[Scenario], float]) -> Iterator[str]:
    """Yield a line for each size whose padding would shorten the step, with what it saves.

    Parameters
    ----------
    step_time_of : callable
        Prices a scenario. [s]
    """
    for padded in padded_sizes(scenario):
        saved = step_time_s - step_time_of(padded.scenario)
        if saved > LEAST * step_time_s:
            yield (
                f"{padded.field} {padded.size:,} is badly aligned: padded to {padded.to:,}, a step takes "
                f"{show_time(saved)} ({saved / step_time_s:.1%}) less"
            )
