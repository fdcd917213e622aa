"""The best layered plan: breadth-first orders and modular pipelines, bounded from below at once, the best run exactly.

No closed form describes these orders with their sends, so the search is by branch and bound: every plan gets a time
that it cannot go below, and the exact engine runs them in that order until no bound is left below the best time found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Floats, Ints, PlanFloats
from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.batch import Batch, Layouts, find_cells, place_layouts
from sim.pricing.cells import price_cells
from sim.pricing.cost_model import cost_model
from sim.search.layered_bounds import least_step_s, memory_bytes
from sim.search.plans.layouts import divisors, tensor_degrees
from sim.search.plans.space import recompute_fields, recomputes_of, sharding_fields
from sim.specs import ParallelPlan, Scenario
from sim.work.recompute import searched_word

CHOICES = ("recompute", "sequence_parallel", "zero_stage")


@dataclass(frozen=True, slots=True)
class Rows:
    """Layered plans, one a row: every rank holds `num_chunks` chunks of equally many layers."""

    batch: Ints
    tp: Ints
    pp: Ints
    dp: Ints
    num_chunks: Ints
    microbatch_size: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Ints) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def layout(self) -> Ints:
        """(tp, cp, pp, dp, ep) of each."""
        one = np.ones_like(self.tp)
        return np.stack([self.tp, one, self.pp, self.dp, one], axis=1)

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.pp * self.dp)

    @property
    def num_microbatches(self) -> Ints:
        """Of each pipeline and step."""
        return np.asarray(self.batch // (self.dp * self.microbatch_size))


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
    choice: Ints
    bound_s: PlanFloats
    memory_bytes: PlanFloats
    plans: int
    offloaded_layers: int

    def scenario_at(self, place: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        rows, given = self.rows, self.scenario
        fields_of_plan = ("tp", "pp", "dp", "num_chunks", "microbatch_size")
        numbers: dict[str, Any] = {name: int(getattr(rows, name)[place]) for name in fields_of_plan}
        numbers["offloaded_layers"] = self.offloaded_layers
        numbers |= dict(zip(CHOICES, self.choices[int(self.choice[place])], strict=True))
        numbers |= recompute_fields(numbers["recompute"], given.plan)
        numbers |= sharding_fields(numbers["zero_stage"], given.plan)
        one_layer = numbers["pp"] * numbers["num_chunks"] == given.model.num_layers
        plan = ParallelPlan(**numbers, schedule="modular" if one_layer else "breadth_first")
        return given.replace(plan=plan, training=given.training.replace(global_batch_size=int(rows.batch[place])))


def best_of(
    table: LayeredTable, bound: PlanFloats, share: Callable[[int], float], top: int = 1
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
    choices = tuple(product(recomputes_of(scenario, recomputes), sequence_parallel, zero_stages))
    layouts, which = np.unique(everything.layout, axis=0, return_inverse=True)
    placed = place_layouts(layouts, scenario.cluster, scenario.plan)
    # Memory first: most plans of a large model do not fit, and need no price.
    fitting: list[tuple[int, Batch, Ints, Floats]] = []
    looked_at = 0
    for number, (recompute, sp, zero) in enumerate(choices):
        able = (everything.tp > 1) & (scenario.training.sequence_length % everything.tp == 0) | (not sp)
        able &= (everything.dp > 1) | (zero == 0)
        where = np.flatnonzero(able)
        if not len(where):
            continue
        rows = everything.take(where)
        batch = _batch(scenario, placed, which.ravel()[where], rows, recompute, sp, zero, offloaded_layers)
        needed = memory_bytes(batch)
        looked_at += len(where)
        fits = np.flatnonzero(needed <= scenario.cluster.gpu.memory_bytes * (1 + 1e-9))
        if len(fits):
            fitting.append((number, batch.take(fits), where[fits], needed[fits]))
    numbers, batches_that_fit, places, memory = zip(*fitting, strict=True) if fitting else ((), (), (), ())
    none: list[Any] = [np.empty(0, dtype=np.int64)]
    return LayeredTable(
        scenario,
        choices,
        everything.take(np.concatenate([*places, *none])),
        np.repeat(np.array(numbers, dtype=np.int64), [len(each) for each in places]),
        np.concatenate([*map(least_step_s, batches_that_fit), *none]).astype(float),
        np.concatenate([*memory, *none]).astype(float),
        looked_at,
        offloaded_layers,
    )


def _batch(
    scenario: Scenario,
    layouts: Layouts,
    layout: Ints,
    rows: Rows,
    recompute: str,
    sequence_parallel: bool,
    zero_stage: int,
    offloaded_layers: int,
) -> Batch:
    """Rows of one choice as columns of what they cost."""
    costs, stack = cost_model(scenario), scenario.stack
    kinds, recomputes = ((stack.overlap_tp_backward, sequence_parallel),), (searched_word(recompute, scenario.plan),)
    offloaded = {"offloaded_layers": offloaded_layers}
    cells, cell = find_cells(layouts, layout, rows.microbatch_size, kinds, recomputes, **offloaded)
    all_rows = np.zeros(len(rows), dtype=np.int64)
    return Batch(
        costs,
        layouts,
        price_cells(costs, cells),
        layout=layout,
        cell=cell,
        kind=all_rows,
        recompute=all_rows,
        zero_stage=all_rows + zero_stage,
        num_chunks=rows.num_chunks,
        num_microbatches=rows.num_microbatches,
        overlap_p2p=(all_rows + stack.overlap_p2p).astype(bool),
        overlap_grad_reduce=(all_rows + stack.overlap_grad_reduce).astype(bool),
        overlap_param_gather=(all_rows + stack.overlap_param_gather).astype(bool),
        reshard_after_forward=scenario.plan.reshard_after_forward,
        outer_zero_stage=scenario.plan.outer_zero_stage,
    )


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
    kept &= dp % (scenario.plan.sharding_group or 1) == 0
    return Rows(*(each[kept] for each in (batch, tp, pp, dp, chunks, size)))
