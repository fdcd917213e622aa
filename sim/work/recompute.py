"""What of a layer runs again in the backward, as one word that plans, cuts and cells share.

`none`, `selective` (the attention core), `selective:layernorm+moe_act` (modules), `per_op`, `full`; `full:4:0.25` of
layers that are run again in groups of four, of whose inputs a quarter is kept; `full*0.4` of a stage that runs four
tenths of its layers again, whole, and the others not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sim.specs import ModelSpec, ParallelPlan
from sim.specs.modules import RECOMPUTE_MODULES
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES


@dataclass(frozen=True, slots=True)
class Recompute:
    """What a word says.

    mode : none, selective, per_op or full.
    modules : of operations, that selective recomputation runs again.
    names : of what was asked for, as in `plan.recompute_modules`.
    group : layers that run again together.
    kept : of their inputs, the share that is kept.
    share : of layers, the share that full recomputation runs again.
    """

    mode: str
    modules: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    group: int = 1
    kept: float = 1.0
    share: float = 1.0


@cache
def read_recompute(word: str) -> Recompute:
    """What a word of `recompute_word` says."""
    mode, _, rest = word.partition(":")
    if "*" in mode:
        return Recompute("full", share=float(mode.partition("*")[2]))
    if mode == "full" and rest:
        group, _, kept = rest.partition(":")
        return Recompute(mode, group=int(group), kept=float(kept))
    if mode != "selective":
        return Recompute(mode)
    names = frozenset(rest.split("+") if rest else DEFAULT_RECOMPUTE_MODULES)
    return Recompute(mode, frozenset(part for name in names for part in RECOMPUTE_MODULES[name]), names)


def recompute_word(plan: ParallelPlan, model: ModelSpec) -> str:
    """What a plan recomputes of a model.

    Of stages that hold a layer more than others it is the mean over all of them.
    """
    if plan.recompute == "selective":
        return selective_word(plan)
    if plan.recompute != "full" or (plan.recompute_method, plan.recompute_num_layers) == ("uniform", 1):
        return plan.recompute
    number, stages = plan.recompute_num_layers, plan.num_stages
    if plan.recompute_method == "block":
        share = number * stages / model.num_layers
        return "full" if share >= 1.0 else f"full*{share!r}"
    groups = -(-model.num_layers // (stages * number))
    return f"full:{number}:{min(1.0, groups * stages / model.num_layers)!r}"


def selective_word(plan: ParallelPlan) -> str:
    """What selective recomputation of a plan's modules is; the attention core where it names none."""
    names = plan.recompute_modules or DEFAULT_RECOMPUTE_MODULES
    if names == DEFAULT_RECOMPUTE_MODULES:
        return "selective"
    return f"selective:{'+'.join(name for name in RECOMPUTE_MODULES if name in names)}"


def searched_word(mode: str, plan: ParallelPlan) -> str:
    """What a search's mode recomputes: selective the modules of the scenario's own plan, full each layer alone."""
    return selective_word(plan) if mode == "selective" else mode


def mixture(word: str) -> tuple[tuple[str, float], ...]:
    """Ways to recompute one layer that a word mixes, each with its share of the layers."""
    share = read_recompute(word).share
    return ((word, 1.0),) if share == 1.0 else (("full", share), ("none", 1.0 - share))
