"""The layout of a plan's stages whose slowest stage is fastest.

Embedding, layers, multi-token prediction and head stand in one row, which is cut into stages. The cut whose slowest
stage is fastest follows from the blocks' seconds by dynamic programming; of several, the one whose stages differ least.
Stages of like layers that differ by one may still change places, which moves a step by several percent: a few such
places are tried. What no cut goes below says how far it may be from the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from sim.arrays import FloatArray
from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.pricing.cells import plans_of
from sim.search.best_first import gap_of
from sim.specs import Scenario
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """The balanced layout of a plan.

    layout : as `plan.pipeline_layout` takes it.
    answer : the plan with it. before : the plan as it was.
    bound_s : what a step takes at least, however the blocks are dealt to the stages in their order. [s]
    """

    layout: str
    answer: Estimate
    before: Estimate
    bound_s: float

    @property
    def gap(self) -> float:
        """Largest share by which another layout could be faster."""
        return gap_of(self.answer.step_time_s, self.bound_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.before.scenario.name,
            "pipeline_layout": self.layout,
            "step_time_s": self.answer.step_time_s,
            "step_time_before_s": self.before.step_time_s,
            "bound_s": self.bound_s,
            "gap": self.gap,
            "fits": self.answer.fits,
        }


def balance_layout(scenario: Scenario) -> LayoutFound:
    """The layout of a plan's stages whose slowest stage is fastest, run on the exact engine.

    Raises
    ------
    SpecError
        The plan has no pipeline, or more stages than there are blocks.
    """
    plan = scenario.plan
    if plan.num_stages == 1:
        raise SpecError("a layout deals layers to pipeline stages, and plan.pp is 1; set it above 1")
    balanced, bound = balanced_plans(scenario)
    answer = min(map(estimate, balanced), key=lambda each: (not each.fits, each.step_time_s))
    return LayoutFound(answer.scenario.plan.pipeline_layout, answer, estimate(scenario), bound)


def balanced_plans(scenario: Scenario) -> tuple[list[Scenario], float]:
    """The scenario with such layouts, `PLACES` at most, and what a step takes at least, however blocks are dealt.  [s]

    Raises SpecError: there are more stages than blocks.
    """
    plan = scenario.plan
    letters, seconds = _blocks(scenario)
    if plan.num_stages > len(letters):
        raise SpecError(
            f"{len(letters)} blocks (embedding, layers, head) cannot fill plan.pp · plan.num_chunks = {plan.pp} · "
            f"{plan.num_chunks} = {plan.num_stages} stages; lower one of them"
        )
    ends = cut_evenly(seconds, plan.num_stages)
    others = dict.fromkeys(("uneven_layers", "embedding_as_layer", "head_as_layer", "vocabulary_over_stages"), False)
    cuts = _long_stages_moved(seconds, ends, plan.pp)
    texts = [layout_text(["".join(letters[slice(*each)]) for each in pairwise((0, *cut))]) for cut in cuts]
    found = [scenario.replace(plan=plan.replace(**others, pipeline_layout=text)) for text in texts]
    # All micro-batches are done on the rank with the most work, which is no less than the mean; and where a rank has
    # one stage, on the slowest stage of the cut whose slowest is fastest.
    least = max(float(seconds.sum()) / plan.pp, float(seconds.max()))
    if plan.num_chunks == 1:
        least = max(float(seconds[slice(*each)].sum()) for each in pairwise((0, *ends)))
    return found, scenario.num_microbatches * least


def _blocks(scenario: Scenario) -> tuple[list[str], FloatArray]:
    """The model's blocks in their order, as letters, and what each takes of one micro-batch both ways.  [s]"""
    plans, model = plans_of(scenario), scenario.model
    forward, backward = plans.prices.total_s[:2]
    each = (forward + backward)[:, 0, 0, 0]
    kinds = [FIRST_KIND + model.layer_kinds.index(kind) for kind in model.kind_of_layer]
    mtp = [len(each) - 1] * model.num_mtp_layers
    letters = ["E", *"t" * model.num_layers, *"m" * model.num_mtp_layers, "L"]
    return letters, each[[EMBEDDING, *kinds, *mtp, HEAD]]


def cut_evenly(seconds: FloatArray, stages: int) -> tuple[int, ...]:
    """Where each stage ends: the largest sum as small as can be, then the sum of the squares.

    seconds : array over blocks
    """
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    count = len(seconds)
    sums = before[np.newaxis, :] - before[:, np.newaxis]  # of blocks from row to column
    sums[np.tril_indices(count + 1)] = np.inf  # no stage is empty
    largest = sums[0].copy()
    for _ in range(stages - 1):
        largest = np.maximum(largest[:, np.newaxis], sums).min(axis=0)
    allowed = np.where(sums <= largest[count] * (1 + 1e-12), sums**2, np.inf)
    least, came_from = allowed[0].copy(), []
    for _ in range(stages - 1):
        ways = least[:, np.newaxis] + allowed
        came_from.append(ways.argmin(axis=0))
        least = ways.min(axis=0)
    ends = [count]
    for origin in reversed(came_from):
        ends.append(int(origin[ends[-1]]))
    return tuple(reversed(ends))


PLACES = 4
"""Places of the longer stages that are tried at most."""


def _long_stages_moved(seconds: FloatArray, ends: tuple[int, ...], pp: int) -> list[tuple[int, ...]]:
    """Cuts that are as good by their slowest stage: those stages that hold one layer more follow each other, and the
    last of them lies on several ranks of the last chunk. Only the cut itself where blocks or stages differ otherwise.

    seconds : array over blocks
    """
    sizes = np.diff((0, *ends))
    inner, blocks = sizes[1:-1], seconds[sizes[0] : len(seconds) - sizes[-1]]
    if len(inner) == 0 or np.ptp(inner) != 1 or np.ptp(blocks) > 1e-9 * blocks.max():
        return [ends]
    number = np.count_nonzero(inner == inner.max())
    found = dict[tuple[int, ...], None]()
    for rank in (pp // 4, pp // 8, pp // 2, pp - 2):  # the later, the fewer micro-batches a stage keeps
        first = np.clip(len(sizes) - pp + rank - number, 0, len(inner) - number)
        moved = np.full(len(inner), inner.min())
        moved[first : first + number] += 1
        found[tuple(np.cumsum([sizes[0], *moved, sizes[-1]]).tolist())] = None
    return list(found)


def layout_text(stages: Sequence[str]) -> str:
    """The letters of stages as one layout, repetitions written as their number."""
    short = ("".join(letter * (many == 1) or f"{letter}*{many}" for letter, many in _runs(each)) for each in stages)
    *most, (last, many) = _runs(f"{each}|" for each in short)
    text = "".join(stage * (many == 1) or f"({stage})*{many}" for stage, many in most)
    return text + (last * many)[:-1]


def _runs(items: Iterable[str]) -> list[tuple[str, int]]:
    """Items that follow each other and are the same, as one with their number."""
    return [(item, len(list(run))) for item, run in groupby(items)]
