"""What an estimate says beside its numbers: what it assumes, what is open, what is aligned badly, and what would fit.

Alignment follows Anthony et al. 2024, arXiv:2401.14489, section VII.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sim.costs import block, compute
from sim.costs.compute import SECTOR
from sim.engines.program import cores_assumed
from sim.errors import FlopcastError
from sim.network import placement
from sim.pricing import layouts, memory, zero
from sim.pricing.cells import Plans
from sim.pricing.layouts import cut_of
from sim.specs import Scenario
from sim.specs.framework_plans import broken_rules, rules_of_scenario
from sim.specs.loading import LEFT_OPEN
from sim.specs.yaml12 import load_yaml
from sim.units import listed, show, show_time
from sim.work import layers, recompute, routing
from sim.work import memory as kept
from sim.work.pieces import vocabulary_rows

NO_FAILURES = "the training time leaves out failures, checkpoints and evaluation (flopcast train includes them)"
MOST_SEQUENCES, MOST_TOKENS = 1 << 17, 1 << 30
"""Batches beyond either are asked about: their unit may have been mistaken."""
THIRD_PARTIES = {"a100": ("A100", "3 to 15%"), "h100": ("H100", "8 to 25%"), "h200": ("H100", "8 to 25%")}
"""How much slower than predicted others' Megatron-LM was, and on which GPU, by profile (docs/validation.md, "In the
wild")."""
MOST_NAMED = 3
"""Operations that one assumption names, and remedies that one message does."""


