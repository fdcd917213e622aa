"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sim.errors import InfeasiblePlan, SpecError
from sim.estimate import Estimate, estimate
from sim.network.placement import Group
from sim.search.layered_bounds import Part, Rows, block_seconds, data_groups
from sim.search.plans.layouts import divisors, tensor_degrees
from sim.specs import ParallelPlan, Scenario
from sim.units import show

Array = np.ndarray

CHOICES = ("recompute", "sequence_parallel", "zero_stage")


@dataclass(frozen=True, slots=True)
class LayeredTable:
    """Every layered plan of some batches and numbers of GPUs, that fits in memory.

    choice : place in `choices`, (recompute, sequence_parallel, zero_stage), of each row.
    bound_s : time that its step cannot go below. [s]
    memory_bytes : of the fullest rank. [bytes]
    plans : looked at, with those that do not fit.
    """

    scenario: Scenario
    choices: tuple[tuple[str, bool, int], ...]
    rows: Rows
    choice: Array
    bound_s: Array
    memory_bytes: Array
    plans: int
    offloaded_layers: int

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        rows, given = self.rows, self.scenario
        fields_of_plan = ("tp", "pp", "dp", "num_chunks", "microbatch_size")
        numbers: dict[str, Any] = {name: int(getattr(rows, name)[place]) for name in fields_of_plan}
        numbers["offloaded_layers"] = self.offloaded_layers
        numbers |= dict(zip(CHOICES, self.choices[int(self.choice[place])], strict=True))
        one_layer = numbers["pp"] * numbers["num_chunks"] == given.model.num_layers
        plan = ParallelPlan(**numbers, schedule="modular" if one_layer else "breadth_first")
        return given.replace(plan=plan, training=given.training.replace(global_batch_size=int(rows.batch[place])))


@dataclass(frozen=True, slots=True)
class LayeredResult:
    """The best layered plans by the exact engine, best first.

    run : plans that it ran; the others' bounds are no better than the worst of `best`.
    """

    best: tuple[Estimate, ...]
    plans: int
    run: int


def search_layered(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    steps: Callable[[Array], Array] | None = None,
    top: int = 1,
    **space: Any,
) -> LayeredResult:
    """The layered plans that make a run shortest.

    Parameters
    ----------
    scenario : Scenario
        Model, cluster, training and stack are kept.
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    steps : callable, optional
        Steps of a run at a batch in sequences, up to a factor. Default: as many tokens at every batch.
    top : int
        How many to return.
    **space
        As `layered_table` takes it.

    Raises
    ------
    InfeasiblePlan
        No plan keeps the rules and fits.
    """
    table = layered_table(scenario, gpus=gpus, batches=batches, **space)
    share = np.asarray(1.0 / table.rows.batch if steps is None else steps(table.rows.batch), dtype=float)
    best, run = best_of(table, table.bound_s * share, lambda place: float(share[place]), top)
    if not best:
        raise InfeasiblePlan(
            f"none of {table.plans:,} layered plans on {gpus[0]:,} to {gpus[1]:,} GPUs fits in "
            f"{show(scenario.cluster.gpu.memory_bytes, 'B')}; use more GPUs, or GPUs with more memory"
        )
    return LayeredResult(tuple(best), table.plans, run)


def best_of(
    table: LayeredTable, bound: Array, share: Callable[[int], float], top: int = 1
) -> tuple[list[Estimate], int]:
    """Run plans in the order of their bounds until no other can be among the `top` best; and how many were run.

    `bound` is what none goes below of its step time times its `share`; infinite for those to be left out.
    """
    found: list[tuple[float, Estimate]] = []
    run = 0
    for place in np.argsort(bound, kind="stable").tolist():
        if not np.isfinite(bound[place]) or (len(found) == top and bound[place] >= found[-1][0]):
            break
        answer = estimate(table.scenario_at(place))
        run += 1
        if answer.fits:
            found = sorted([*found, (answer.step_time_s * share(place), answer)], key=lambda item: item[0])[:top]
    return [answer for _, answer in found], run


