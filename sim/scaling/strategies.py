"""Lamy-Poirier's question put to the simulator: the shortest training of X_x by each way to parallelise it.

Every strategy gets its best plan by search: the baseline's order (one contiguous stage a rank, GPipe or 1F1B) by the
closed form and the exact engine, the improved one (layered accumulation, modular pipeline) by bounds and the exact
engine. Both may choose batch, degrees and ZeRO stage under the same rules: full recomputation, at most the critical
batch, and no more GPUs than its sequences times the tensor-parallel degree, since a batch feeds no more.

Lamy-Poirier 2021, arXiv:2106.02679; only the abstract was read. Its claims are held as ratios, not its figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate, estimate
from sim.scaling.lamy_poirier import (
    STEPS,
    Shape,
    family,
    needed_intensity,
    pipeline_bubble,
    tensor_intensity,
    training_time,
)
from sim.search import build_space, price_all
from sim.search.layered import best_of, layered_table
from sim.search.space import SCHEDULES, divisors
from sim.specs import ParallelPlan, Scenario, build_scenario

STRATEGIES = {
    "data": (False, False),
    "data + pipeline": (False, True),
    "data + tensor": (True, False),
    "data + pipeline + tensor": (True, True),
}
"""Whether each may cut layers (tensor) and stack them (pipeline)."""
METHODS = ("baseline", "improved")
VOCABULARY = 51_200
"""Assumption: the paper counts no embeddings; this is Megatron's padded GPT-2 vocabulary."""
LEAST_BATCH = 0.97
"""Of the critical batch, the smallest that is tried: batches that many degrees divide lie apart."""
BATCHES = (5, 24)
"""Of them, how many baseline and improved order try: those with most divisors."""
FEWEST = 16
"""The baseline is searched from a sixteenth of the GPUs that the batch feeds to all of them."""
CONFIRMED = 3
"""Of the baseline's best plans by the closed form, how many the exact engine runs for each batch."""

IDEAL_NETWORK = {
    "efficiency": 1.0,
    "shared_efficiency": 1.0,
    "p2p_efficiency": 1.0,
    "hidden_share": 1.0,
    "base_latency_s": 0.0,
    "hop_latency_s": 0.0,
    "half_volume_bytes": 0.0,
}
"""A network that reaches its nominal bandwidth at any size, beside compute at no cost: as the paper counts it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The best plan of a strategy.

    answer : of the exact engine; None where no plan fits.
    refused : why there is none.
    """

    strategy: str
    method: str
    partitioned: bool
    answer: Estimate | None
    refused: str = ""

    @property
    def days(self) -> float:
        """Of the whole run, without failures; nan where no plan fits."""
        seconds = None if self.answer is None else self.answer.training_time_s
        return float("nan") if seconds is None else seconds / 86400.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        answer = self.answer
        plain: dict[str, Any] = {
            "strategy": self.strategy,
            "method": self.method,
            "partitioned": self.partitioned,
            "days": self.days,
            "refused": self.refused or None,
        }
        if answer is not None:
            plain |= {
                "num_gpus": answer.num_gpus,
                "hfu": answer.hfu,
                "batch": answer.scenario.training.global_batch_size,
                "microbatches": answer.num_microbatches,
                "plan": answer.scenario.plan.model_dump(mode="json"),
                "memory": answer.largest.to_dict(),
            }
        return plain


def question(x: int, bandwidth: str = "200 Gbit/s", ideal_network: bool = False) -> Scenario:
    """X_x on A100 in NVLink domains of 16, a network card each, for 100,000 steps at the critical batch.

    Parameters
    ----------
    bandwidth : str
        Of the network, a GPU and direction.
    ideal_network : bool
        That it reaches it, and costs compute nothing; else as the profile of A100 has it.

    Raises
    ------
    SpecError
        No such model.
    """
    shape = family(x)
    batch = max(1, int(shape.critical_batch_sequences))
    scenario = build_scenario(
        {
            "name": f"X_{x}",
            "model": {
                "name": f"x{x}",
                "num_layers": shape.num_layers,
                "hidden_size": shape.hidden_size,
                "num_heads": shape.num_heads,
                "vocab_size": VOCABULARY,
                "max_sequence_length": shape.sequence_length,
            },
            "cluster": {"preset": "generic-a100-16", "num_nodes": batch, "inter_node_bandwidth": bandwidth},
            "plan": {},
            "training": {
                "global_batch_size": batch,
                "sequence_length": shape.sequence_length,
                "precision": "fp16",
                "tokens": STEPS * shape.critical_batch_tokens,
            },
            "stack": "lamy-poirier",
            "profile": "a100",
        }
    )
    if not ideal_network:
        return scenario
    profile = scenario.profile
    return scenario.replace(profile=profile.replace(network=profile.network.replace(**IDEAL_NETWORK)))


