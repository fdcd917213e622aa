"""Arrays by what their axes run over: one name an order of axes, for readers and for the type checker.

Axes are named from the first to the last. `plans` stands for the shape of a batch: one axis over plans, or several that
broadcast (ways to recompute × rows); a scenario is a batch of one plan. Units stand in the names of variables and
fields (`_s`, `_bytes`).

A `Number` is what a formula takes of one plan or of many: a float, or an array over them. Formulas are written for a
plan and broadcast; what puts many together names its axes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

Array: TypeAlias = np.ndarray
"""Array of numbers, integers or truth values. The docstring of whatever uses it names its axes."""
IntArray: TypeAlias = np.ndarray
"""Array of integers, its axes named where it is used."""
FloatArray: TypeAlias = np.ndarray
"""Array of floats, its axes named where it is used."""

Number: TypeAlias = Any
"""A float, or an array over plans."""

PlanFloats: TypeAlias = Floats
"""(plans)"""
PlanInts: TypeAlias = Ints
"""(plans)"""
PlanBools: TypeAlias = Bools
"""(plans)"""
KindPlanFloats: TypeAlias = Floats
"""(kinds of stages or of ranks, plans)"""
BlockPlanFloats: TypeAlias = Floats
"""(blocks, plans): layer, embedding, head, and a layer without experts where the model has such."""
StageFloats: TypeAlias = Floats
"""(virtual stages)"""
StagePlanFloats: TypeAlias = Floats
"""(virtual stages, plans)"""
RankFloats: TypeAlias = Floats
"""(pipeline ranks)"""
RankPlanFloats: TypeAlias = Floats
"""(pipeline ranks, plans)"""
ActionFloats: TypeAlias = Floats
"""(actions of an order, rank by rank)"""


def any_of(flags: Number) -> bool:
    """Whether a number, or one of an array, is not zero; of a number in a tenth of the time of `np.any`."""
    return bool(flags.any() if isinstance(flags, np.ndarray) else flags)


def distinct(values: ArrayLike, axis: int | None = None) -> Array:
    """Return values once each, in order, as `np.unique` does, which asked for no more loads numpy.ma."""
    found: Array = np.unique(values, return_index=True, axis=axis)[0]
    return found
