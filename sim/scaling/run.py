"""A whole training run from its step time: days with failures and checkpoints, GPU-hours, money, energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.errors import SpecError, require_positive
from sim.reliability import (
    Checkpoints,
    Failures,
    Goodput,
    best_interval,
    checkpoint_bytes,
    energy,
    goodput,
    gpu_hours,
    job_mtbf,
    rent,
    write_time,
)
from sim.specs import GpuSpec
from sim.units import show_time

LEAST_USEFUL = 0.01
"""Share of the time below which a run is refused rather than said to take centuries."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a cluster fails, stores and is paid for.

    failures : their rate, and how they are put right.
    write_bytes_per_s : to storage, all ranks together. Default: what Llama 3 405B's storage sustained
        (arXiv:2407.21783, section 3.3.1). [bytes/s]
    blocking_s : pause of a checkpoint written in the background; None: training stops until it is written. [s]
    price_per_gpu_hour : assumption: 2, in whatever currency.
    pue : power usage effectiveness of the building; assumption: 1.1.
    """

    failures: Failures = field(default_factory=Failures)
    write_bytes_per_s: float = 2e12
    blocking_s: float | None = None
    price_per_gpu_hour: float = 2.0
    pue: float = 1.1

    def __post_init__(self) -> None:
        require_positive(write_bytes_per_s=self.write_bytes_per_s, price_per_gpu_hour=self.price_per_gpu_hour)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What these terms take for granted."""
        hours = self.failures.gpu_mtbf_s / 3600
        spares = "as many spare nodes as it takes"
        if self.failures.spare_nodes is not None:
            spares = f"{self.failures.spare_nodes} spare nodes, paid for"
        return (
            f"a failure every {hours:,.0f} GPU-hours, restart {self.failures.restart_s / 60:g} min, {spares}",
            f"checkpoints of {checkpoint_bytes(1.0):g} bytes a parameter at {self.write_bytes_per_s / 1e9:,.0f} GB/s, "
            "as often as is best",
            f"{self.price_per_gpu_hour:g} a GPU-hour; energy of the GPUs at full power, PUE {self.pue:g}",
        )


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run takes, in expectation.

    useful_s : steps times step time. [s]
    goodput, checkpoints : the shares of the wall-clock time, and how state is saved.
    wall_s : with failures and checkpoints. [s]
    gpu_hours : of the wall-clock time, spare nodes included. [h]
    energy_j : of the GPUs. [J]
    """

    num_gpus: int
    steps: float
    tokens: float
    step_time_s: float
    useful_s: float
    goodput: Goodput
    checkpoints: Checkpoints
    wall_s: float
    gpu_hours: float
    cost: float
    energy_j: float

    @property
    def days(self) -> float:
        """Of wall-clock time."""
        return self.wall_s / 86400.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "num_gpus": self.num_gpus,
            "steps": self.steps,
            "tokens": self.tokens,
            "step_time_s": self.step_time_s,
            "useful_days": self.useful_s / 86400.0,
            "goodput": self.goodput.useful,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "cost": self.cost,
            "energy_j": self.energy_j,
        }


def training_run(
    params: float, num_gpus: int, gpu: GpuSpec, step_time_s: float, steps: float, tokens: float, terms: Terms
) -> TrainingRun:
    """The run of so many steps of so long.

    Parameters
    ----------
    params : float
        Of the model, for the size of its checkpoints.
    gpu : GpuSpec
        For its power.
    step_time_s : float
        Of the average step. [s]
    steps, tokens : float
        Of the whole run.

    Raises
    ------
    SpecError
        The GPU's power is not known, or failures come faster than checkpoints.
    """
    require_positive(params=params, step_time_s=step_time_s, steps=steps)
    if gpu.max_power_w is None:
        raise SpecError(f"the power of {gpu.name} is not known; set cluster.node.gpu.max_power, such as '700 W'")
    failures = terms.failures
    checkpoints = best_checkpoints(params, num_gpus, terms)
    shares = goodput(num_gpus, checkpoints, failures)
    useful = steps * step_time_s
    if shares.useful < LEAST_USEFUL:
        raise SpecError(_no_work(params, num_gpus, terms))
    wall = shares.wall_time(useful)
    paid = num_gpus + (failures.spare_nodes or 0) * failures.gpus_per_node
    hours = float(gpu_hours(paid, wall))
    return TrainingRun(
        num_gpus,
        steps,
        tokens,
        step_time_s,
        useful,
        shares,
        checkpoints,
        wall,
        hours,
        float(rent(hours, terms.price_per_gpu_hour)),
        float(energy(hours, gpu.max_power_w, terms.pue)),
    )


def best_checkpoints(params: float, num_gpus: int, terms: Terms) -> Checkpoints:
    """Checkpoints at the interval of least waste; written in the background, no faster than they can be."""
    written = float(write_time(checkpoint_bytes(params), terms.write_bytes_per_s))
    pause = written if terms.blocking_s is None else terms.blocking_s
    drain = max(written - pause, 0.0)
    interval = float(best_interval(pause, job_mtbf(num_gpus, terms.failures.gpu_mtbf_s)))
    return Checkpoints(max(interval, drain - pause), pause, drain)


def _no_work(params: float, num_gpus: int, terms: Terms) -> str:
    """Said of a run whose failures leave no time, with the most GPUs that work half of it."""
    failures = terms.failures

    def useful(count: int) -> float:
        return goodput(count, best_checkpoints(params, count, terms), failures).useful

    low, high = 0, num_gpus
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if useful(middle) >= 0.5 else (low, middle)
    gpus = f"{low:,} GPU" + ("s work" if low > 1 else " works")
    nearest = f"{gpus} half of the time" if low else "not even one GPU works half of the time"
    return (
        f"hardly any work gets done on {num_gpus:,} GPUs: failures come faster than checkpoints, every "
        f"{show_time(float(job_mtbf(num_gpus, failures.gpu_mtbf_s)))}, where a checkpoint takes "
        f"{show_time(float(write_time(checkpoint_bytes(params), terms.write_bytes_per_s)))} and a restart "
        f"{show_time(failures.restart_s)}; {nearest}. Or write (--write-bandwidth) or restart (--restart) faster"
    )
