"""Peak memory of many plans at once, by the same functions that say it of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.costs.block import cut_of
from sim.costs.replicas import Held
from sim.search.plans.columns import Columns, table
from sim.search.prices.alive import KeptByRanks
from sim.search.prices.facts import Cells
from sim.search.prices.stages import cell_scenario, of_stages
from sim.specs import Scenario
from sim.work.memory import CutMemory, cut_memory, memory_of, stage_activation_bytes
from sim.work.stages import DENSE_LAYER, EMBEDDING, HEAD, LAYER, Stage

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Peaks:
    """What ZeRO does not change of the memory of first, middle and last rank.

    activations : at their peak, over ways to recompute, ranks and rows. [bytes]
    logits : micro-batches whose logits are kept, over ranks and rows.
    """

    of_cut: CutMemory
    activations: Array
    logits: Array


def find_peaks(
    scenario: Scenario,
    columns: Columns,
    kept: KeptByRanks,
    cell: Array,
    cells: Cells,
    sequence_parallel: bool,
    recomputes: Sequence[str],
) -> Peaks:
    """Kept activations and logits of rows that have these cells."""
    model, stack = scenario.model, scenario.stack
    given = [cell_scenario(scenario, stack, cells, sequence_parallel, each) for each in recomputes]
    size = len(cells.tp)

    def activations(which: Scenario, stage: Stage) -> Array:
        kept: Array = np.broadcast_to(stage_activation_bytes(stage, model, stack, cut_of(which)), size)[cell]
        return kept

    layer = np.stack([activations(each, LAYER) for each in given])
    embedding, head = activations(given[0], EMBEDDING), activations(given[0], HEAD)
    dense = [np.stack([activations(each, DENSE_LAYER) for each in given])] if model.num_dense_layers else []
    first, middle, last = of_stages(scenario, columns, layer, embedding, head, *dense)
    peaks = kept.first.peak(middle, first), kept.middle * middle, kept.last.peak(middle, last)
    logits = np.stack([kept.last.most * (columns.pp == 1), np.zeros_like(kept.last.most), kept.last.most])
    sizes = [cut_memory(each, cut_of(each)) for each in given]
    working = np.stack([np.broadcast_to(each.working, size)[cell] for each in sizes])[:, np.newaxis]
    rest = (np.broadcast_to(each, size)[cell] for each in (sizes[0].logits, sizes[0].held_logits, sizes[0].boundary))
    return Peaks(CutMemory(working, *rest), np.stack(peaks, axis=1), logits)


def memory_bytes(scenario: Scenario, columns: Columns, zero_stage: int, held: Held, peaks: Peaks) -> Array:
    """Peak memory of the fullest GPU under a ZeRO stage, over ways to recompute and rows.  [bytes]

    Parameters
    ----------
    held : by first, middle and last rank, and rows
    """
    given = table(
        scenario,
        tp=columns.tp,
        cp=columns.cp,
        pp=columns.pp,
        dp=columns.dp,
        ep=columns.ep,
        num_chunks=columns.num_chunks,
        zero_stage=zero_stage,
    )
    of_rank = memory_of(given, peaks.of_cut, held.params, peaks.activations, peaks.logits, experts=held.experts).total
    first, middle, last = np.moveaxis(of_rank, 1, 0)
    others = np.maximum(np.where(columns.pp > 1, last, 0.0), np.where(columns.pp > 2, middle, 0.0))
    fullest: Array = np.maximum(first, others)
    return fullest
