"""What an answer assumes, most important first; every sentence stands beside the mechanism that assumes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.costs import compute, host, spread
from sim.network import placement
from sim.pricing import cost_model, memory, zero
from sim.pricing import layouts as places
from sim.pricing.plans import Plans
from sim.programs import cores_assumed
from sim.specs import Scenario
from sim.work import layers, recompute, routing
from sim.work import memory as kept

NO_FAILURES = "the training time leaves out failures, checkpoints and evaluation (flopcast train includes them)"
MOST_SEQUENCES, MOST_TOKENS = 1 << 17, 1 << 30
"""Batches beyond either are asked about: their unit may have been mistaken."""
STRANGERS = {"a100": ("A100", "3 to 15%"), "h100": ("H100", "8 to 25%"), "h200": ("H100", "8 to 25%")}
"""How much slower than predicted others' Megatron-LM was, and on which GPU, by profile (docs/validation.md, "In the
wild")."""
MOST_NAMED = 3
"""Operations that one assumption names."""


def stated_assumptions(plans: Plans, scenario: Scenario, notes: Iterable[str], engine: str) -> tuple[str, ...]:
    """Return what was not given, not measured or not modelled, in the order in which it could change the answer.

    First what makes it another question (cores that are not there, sizes that no fit covers, what was filled in), then
    what the whole step rests on, then single parts of it, memory, and the length of the run.

    plans : the scenario as one. notes : what pricing had to extrapolate.
    """
    return (
        *_doubtful_batch(scenario),
        *cores_assumed(scenario, engine),
        *_together(notes),
        *scenario.assumed,
        *_strangers(scenario),
        *(line for each in (cost_model, layers, routing, recompute) for line in each.assumed(scenario)),
        *(line for each in (compute, host, spread) for line in each.assumed(scenario)),
        *zero.assumed(plans, scenario.num_forwards),
        *places.assumed(plans.layouts),
        *placement.assumed(scenario),
        *(line for each in (memory, kept) for line in each.assumed(scenario)),
        *(() if scenario.training.tokens is None else (NO_FAILURES,)),
    )


def _doubtful_batch(scenario: Scenario) -> Iterator[str]:
    """Yield a question about a batch that is larger than any that is trained."""
    count, length = scenario.training.global_batch_size, scenario.training.sequence_length
    if count > MOST_SEQUENCES or count * length > MOST_TOKENS:
        yield (
            f"a step has {count:,} sequences of {length:,} tokens, which is more than any known run: "
            "training.global_batch_size counts sequences, not tokens"
        )


def _strangers(scenario: Scenario) -> Iterator[str]:
    """Yield how much slower people outside the frameworks' teams were with such a stack, until a run was measured."""
    profile = scenario.profile
    if scenario.stack.framework == "megatron-lm" and profile.name in STRANGERS and not profile.provenance.measured:
        gpu, slower = STRANGERS[profile.name]
        yield f"outside the frameworks' own teams, Megatron-LM on {gpu} took {slower} longer than predicted"


def _together(notes: Iterable[str]) -> Iterator[str]:
    """Yield notes in order, those that differ only in the operation named at their end as one."""
    operations: dict[str, list[str]] = {}
    for note in sorted(notes):
        words, _, operation = note.removesuffix(")").rpartition(" (")
        operations.setdefault(words, []).append(operation)
    for words, names in operations.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield f"{words} ({', '.join(names[:MOST_NAMED])}{more})"
