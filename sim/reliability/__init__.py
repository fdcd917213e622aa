"""Failures, checkpoints and spare nodes, and what a run costs: from seconds of work to days, joules and money."""

from sim.reliability.checkpoints import (
    Checkpoints,
    best_interval,
    checkpoint_bytes,
    daly_interval,
    slowdown,
    write_time,
    young_interval,
)
from sim.reliability.closed_form import (
    GPU_MTBF_S,
    Failures,
    Goodput,
    goodput,
    job_mtbf,
    waiting_share,
)
from sim.reliability.cost import energy, gpu_hours, rent
from sim.reliability.simulation import simulate_goodput, simulate_wall_times

__all__ = [
    "GPU_MTBF_S",
    "Checkpoints",
    "Failures",
    "Goodput",
    "best_interval",
    "checkpoint_bytes",
    "daly_interval",
    "energy",
    "goodput",
    "gpu_hours",
    "job_mtbf",
    "rent",
    "simulate_goodput",
    "simulate_wall_times",
    "slowdown",
    "waiting_share",
    "write_time",
    "young_interval",
]
