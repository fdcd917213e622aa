"""A batch that grows on the way: how many steps it takes, and how long they are on average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sim.errors import SpecError
from sim.scaling.batch_tradeoff import ramped_steps
from sim.units import significant


class StepTimes(Protocol):
    """Step times by batch and size."""

    def at_most(self, batch: int, num_gpus: int) -> float:
        """Of the fastest plan of a batch on so many GPUs or fewer; infinite where there is none.  [s]"""


@dataclass(frozen=True, slots=True)
class Ramp:
    """From which share of the data on which share of the final batch holds, such as ((0, 1/4), (0.02, 1/2), (0.2, 1)).

    Raises
    ------
    SpecError
        It does not start at 0, go forward, or end with the whole batch.
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
        parts = (f"{significant(share, 2)} of it from {start:.2%} of the data" for start, share in self.stages)
        return ", ".join(parts)


def parse_ramp(text: str) -> Ramp:
    """A ramp written as "1/4, 1/2@2%, 1@20%": shares of the batch, each with the share of the data it holds from.

    Raises
    ------
    SpecError
        Not so.
    """
    stages = []
    for part in text.split(","):
        share, _, start = part.strip().partition("@")
        try:
            over, _, under = share.partition("/")
            stages.append((float(start.strip().rstrip("%") or 0) / 100, float(over) / float(under or 1)))
        except (ValueError, ZeroDivisionError):
            raise SpecError(f"ramp {text!r}: {part.strip()!r} must look like 1/4 or 1/2@2%") from None
    return Ramp(tuple(stages))


def ramped(
    ramp: Ramp, batch: int, num_gpus: int, final_step_s: float, sequences: float, times: StepTimes
) -> tuple[float, float]:
    """(steps, average step time) of a run over so many sequences on so many GPUs, that ends at `batch`.

    Stages before the last take the fastest plan of their batch, which may leave GPUs idle.

    Raises
    ------
    SpecError
        No plan for a stage's batch.
    """
    sizes = ramp.batches_of(batch)
    stages = [(start * sequences, float(size)) for (start, _), size in zip(ramp.stages, sizes, strict=True)]
    total = ramped_steps(sequences, stages)
    ends = [*(start for start, _ in stages[1:]), sequences]
    seconds = 0.0
    for (start, size), end in zip(stages, ends, strict=True):
        step = final_step_s if size == batch else times.at_most(int(size), num_gpus)
        if step == float("inf"):
            raise SpecError(f"no plan for the ramp's batch of {size:,.0f} sequences on {num_gpus:,} GPUs or fewer")
        seconds += (end - start) / size * step
    return total, seconds / total
