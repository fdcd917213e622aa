"""Lamy-Poirier's question put to the simulator: the shortest training of X_x by each way to parallelise it.

Every strategy gets its best plan by search: the baseline's order (one contiguous stage a rank, GPipe or 1F1B) by the
closed form and the exact engine, the improved one (layered accumulation, modular pipeline) by bounds and the exact
engine. Both may choose batch, degrees and ZeRO stage under the same rules: full recomputation, at most the critical
batch, tensor parallelism within a node, and no more GPUs than sequences times its degree, since a batch feeds no more.
Where nothing fits under them, activations wait in host memory; then layers are cut over as few nodes as it takes, with
sequence parallelism; and where that does not fit either, the leanest plan is timed all the same, and says so.

Lamy-Poirier 2021, arXiv:2106.02679; only the abstract was read. Its claims are held as ratios, not its figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any, NamedTuple

import numpy as np

from flopcast_validation.strategies.question import with_wide_tensor
from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate, estimate
from sim.search.best_first import Found, best_first, in_order
from sim.search.layered import layered_plans
from sim.search.plans.layouts import SCHEDULES, divisors, tensor_degrees
from sim.search.plans.space import build_space
from sim.search.prices.formula import price_space
from sim.search.result import SearchResult
from sim.specs import ParallelPlan, Scenario
from sim.units import show

THREE = "data + pipeline + tensor"
STRATEGIES = ("data", "data + pipeline", "data + tensor", THREE)
"""What each may do: cut layers (tensor) and stack them (pipeline)."""
METHODS = ("baseline", "improved")
LEAST_BATCH = 0.97
"""Smallest share of the critical batch that is tried: batches that many degrees divide lie apart."""
BATCHES = (5, 24)
"""Batches that the baseline and the improved order try: those with most divisors."""
FEWEST = 16
"""The baseline is searched from a sixteenth of the GPUs that the batch feeds to all of them."""
CONFIRMED = 3
"""Plans of the baseline, best by the closed form, that the exact engine runs for each batch."""
_ENDLESS_MEMORY = 1e18
"""Memory that any plan fits in. [bytes]"""


class StrategyBest(NamedTuple):
    """The best plan of a strategy.

    answer : of the exact engine; None where no plan fits, or one that `fits` not where the leanest was timed.
    refused : why there is none, or what it needs.
    """

    strategy: str
    method: str
    partitioned: bool
    answer: Estimate | None
    refused: str = ""

    @property
    def days(self) -> float:
        """Days of the whole run, without failures; nan where no plan fits."""
        seconds = None if self.answer is None else self.answer.training_time_s
        return nan if seconds is None else seconds / 86400.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        answer, about = self.answer, {"days": self.days, "refused": self.refused or None}
        plain = {"strategy": self.strategy, "method": self.method, "partitioned": self.partitioned, **about}
        if answer is None:
            return plain
        return plain | {
            "num_gpus": answer.num_gpus,
            "fits": answer.fits,
            "hfu": answer.hfu,
            "batch": answer.scenario.training.global_batch_size,
            "microbatches": answer.num_microbatches,
            "plan": answer.scenario.plan.model_dump(mode="json"),
            "memory": answer.largest.to_dict(),
        }


class _Asked(NamedTuple):
    """What a plan of a strategy may do.

    partitioned : only plans with all state partitioned (ZeRO stage 3) count.
    wide : tensor-parallel degree over several nodes, with sequence parallelism; None: those within one, without.
    """

    scenario: Scenario
    strategy: str
    partitioned: bool
    wide: int | None = None

    @property
    def cuts(self) -> bool:
        return "tensor" in self.strategy

    @property
    def stacks(self) -> bool:
        return "pipeline" in self.strategy

    def widened(self, tp: int) -> _Asked:
        return self._replace(scenario=with_wide_tensor(self.scenario, tp), wide=tp)


def compare_strategies(
    scenario: Scenario,
    strategies: Sequence[str] = STRATEGIES,
    partitioned: bool = False,
    progress: Callable[[int, int], None] | None = None,
    methods: Sequence[str] = METHODS,
) -> tuple[StrategyBest, ...]:
    """The best plan of every one of `strategies` by each of `methods` for a scenario of `question.question`.

    With `partitioned` only plans with all state partitioned (ZeRO stage 3) count.
    """
    critical = scenario.training.global_batch_size
    batches = range(max(1, round(LEAST_BATCH * critical)), critical + 1)
    divisible = sorted(batches, key=lambda batch: (-len(divisors(batch)), -batch))
    some, more = (divisible[:count] for count in BATCHES)
    entries = []
    for number, strategy in enumerate(strategies):
        asked = _Asked(scenario, strategy, partitioned)
        layered, why = _improved(asked, more)
        if "baseline" in methods:
            wide = layered.scenario.plan.tp if layered and layered.scenario.plan.sequence_parallel else None
            standard = _best_standard(asked, some, wide)
            if standard is None and not asked.stacks:
                standard = _standard(_layered(asked, more, at_once=True))
            refused = "" if standard else "no plan fits"
            entries.append(StrategyBest(strategy, "baseline", partitioned, standard, refused))
        if "improved" in methods:
            entries.append(StrategyBest(strategy, "improved", partitioned, layered, why))
        if progress is not None:
            progress(number + 1, len(strategies))
    return tuple(entries)


def alone(scenario: Scenario) -> StrategyBest:
    """One GPU, if it held everything."""
    if scenario.training.global_batch_size < 1:
        raise SpecError(f"a batch of {scenario.training.global_batch_size} sequences is no batch")
    plan = ParallelPlan(recompute="full", microbatch_size=1, schedule="1f1b")
    return StrategyBest("none", "baseline", False, estimate(scenario.replace(plan=plan)))


def _improved(asked: _Asked, batches: Sequence[int]) -> tuple[Estimate | None, str]:
    """The best layered plan, within a node or over as few as it takes; else the leanest, with what it needs."""
    found = _layered(asked, batches)
    if found is not None or asked.strategy != THREE:
        return found, "" if found else "no layered plan fits"
    scenario, layers = asked.scenario, asked.scenario.model.num_layers
    if layers < 4 or all(layers % rank for rank in range(2, layers)):
        return None, f"{layers} layers cannot be dealt to several ranks in several chunks"
    degrees = [tp for tp in tensor_degrees(scenario) if tp % scenario.cluster.nvlink_domain_gpus == 0]
    available = scenario.cluster.gpu.usable_bytes
    first = bisect_left(degrees, True, key=lambda tp: _leanest(asked, tp, batches[:1])[1] <= available)
    for tp in degrees[first:]:
        if (found := _layered(asked.widened(tp), batches)) is not None:
            return found, ""
    answer, needed = _leanest(asked, degrees[-1], batches)
    return answer, f"needs {show(needed, 'B')} a GPU of {show(available, 'B')}"


def _leanest(asked: _Asked, tp: int, batches: Sequence[int]) -> tuple[Estimate, float]:
    """The layered plan that needs least memory of those that cut layers so, and how much.  [bytes]"""
    scenario, cluster = asked.scenario, asked.scenario.cluster
    roomy = cluster.node.replace(gpu=cluster.node.gpu.replace(memory_bytes=_ENDLESS_MEMORY))
    wide = _Asked(scenario.replace(cluster=cluster.replace(node=roomy)), THREE, partitioned=True).widened(tp)
    tables = [_table(wide, batch, scenario.model.num_layers) for batch in batches]
    table = min(tables, key=lambda each: each.prices.memory_bytes.min(initial=np.inf))
    there = table.scenario_at(int(np.argmin(table.prices.memory_bytes)))
    node = there.cluster.node.replace(gpu=cluster.node.gpu)
    answer = estimate(there.replace(cluster=there.cluster.replace(node=node)))
    return answer, float(answer.largest.total)


def _best_standard(asked: _Asked, batches: Sequence[int], wide: int | None) -> Estimate | None:
    """The best contiguous plan over some batches: within a node, or else with layers cut as the layered plan's are."""
    searched = [asked]
    if asked.strategy == THREE:
        within = asked._replace(wide=asked.scenario.cluster.nvlink_domain_gpus)
        searched.append(within if wide is None else asked.widened(wide))
    for given in searched:
        found = [answer for batch in batches if (answer := _baseline(given, batch)) is not None]
        if found:
            return min(found, key=lambda answer: answer.training_time_s)
    return None