def layered_table(
    scenario: Scenario,
    *,
    gpus: tuple[int, int],
    batches: Sequence[int] | None = None,
    tensor: Sequence[int] | None = None,
    pipeline: Sequence[int] | None = None,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    sequence_parallel: Sequence[bool] = (False, True),
    zero_stages: Sequence[int] = (0, 1, 2, 3),
    offloaded_layers: int = 0,
) -> LayeredTable:
    """Bound and memory-check every layered plan.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    batches : sequence of int, optional
        In sequences. Default: the scenario's.
    tensor, pipeline : sequences of int, optional
        Degrees to try. Default: tensor-parallel degrees that divide NVLink domains or fill them, and all divisors of
        the layers.
    recomputes, sequence_parallel, zero_stages : sequences
        Choices to try.
    offloaded_layers : int
        Layers of the model whose activations wait in host memory.

    Notes
    -----
    At least as many micro-batches as pipeline ranks: with fewer the ranks only wait for each other.

    Raises
    ------
    SpecError
        The model is a mixture of experts.
    """
    if scenario.model.num_experts:
        raise SpecError(
            f"layered plans are searched for models without experts, and {scenario.model.name!r} has "
            f"{scenario.model.num_experts}; use flopcast search, or estimate one layered plan"
        )
    domain, layers = scenario.cluster.nvlink_domain_gpus, scenario.model.num_layers
    whole = [tp for tp in tensor_degrees(scenario) if domain % tp == 0 or tp % domain == 0]
    degrees = [tp for tp in whole if tensor is None or tp in tensor]
    depths = [pp for pp in divisors(layers) if pipeline is None or pp in pipeline]
    everything = _rows(scenario, degrees, depths, batches or (scenario.training.global_batch_size,), gpus)
    choices = tuple(product(recomputes, sequence_parallel, zero_stages))
    # Memory first: most plans of a large model do not fit, and need no price.
    fitting: list[tuple[int, Array, Array]] = []
    looked_at = 0
    for number, (recompute, sp, zero) in enumerate(choices):
        able = (everything.tp > 1) & (scenario.training.sequence_length % everything.tp == 0) | (not sp)
        able &= (everything.dp > 1) | (zero == 0)
        where = np.flatnonzero(able)
        if not len(where):
            continue
        needed = Part(scenario, everything.take(where), recompute, sp, zero, offloaded_layers).memory_bytes()
        looked_at += len(where)
        fits = needed <= scenario.cluster.gpu.memory_bytes * (1 + 1e-9)
        fitting.append((number, where[fits], needed[fits]))
    places = np.concatenate([where for _, where, _ in fitting] or [np.empty(0, dtype=int)])
    choice = np.repeat([number for number, _, _ in fitting], [len(where) for _, where, _ in fitting]).astype(int)
    memory = np.concatenate([needed for _, _, needed in fitting] or [np.empty(0)])
    rows, bound = everything.take(places), np.empty(len(places))
    data = data_groups(scenario, rows)
    kinds = {choices[number][:2] for number, where, _ in fitting if len(where)}
    seconds = {kind: block_seconds(scenario, rows, *kind) for kind in kinds}
    for number, (recompute, sp, zero) in enumerate(choices):
        here = np.flatnonzero(choice == number)
        if len(here):
            group = Group(data.size[here], data.per_domain[here], data.shares_network[here], data.spans[here])  # type: ignore[index]
            part = Part(scenario, rows.take(here), recompute, sp, zero, offloaded_layers)
            bound[here] = part.bound_s(group, seconds[recompute, sp][:, :, here])
    return LayeredTable(scenario, choices, rows, choice, bound, memory, looked_at, offloaded_layers)


def _rows(
    scenario: Scenario, degrees: list[int], depths: list[int], batches: Sequence[int], gpus: tuple[int, int]
) -> Rows:
    layers, most = scenario.model.num_layers, min(gpus[1], scenario.cluster.num_gpus)
    shapes = [(tp, pp, v) for tp in degrees for pp in depths for v in divisors(layers // pp) if v > 1]
    cuts = [
        (batch, dp, size) for batch in batches for dp in divisors(batch) if dp <= most for size in divisors(batch // dp)
    ]
    shape, cut = np.array(shapes, dtype=np.int64).reshape(-1, 3), np.array(cuts, dtype=np.int64).reshape(-1, 3)
    first, second = (each.ravel() for each in np.indices((len(shape), len(cut))))
    (tp, pp, chunks), (batch, dp, size) = shape[first].T, cut[second].T
    used = tp * pp * dp
    kept = (used >= gpus[0]) & (used <= most) & (batch // (dp * size) >= pp)
    return Rows(*(each[kept] for each in (batch, tp, pp, dp, chunks, size)))
