"""A batch that grows on the way: the data it takes for a loss, its steps, and how long they are on average.

McCandlish et al. 2018, arXiv:1812.06162, hold at every loss on the way: progress that takes dS steps at least and dE
tokens at least, takes dS + dE/B steps and dE + B dS tokens at batch B. So a smaller batch at the beginning, where the
critical one is small, saves data. Of all ramps with as many steps the least data take those whose batch grows as the
root of the critical one, dE/dS (own derivation: B = sqrt(r dE/dS) minimises steps + tokens/r).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Array
from sim.errors import SpecError, require_positive
from sim.scaling.run import Goal

SAMPLES = 2000
FIRST = 1e-6
"""Share of the least data at which its samples begin; what is before counts as even."""
StepTime = Callable[[int, int], float]
"""Step time of a batch on so many GPUs or fewer. [s]"""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A batch that grows: shares of the data, and the share of the final batch from each on.

    ((0, 1/4), (0.02, 1/2), (0.2, 1)) begins with a quarter of the batch and has all of it after a fifth of the data.
    """

    stages: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.stages]
        shares = [share for _, share in self.stages]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= 1:
            raise SpecError(f"a ramp's stages start at 0 of the data and go forward to less than 1, not at {starts}")
        if shares[-1] != 1 or not all(0 < share <= 1 for share in shares):
            raise SpecError(f"a ramp's shares of the batch lie above 0 and end with 1, not {shares}")

    def batches_of(self, batch: int) -> tuple[int, ...]:
        """Batches of the stages of a run that ends at `batch`."""
        return tuple(max(1, round(batch * share)) for _, share in self.stages)

    def __str__(self) -> str:
        """The ramp as text that `parse_ramp` reads."""
        parts = []
        for start, share in self.stages:
            over = round(1 / share)
            part = "1" if share == 1 else f"1/{over}" if abs(share * over - 1) < 1e-9 else f"{share:.4g}"
            parts.append(part + (f"@{100 * start:.6g}%" if start else ""))
        return ", ".join(parts)


def parse_ramp(text: str) -> Ramp:
    """A ramp written as "1/4, 1/2@2%, 1@20%": shares of the batch, each with the share of the data it holds from."""
    stages = []
    for part in text.split(","):
        share, _, start = part.strip().partition("@")
        try:
            over, _, under = share.partition("/")
            stages.append((float(start.strip().rstrip("%") or 0) / 100, float(over) / float(under or 1)))
        except (ValueError, ZeroDivisionError):
            raise SpecError(f"ramp {text!r}: {part.strip()!r} must look like 1/4 or 1/2@2%") from None
    return Ramp(tuple(stages))


def ramped_steps(tokens: float, ramp: Sequence[tuple[float, float]]) -> float:
    """Steps of a run whose batch grows on the way.

    tokens : of the whole run. [tokens]
    ramp : from how many tokens on which batch holds, the first from 0: Llama 3 405B's is [(0, 4e6), (252e6, 8e6),
        (2.87e12, 16e6)] [1]_. [tokens]

    .. [1] Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.1.
    """
    starts = [start for start, _ in ramp]
    if not ramp or starts[0] != 0 or sorted(set(starts)) != starts:
        raise SpecError(f"a ramp of batches starts at 0 tokens and goes forward, not at {starts}")
    require_positive(tokens=tokens, batch=[batch for _, batch in ramp])
    ends = [*starts[1:], float("inf")]
    return sum(max(min(end, tokens) - start, 0.0) / batch for (start, batch), end in zip(ramp, ends, strict=True))


def ramped(
    ramp: Ramp, batch: int, num_gpus: int, final_step_s: float, sequences: float, step_time: StepTime
) -> tuple[float, float]:
    """(steps, average step time) of a run over so many sequences on so many GPUs, that ends at `batch`.

    Stages before the last take what `step_time` says of their batch on so many GPUs or fewer; infinite: no plan.
    """
    sizes = ramp.batches_of(batch)
    stages = [(start * sequences, float(size)) for (start, _), size in zip(ramp.stages, sizes, strict=True)]
    total = ramped_steps(sequences, stages)
    ends = [*(start for start, _ in stages[1:]), sequences]
    seconds = 0.0
    for (start, size), end in zip(stages, ends, strict=True):
        step = final_step_s if size == batch else step_time(int(size), num_gpus)
        if step == float("inf"):
            raise SpecError(f"no plan for the ramp's batch of {size:,.0f} sequences on {num_gpus:,} GPUs or fewer")
        seconds += (end - start) / size * step
    return total, seconds / total


def ramped_tokens(ramp: Ramp, goal: Goal, batch_tokens: float) -> float:
    """Data that a goal takes with a ramp that ends at a batch of so many tokens.  [tokens]"""
    least, steps = _way(goal)
    starts = [start for start, _ in ramp.stages]
    batches = [share * batch_tokens for _, share in ramp.stages]

    def needed(total: float) -> float:
        """What the run takes if its stages begin at their shares of `total`."""
        reached = 0.0
        for start, end, batch in zip(starts, starts[1:], batches, strict=False):
            spent = least + batch * steps
            reached = float(np.interp(np.interp(reached, least, spent) + (end - start) * total, spent, least))
        spent = least + batches[-1] * steps
        return float(starts[-1] * total + spent[-1] - np.interp(reached, least, spent))

    low, high = goal.min_tokens, float(goal.tokens(batch_tokens))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return high


def _way(goal: Goal) -> tuple[Array, Array]:
    """Least data and least steps, from the beginning to the goal."""
    least = goal.min_tokens * np.geomspace(FIRST, 1.0, SAMPLES)
    return np.concatenate([[0.0], least]), np.concatenate([[0.0], goal.least_steps_by(least)])


def against_none(ramp: Ramp, goal: Goal, batch_tokens: float) -> str:
    """Said of a ramp: the data that it saves, and the steps that it costs."""
    tokens = ramped_tokens(ramp, goal, batch_tokens)
    steps = ramped_steps(tokens, [(start * tokens, share * batch_tokens) for start, share in ramp.stages])
    less, more = 1 - tokens / float(goal.tokens(batch_tokens)), steps / float(goal.steps(batch_tokens)) - 1
    return f"it takes {less:.1%} less data and {more:.1%} more steps than the whole batch from the start"