def _baseline(asked: _Asked, batch: int) -> Estimate | None:
    """The best contiguous plan of a batch."""
    training = asked.scenario.training.replace(global_batch_size=batch)
    scenario = asked.scenario.replace(training=training, plan=ParallelPlan())
    degree, shares = asked.wide or scenario.cluster.nvlink_domain_gpus, asked.wide is not None
    most = batch * degree if asked.cuts else batch
    try:
        space = build_space(scenario, (max(1, most // FEWEST), most), recomputes=("full",))
    except InfeasiblePlan:
        return None
    stages = (3,) if asked.partitioned else (0, 1, 2, 3)
    wanted = (each for each in space.categories if each.sequence_parallel == shares and each.zero_stage in stages)
    tp, _, pp, dp, _ = space.layouts.T
    kept = (tp <= degree) & (dp * pp <= batch) & ((tp > 1) == asked.cuts) & ((pp > 1) == asked.stacks)
    kept &= (tp == degree) | (not shares)
    if not kept.any():
        return None
    columns = space.columns.take(np.flatnonzero(kept[space.columns.layout]))
    space = replace(space, columns=columns, categories=tuple(wanted))
    contiguous, priced = space.columns.schedule != SCHEDULES.index("interleaved"), price_space(space)
    fits = np.flatnonzero((priced.memory_bytes <= scenario.cluster.gpu.usable_bytes) & contiguous[priced.row])
    order = np.lexsort((priced.category[fits], priced.row[fits], priced.step_time_s[fits]))
    answers = [
        estimate(space.scenario_of(int(priced.row[place]), space.categories[int(priced.category[place])]))
        for place in fits[order][:CONFIRMED].tolist()
    ]
    return min(answers, key=lambda answer: answer.step_time_s, default=None)


def _layered(asked: _Asked, batches: Sequence[int], at_once: bool = False) -> Estimate | None:
    """The best layered plan over all batches; where none fits, with activations in host memory.

    With `at_once` only plans without accumulation count, where layered and standard order are the same.
    """
    for offloaded in (0, asked.scenario.model.num_layers):
        plans = list[tuple[float, SearchResult, int]]()
        for batch in batches:
            table = _table(asked, batch, offloaded)
            once = table.space.num_microbatches[table.prices.row] == 1
            for place in np.flatnonzero(once | (not at_once)).tolist():
                plans.append((float(table.prices.step_time_s[place]) / batch, table, place))
        plans.sort(key=lambda each: each[0])
        found = best_first(in_order([each[0] for each in plans], partial(_visit, plans)), Found[Estimate]())
        if found.best:
            return found.best[0]
    return None


def _visit(plans: list[tuple[float, SearchResult, int]], number: int, found: Found[Estimate]) -> None:
    _, table, place = plans[number]
    answer = estimate(table.scenario_at(place))
    found.record((answer.step_time_s / answer.scenario.training.global_batch_size, answer) if answer.fits else None)


def _table(asked: _Asked, batch: int, offloaded: int) -> SearchResult:
    """Every layered plan of a batch that fits."""
    scenario = asked.scenario
    if batch != scenario.training.global_batch_size:  # with a plan that suits any batch
        plan = scenario.plan.replace(dp=scenario.plan.sharding_group or 1, ep=1, microbatch_size=1)
        scenario = scenario.replace(training=scenario.training.replace(global_batch_size=batch), plan=plan)
    within = [tp for tp in divisors(scenario.cluster.nvlink_domain_gpus) if (tp > 1) == asked.cuts]
    return layered_plans(
        scenario,
        gpus=(1, scenario.cluster.num_gpus),
        tensor=within if asked.wide is None else [asked.wide],
        pipeline=[pp for pp in divisors(scenario.model.num_layers) if (pp > 1) == asked.stacks],
        recomputes=("full",),
        sequence_parallel=(asked.wide is not None,),
        zero_stages=(3,) if asked.partitioned else (0, 1, 2, 3),
        offloaded_layers=offloaded,
    )


def _standard(answer: Estimate | None) -> Estimate | None:
    """A layered plan without accumulation, as what it is in the baseline's words."""
    if answer is None:
        return None
    plan = answer.scenario.plan.replace(schedule="gpipe", num_chunks=1)
    return estimate(answer.scenario.replace(plan=plan))
