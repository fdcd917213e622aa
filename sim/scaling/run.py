"""A whole training run from its step time: days with failures and checkpoints, GPU-hours, money, energy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sim.errors import SpecError, require_positive
from sim.reliability import (
    Checkpoints,
    Failures,
    Goodput,
    LoadBy,
    Price,
    Storing,
    best_interval,
    energy,
    goodput,
    gpu_hours,
    job_mtbf,
    listed_price,
    rent,
    require_pause,
)
from sim.specs import GpuSpec, NodeSpec
from sim.units import show, show_short, show_time

LEAST_USEFUL = 0.01
"""Share of the time below which a run is refused rather than said to take centuries."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a cluster fails, how state is saved and loaded, and what it costs.

    failures : their rate, and how they are put right.
    write_bytes_per_s : bandwidth of all ranks together to storage; default: the cluster's. [bytes/s]
    asynchronous : checkpoints are written in the background, or training waits for them.
    load_by : who reads a checkpoint at a start: all, one or shares; default: the fastest.
    restart_is_whole : a restart is what `failures` say, loading included; else loading comes on top, by the storage.
    price : price of a GPU-hour: 2, '2.5 EUR' or €2.5; default: the GPU's list price.
    pue : power usage effectiveness of the building.
    """

    failures: Failures = field(default_factory=Failures)
    write_bytes_per_s: float | None = None
    asynchronous: bool = False
    load_by: LoadBy | None = None
    restart_is_whole: bool = False
    price: Price | None = None
    pue: float = 1.1

    def __post_init__(self) -> None:
        if self.write_bytes_per_s is not None:
            require_positive(write_bytes_per_s=self.write_bytes_per_s)

    def priced(self, gpu: GpuSpec) -> Terms:
        """The terms with a price: their own, or the list price of this GPU."""
        return self if self.price is not None else replace(self, price=listed_price(gpu.name))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What these terms take for granted."""
        hours = self.failures.gpu_mtbf_s / 3600
        spares = "enough spare nodes"
        if self.failures.spare_nodes is not None:
            spares = f"{self.failures.spare_nodes} spare nodes, which are paid for"
        restart = f"restart {show_time(self.failures.restart_s)}"
        if not self.restart_is_whole:
            restart = f"{show_time(self.failures.startup_s)} until the job loads its checkpoint"
        background = "in the background" if self.asynchronous else "while training stops"
        rate = "" if self.write_bytes_per_s is None else f" at {show(self.write_bytes_per_s, 'B/s')}"
        price = "the list price" if self.price is None else f"{self.price} a GPU-hour"
        source = f" ({self.price.source})" if self.price is not None and self.price.source else ""
        return (
            f"a failure every {hours:,.0f} GPU-hours, {restart}, {spares}",
            f"checkpoints are written{rate} at the best interval, {background}",
            f"{price}{source}; energy is that of whole nodes at full power, PUE {self.pue:g}",
        )

    def stored(self, storing: Storing) -> Storing:
        """What checkpoints take by these terms, of what they take on the machine."""
        return storing if self.write_bytes_per_s is None else storing.written_at(self.write_bytes_per_s)

    def failing(self, storing: Storing) -> Failures:
        """Failures with the time that loading takes after them."""
        return self.failures if self.restart_is_whole else replace(self.failures, load_s=storing.load_s(self.load_by))


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run takes, in expectation.

    useful_s : steps times step time. [s]
    goodput, checkpoints : the shares of the wall-clock time, and how state is saved.
    wall_s : with failures and checkpoints. [s]
    gpu_hours : of the wall-clock time, spare nodes included. [h]
    energy_j : of the nodes at full power; None where it is not known. [J]
    storing, failures : what checkpoints take, and failures with it.
    loaded_by : who reads a checkpoint at a start; None where restarts are given whole.
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
    currency: str
    energy_j: float | None
    storing: Storing
    failures: Failures
    loaded_by: LoadBy | None

    def __repr__(self) -> str:
        """One line."""
        return (
            f"<TrainingRun {show_time(self.wall_s)} on {self.num_gpus:,} GPUs, {show_short(self.cost)} {self.currency}>"
        )

    @property
    def days(self) -> float:
        """Wall-clock time. [days]"""
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
            "currency": self.currency,
            "energy_j": self.energy_j,
        }


def training_run(
    storing: Storing, num_gpus: int, node: NodeSpec, step_time_s: float, steps: float, tokens: float, terms: Terms
) -> TrainingRun:
    """The run of so many steps of so long.

    Parameters
    ----------
    storing : Storing
        What checkpoints take on the machine.
    node : NodeSpec
        For its power, without which energy is left out.
    step_time_s : float
        Of the average step. [s]
    steps, tokens : float
        Of the whole run.

    Raises
    ------
    SpecError
        Failures come faster than checkpoints.
    """
    require_positive(step_time_s=step_time_s, steps=steps)
    price = terms.price or listed_price(node.gpu.name)
    storing = terms.stored(storing)
    failures = terms.failing(storing)
    checkpoints = best_checkpoints(storing, num_gpus, node.name, terms)
    shares = goodput(num_gpus, checkpoints, failures)
    useful = steps * step_time_s
    if shares.useful < LEAST_USEFUL:
        raise SpecError(_no_work(storing, num_gpus, node.name, terms))
    wall = shares.wall_time(useful)
    paid = num_gpus + (failures.spare_nodes or 0) * failures.gpus_per_node
    hours, power = float(gpu_hours(paid, wall)), node.power_per_gpu_w
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
        float(rent(hours, price.amount)),
        price.currency,
        None if power is None else float(energy(hours, power, terms.pue)),
        storing,
        failures,
        None if terms.restart_is_whole else terms.load_by or storing.load_by,
    )


def best_checkpoints(storing: Storing, num_gpus: int, node: str, terms: Terms) -> Checkpoints:
    """Checkpoints at the interval of least waste; written in the background, no faster than they can be."""
    pause = require_pause(storing, node) if terms.asynchronous else storing.blocking_s
    drain = storing.write_s if terms.asynchronous else 0.0
    interval = float(best_interval(pause, job_mtbf(num_gpus, terms.failures.gpu_mtbf_s)))
    return Checkpoints(max(interval, drain - pause), pause, drain)


def unknown_energy(node: NodeSpec) -> str:
    """Said where a node's power is not known."""
    return f"energy is left out: the power of {node.name} is not known; set cluster.node.max_power, such as '10 kW'"


def _no_work(storing: Storing, num_gpus: int, node: str, terms: Terms) -> str:
    """Said of a run whose failures leave no time, with the most GPUs that work half of it."""
    failures = terms.failing(storing)

    def useful(count: int) -> float:
        return goodput(count, best_checkpoints(storing, count, node, terms), failures).useful

    low, high = 0, num_gpus
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if useful(middle) >= 0.5 else (low, middle)
    gpus = f"{low:,} GPU" + ("s work" if low > 1 else " works")
    nearest = f"{gpus} half of the time" if low else "not even one GPU works half of the time"
    return (
        f"hardly any work gets done on {num_gpus:,} GPUs: failures come faster than checkpoints, every "
        f"{show_time(float(job_mtbf(num_gpus, failures.gpu_mtbf_s)))}, where a checkpoint takes "
        f"{show_time(storing.write_s)} and a restart {show_time(failures.restart_s)}; {nearest}. Or write "
        "(--write-bandwidth) or restart (--restart) faster"
    )