def compare_strategies(
    scenario: Scenario,
    strategies: Sequence[str] = tuple(STRATEGIES),
    partitioned: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Entry, ...]:
    """The best plan of every strategy, baseline and improved.

    Parameters
    ----------
    scenario : Scenario
        As `question` makes it.
    strategies : sequence of str
        Of STRATEGIES.
    partitioned : bool
        Only with all state partitioned (ZeRO stage 3).
    """
    critical = scenario.training.global_batch_size
    batches = range(max(1, round(LEAST_BATCH * critical)), critical + 1)
    divisible = sorted(batches, key=lambda batch: (-len(divisors(batch)), -batch))
    some, more = (divisible[:count] for count in BATCHES)
    entries = []
    for number, strategy in enumerate(strategies):
        given = (
            scenario.replace(training=scenario.training.replace(global_batch_size=batch), plan=ParallelPlan())
            for batch in some
        )
        answers = [answer for each in given if (answer := _baseline(each, strategy, partitioned)) is not None]
        standard = min(answers, key=_days, default=None)
        if standard is None and not STRATEGIES[strategy][1]:
            standard = _standard(_layered(scenario, strategy, more, partitioned, at_once=True))
        layered = _layered(scenario, strategy, more, partitioned)
        entries += [
            Entry(strategy, "baseline", partitioned, standard, "" if standard else "no plan fits"),
            Entry(strategy, "improved", partitioned, layered, "" if layered else "no layered plan fits"),
        ]
        if progress is not None:
            progress(number + 1, len(strategies))
    return tuple(entries)


def _days(answer: Estimate) -> float:
    assert answer.training_time_s is not None
    return answer.training_time_s / 86400.0


def _baseline(scenario: Scenario, strategy: str, partitioned: bool) -> Estimate | None:
    """The best contiguous plan of a batch."""
    tensor, pipeline = STRATEGIES[strategy]
    batch, domain = scenario.training.global_batch_size, scenario.cluster.nvlink_domain_gpus
    most = batch * domain if tensor else batch
    try:
        space = build_space(scenario, (max(1, most // FEWEST), most), recomputes=("full",))
    except InfeasiblePlan:
        return None
    wanted = [
        each for each in space.categories if not each.sequence_parallel and (each.zero_stage == 3 or not partitioned)
    ]
    tp, _, pp, dp = space.layouts.T
    kept = (tp <= domain) & (dp * pp <= batch) & ((tp > 1) == tensor) & ((pp > 1) == pipeline)
    if not kept.any():
        return None
    space = replace(space, categories=tuple(wanted), layouts=space.layouts[kept])
    contiguous = space.columns.schedule != SCHEDULES.index("interleaved")
    best: list[tuple[float, int, int]] = []
    for category, here, seconds, needed in price_all(space):
        fits = np.flatnonzero((needed <= scenario.cluster.gpu.memory_bytes) & contiguous[here])
        fits = fits[np.argsort(seconds[fits], kind="stable")][:CONFIRMED]
        best += [(float(seconds[place]), int(here[place]), category) for place in fits]
    answers = [
        estimate(space.scenario_of(row, space.categories[category])) for _, row, category in sorted(best)[:CONFIRMED]
    ]
    return min(answers, key=lambda answer: answer.step_time_s, default=None)


def _layered(
    scenario: Scenario, strategy: str, batches: Sequence[int], partitioned: bool, at_once: bool = False
) -> Estimate | None:
    """The best layered plan over all batches; where none fits, with activations in host memory.

    Parameters
    ----------
    at_once : bool
        Only without accumulation, where layered and standard order are the same.
    """
    tensor, pipeline = STRATEGIES[strategy]
    domain, layers = scenario.cluster.nvlink_domain_gpus, scenario.model.num_layers
    for offloaded in (0, layers):
        table = layered_table(
            scenario,
            gpus=(1, scenario.cluster.num_gpus),
            batches=batches,
            tensor=[tp for tp in divisors(domain) if (tp > 1) == tensor],
            pipeline=[pp for pp in divisors(layers) if (pp > 1) == pipeline],
            recomputes=("full",),
            sequence_parallel=(False,),
            zero_stages=(3,) if partitioned else (0, 1, 2, 3),
            offloaded_layers=offloaded,
        )
        share = 1.0 / table.rows.batch
        bound = np.where((table.rows.num_microbatches == 1) | (not at_once), table.bound_s * share, np.inf)
        found, _ = best_of(table, bound, lambda place, share=share: float(share[place]))  # type: ignore[misc]
        if found:
            return found[0]
    return None


def _standard(answer: Estimate | None) -> Estimate | None:
    """A layered plan without accumulation, as what it is in the baseline's words."""
    if answer is None:
        return None
    plan = answer.scenario.plan.replace(schedule="gpipe", num_chunks=1)
    return estimate(answer.scenario.replace(plan=plan))


def formula_days(entry: Entry, shape: Shape) -> float:
    """Days by the paper's formula: GPUs at their peak, the pipeline's bubble, exposed tensor-parallel traffic.

    What exceeds the compute that hides it, of data and pipeline, is not in it: the formula's plans have none.
    """
    if entry.answer is None:
        return float("nan")
    answer, plan = entry.answer, entry.answer.scenario.plan
    cluster = answer.scenario.cluster
    both_ways = 2.0 * cluster.node.nvlink_bandwidth_bytes_per_s
    bubble = pipeline_bubble(plan.pp, answer.num_microbatches, plan.num_chunks)
    tensor = needed_intensity(answer.peak_flop_per_s, both_ways) / tensor_intensity(shape.hidden_size, plan.tp)
    return float(training_time(shape, answer.num_gpus, bubble + tensor, answer.peak_flop_per_s)) / 86400.0


def alone(scenario: Scenario) -> Entry:
    """One GPU, if it held everything."""
    batch = scenario.training.global_batch_size
    plan = ParallelPlan(recompute="full", microbatch_size=1, schedule="1f1b")
    if batch < 1:
        raise SpecError(f"a batch of {batch} sequences is no batch")
    return Entry("none", "baseline", False, estimate(scenario.replace(plan=plan)))
