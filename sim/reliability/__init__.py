"""Failures, checkpoints and spare nodes, and what a run costs: from seconds of work to days, joules and money."""

from sim.reliability.checkpoints import (
    Checkpoints,
    best_interval,
    checkpoint_bytes,
    daly_interval,
    slowdown,
    young_interval,
)
from sim.reliability.closed_form import (
    GPU_MTBF_S,
    STARTUP_S,
    Failures,
    Goodput,
    goodput,
    job_mtbf,
    waiting_share,
)
from sim.reliability.cost import Price, energy, gpu_hours, listed_price, rent
from sim.reliability.simulation import simulate_goodput, simulate_wall_times
from sim.reliability.state import Spread, State, evenly, state_of
from sim.reliability.storing import (
    LOAD_WORDS,
    DataLoading,
    Load,
    LoadBy,
    Storing,
    data_loading,
    even_storing,
    load_named,
    require_pause,
    storing_of,
)

__all__ = [
    "GPU_MTBF_S",
    "LOAD_WORDS",
    "STARTUP_S",
    "Checkpoints",
    "DataLoading",
    "Failures",
    "Goodput",
    "Load",
    "LoadBy",
    "Price",
    "Spread",
    "State",
    "Storing",
    "best_interval",
    "checkpoint_bytes",
    "daly_interval",
    "data_loading",
    "energy",
    "even_storing",
    "evenly",
    "goodput",
    "gpu_hours",
    "job_mtbf",
    "listed_price",
    "load_named",
    "rent",
    "require_pause",
    "simulate_goodput",
    "simulate_wall_times",
    "slowdown",
    "state_of",
    "storing_of",
    "waiting_share",
    "young_interval",
]