def stated_assumptions(plans: Plans, scenario: Scenario, notes: Iterable[str]) -> tuple[str, ...]:
    """Return what was not given, not measured or not modelled, in the order in which it could change the answer.

    First what makes it another question (cores that are not there, sizes that no fit covers, what was filled in), then
    what the whole step rests on, then single parts of it, memory, and the length of the run.

    plans : the scenario as one. notes : what pricing had to extrapolate.
    """
    return (
        *_doubtful_batch(scenario),
        *cores_assumed(scenario),
        *compute.doubtful(scenario),
        *_together(notes),
        *third_parties(scenario),
        *scenario.assumed,
        *(line for each in (layouts, layers, routing, recompute) for line in each.assumed(scenario)),
        *(line for each in (compute, block) for line in each.assumed(scenario)),
        *layouts.assumed_of_speeds(scenario),
        *zero.assumed(plans, scenario.num_forwards),
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


def third_parties(scenario: Scenario) -> Iterator[str]:
    """Yield how much slower people outside the frameworks' teams were with such a stack, until a run was measured."""
    profile = scenario.profile
    if scenario.stack.framework == "megatron-lm" and profile.name in THIRD_PARTIES and not profile.provenance.measured:
        gpu, slower = THIRD_PARTIES[profile.name]
        yield (
            f"the estimate is what Megatron-LM's own developers reach. On {gpu}, steps of other teams were {slower} "
            "longer, which the interval includes: such a team should expect its upper half"
        )


def _together(notes: Iterable[str]) -> Iterator[str]:
    """Yield notes in order, those that differ only in the operation named at their end as one."""
    operations: dict[str, list[str]] = {}
    for note in sorted(notes):
        words, _, operation = note.removesuffix(")").rpartition(" (")
        operations.setdefault(words, []).append(operation)
    for words, names in operations.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield f"{words} ({', '.join(names[:MOST_NAMED])}{more})"


TABLE = Path(__file__).parent / "presets" / "open_facts.yaml"
TELLING = 1.02
"""Factor between the step times of a fact's values from which on the fact is named."""


class OpenFact(NamedTuple):
    """A fact that is not stated, and the step times between which its values lie.

    ask : what to say, in a few words. field : where to say it.
    low, high : values with the shortest and the longest step; low_s, high_s : these steps. [s]
    """

    ask: str
    field: str
    low: str
    high: str
    low_s: float
    high_s: float

    def __str__(self) -> str:
        """What to say, and what the answer would be then."""
        ends = f"{show_time(self.low_s)} ({self.low}) to {show_time(self.high_s)} ({self.high})"
        return f"say {self.ask} ({self.field}): {ends}"


def open_facts(scenario: Scenario, step_time_s: float, time_of: Callable[[Scenario], float]) -> tuple[OpenFact, ...]:
    """Facts that a scenario's description leaves open, those first that move its step time most.

    step_time_s : As it is taken. [s]
    time_of : Step time of another scenario. [s]
    """
    line = next((each for each in scenario.assumed if each.startswith(LEFT_OPEN)), "")
    found, table = [], load_yaml(TABLE) if line else {}
    for field in line.removeprefix(LEFT_OPEN).split(", ") if line else ():
        known, section = table[field], field.partition(".")[0]
        record, times = getattr(scenario, section), dict[str, float]()
        for value, changes in known["values"].items():
            with suppress(FlopcastError):  # it does not go with what is stated
                changed = record.replace(**changes)
                times[value] = step_time_s if changed == record else time_of(scenario.replace(**{section: changed}))
        low, high = (end(times, key=lambda value: times[value], default="") for end in (min, max))
        if times and times[high] > TELLING * times[low]:
            found.append(OpenFact(known["ask"], field, low, high, times[low], times[high]))
    return tuple(sorted(found, key=lambda fact: fact.low_s / fact.high_s))


LEAST = 0.002
"""Share of the step below which a saving is not worth a line."""


def padded_sizes(scenario: Scenario) -> Iterator[tuple[str, int, int, Scenario]]:
    """Sizes whose share on one GPU is no whole number of sectors, each padded by itself; none of aligned models.

    Yields the field, its size, the next aligned one above it, and the scenario with that.

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
            yield field, size, to, scenario.replace(model=changed)


def padding_advice(scenario: Scenario, step_time_s: float, step_time_of: Callable[[Scenario], float]) -> Iterator[str]:
    """Yield a line for each size whose padding would shorten the step, with what it saves.

    step_time_of : Prices a scenario. [s]
    """
    for field, size, to, padded in padded_sizes(scenario):
        saved = step_time_s - step_time_of(padded)
        if saved > LEAST * step_time_s:
            yield (
                f"{field} {size:,} is badly aligned: padded to {to:,}, a step takes "
                f"{show_time(saved)} ({saved / step_time_s:.1%}) less"
            )


def memory_remedies(scenario: Scenario, part: str, needed: float, estimate: Callable[[Scenario], Any]) -> list[str]:
    """What to change when a plan does not fit: plans that its framework can run and that need less, the leanest first.

    If no single change is enough, changes are added up until they are.

    part : Of the fullest rank's memory, the largest, as in `sim.work.memory.MemoryUse`.
    needed : By the fullest rank. [bytes]
    estimate : `sim.estimate.estimate`, by which the plans are tried.
    """
    rules, wishes = rules_of_scenario(scenario), list(_lighter_plans(scenario, part))
    broken = {rule.field for rule in broken_rules(scenario, rules)}
    tried = []

    def attempt(wish: dict[str, Any]) -> bool:
        """Estimate one plan, and keep it if it needs less; return whether it fits."""
        try:
            changed = scenario.replace(plan=scenario.plan.replace(**wish))
            if {rule.field for rule in broken_rules(changed, rules)} > broken:
                return False
            answer = estimate(changed)
        except FlopcastError:
            return False
        if answer.largest.total < 0.98 * needed:
            tried.append((answer.largest.total, answer.fits, wish))
        return bool(answer.fits)

    fitting = [attempt(wish) for wish in wishes]
    if not any(fitting):
        together: dict[str, Any] = {}
        for _, _, wish in sorted(tried, key=lambda item: item[0]):
            more = {} if together.keys() & wish.keys() else wish
            together |= more
            if together != more and more and attempt(together.copy()):
                break
    remedies = []
    for total, fits, wish in sorted(tried, key=lambda item: (not item[1], item[0])):
        change = listed((f"plan.{name}={str(value).lower()}" for name, value in wish.items()), "and")
        remedies.append(f"{change} ({show(total, 'B')}, {'fits' if fits else 'not yet enough'})")
    return [*remedies[:MOST_NAMED], *(() if any(fits for _, fits, _ in tried) else ("more GPUs",))]


def _lighter_plans(scenario: Scenario, part: str) -> Iterator[dict[str, Any]]:
    """Yield changes of a plan that could need less memory; `part` is the largest that it holds."""
    plan = scenario.plan
    if plan.schedule == "gpipe":
        yield {"schedule": "1f1b"}
    if plan.recompute != "full":
        yield {"recompute": "full"}
    if plan.recompute == "none" and scenario.stack.attention == "math":
        yield {"recompute": "selective"}
    if plan.tp > 1 and not plan.sequence_parallel:
        yield {"sequence_parallel": True}
    if plan.microbatch_size > 1:
        yield {"microbatch_size": plan.microbatch_size // 2}
    level = {"optimizer": 1, "gradients": 2, "weights": 3}.get(part, 0)
    if plan.num_replicas > 1 and plan.zero_stage < level:
        yield {"zero_stage": level}
    wider = math.gcd(scenario.model.num_experts, plan.tp * plan.cp * plan.dp // plan.etp)
    if wider > plan.ep:
        yield {"ep": wider}
    if plan.dp % 2 == 0:
        yield {"pp": plan.pp * 2, "dp": plan.dp // 2}
    if plan.dp % 2 == 0 and plan.tp < scenario.cluster.nvlink_domain_gpus:
        yield {"tp": plan.tp * 2, "dp": plan.dp // 2}
