"""The workers that a planner deals layers to: levels of a machine, each with the bandwidth between what it joins."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sim.errors import SpecError, require_positive
from sim.pricing.cost_model import cost_model
from sim.specs import Scenario
from sim.units import parse, show


@dataclass(frozen=True, slots=True)
class Level:
    """Level of a machine: a number of alike parts, such as workers of a server or servers of a cluster.

    bandwidth_bytes_per_s : of one part to the others, per direction. [bytes/s]
    """

    count: int
    bandwidth_bytes_per_s: float

    def __str__(self) -> str:
        return f"{self.count} at {show(self.bandwidth_bytes_per_s, 'B/s')}"


def num_workers(levels: tuple[Level, ...]) -> int:
    """Workers of all levels together."""
    return prod(level.count for level in levels)


def read_levels(workers: str, bandwidths: str) -> tuple[Level, ...]:
    """Levels from the innermost out, of words from the outermost in: "4x4" and "10 Gbit/s, 12 GB/s".

    Raises
    ------
    SpecError
        No such numbers, or not a bandwidth for each.
    """
    words = workers.lower().replace("×", "x").split("x")
    try:
        counts = [int(word) for word in words]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise SpecError(
            f"--workers {workers!r} must be a number of workers such as 16, or servers × workers such as 4x4"
        )
    rates = [parse(rate, "bytes_per_s") for rate in bandwidths.split(",")]
    if len(rates) != len(counts):
        raise SpecError(
            f"--bandwidths {bandwidths!r} has {len(rates)} values, and --workers {workers!r} has {len(counts)} levels; "
            "give one a level, from the outermost in, such as '10 Gbit/s, 12 GB/s' for 4x4"
        )
    require_positive(bandwidths=rates)
    return tuple(Level(count, rate) for count, rate in zip(reversed(counts), reversed(rates), strict=True))


def levels_of(scenario: Scenario) -> tuple[Level, ...]:
    """The workers of a scenario's plan: GPUs, or tensor- and context-parallel groups of them, by NVLink domain.

    Bytes are those of one GPU, so bandwidths are too: of NVLink a GPU's, of the network that of all of a domain's
    workers, as the profile says that they are reached.

    Raises
    ------
    SpecError
        The workers do not fill whole domains.
    """
    plan, fabric = scenario.plan, cost_model(scenario).fabric
    width = plan.tp * plan.cp
    workers, inside = plan.num_gpus // width, max(1, scenario.cluster.nvlink_domain_gpus // width)
    near = float(fabric.nvlink.efficiency * fabric.nvlink_bytes_per_s)
    far = float(fabric.network.in_training(shared=False) * fabric.network_bytes_per_s)
    if workers <= inside:
        return (Level(workers, near),)
    if inside == 1:
        return (Level(workers, far),)
    if workers % inside:
        raise SpecError(
            f"{workers} workers do not fill NVLink domains of {inside}; let plan.pp · plan.dp be a multiple of {inside}"
        )
    return (Level(inside, near), Level(workers // inside, far * inside))
