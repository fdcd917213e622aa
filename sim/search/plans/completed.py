"""A plan with some fields set, and with what these force on those that nothing was said of."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from sim.errors import SpecError
from sim.schedules import get_schedule
from sim.specs import ParallelPlan


def completed_plan(old: ParallelPlan, num_layers: int, named: Mapping[str, Any]) -> ParallelPlan:
    """The plan on as many GPUs with these fields, and with what must follow: dp, chunks, sequence parallelism, ep.

    Parameters
    ----------
    num_layers : int
        Of the model.
    named : mapping
        Fields of the plan and their values.

    Raises
    ------
    FlopcastError
        The rule that they break.
    """
    wanted: dict[str, Any] = dict(named)
    if "recompute_modules" in wanted:
        wanted.setdefault("recompute", "selective")
    elif {"recompute_method", "recompute_num_layers"} & {*wanted}:
        wanted.setdefault("recompute", "full")
    if wanted.get("recompute", old.recompute) != old.recompute:
        old = old.replace(recompute=wanted["recompute"])
    pp, tp = wanted.get("pp", old.pp), wanted.get("tp", old.tp)
    if "schedule" in wanted:
        wanted.setdefault("num_chunks", _chunks_for(wanted["schedule"], old.num_chunks, -(-num_layers // pp)))
    elif "num_chunks" in wanted or pp == 1:
        chunks = wanted.setdefault("num_chunks", 1)
        if (chunks > 1) != (old.schedule == "interleaved"):
            wanted["schedule"] = "interleaved" if chunks > 1 else "1f1b"
    if tp == 1:
        wanted.setdefault("sequence_parallel", False)
    if "dp" not in wanted:
        degree, size = tp * wanted.get("cp", old.cp) * pp, old.num_gpus
        if size % degree:
            raise SpecError(f"tp · cp · pp = {degree} does not divide {size:,} GPUs")
        wanted["dp"] = size // degree
    width = tp * wanted.get("cp", old.cp) * wanted["dp"]
    etp = wanted.setdefault("etp", tp if old.etp > 1 else 1)
    wanted.setdefault("ep", gcd(old.ep, width // etp))
    return ParallelPlan.read({**old.model_dump(), **wanted}, "plan")


def _chunks_for(schedule: str, given: int, most: int) -> int:
    """Chunks a rank for a schedule that takes so many."""
    taken = get_schedule(schedule).chunks
    if isinstance(taken, int):
        return taken
    return most if schedule == "modular" else 1 if taken == "one" else max(2, given)
