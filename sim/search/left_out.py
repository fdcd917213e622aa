"""What a search did not look at, in words that stand beside its answer."""

from __future__ import annotations

from sim.search.candidate import Candidate
from sim.search.layouts import LAYOUT
from sim.search.space import SCHEDULES, Space
from sim.units import show, show_time

CLOSE = 0.03
"""Share of the memory below which the best plan is said to leave little of it free."""


def left_out(space: Space, proof: str) -> tuple[str, ...]:
    """The assumptions of a search over a space; `proof`: how sure its best plan is."""
    model, plan, length = space.scenario.model, space.scenario.plan, space.scenario.training.sequence_length
    contexts, experts = (sorted(set(space.layouts[:, LAYOUT.index(name)].tolist())) for name in ("cp", "ep"))
    stated = [
        f"schedules {', '.join(SCHEDULES)}; {proof}",
        f"cp {_listed(contexts)}: pieces of a sequence have {length // contexts[-1]:,} tokens or more; "
        "--cp searches other degrees",
    ]
    if model.num_experts:
        stated.append(f"ep {_listed(experts)}: so many GPUs share the experts; --ep searches other degrees")
    if plan.uneven_layers:
        stated.append("layers are dealt evenly to all stages; uneven_layers of the scenario's plan is not searched")
    if plan.microbatch_group is not None or plan.sequence_slices > 1:
        stated.append("micro-batch groups and sequence slices of the scenario's plan are not searched")
    return tuple(stated)


def of_the_best(best: Candidate, memory_limit_bytes: float, objective: str) -> tuple[str, ...]:
    """How near the best plan is to the end of the memory, and how sure its step time."""
    if objective == "memory_headroom":
        return ()
    low, high = best.answer.step_time_interval_s
    sure = (
        f"step times are estimates (the best plan's, 90 %: {show_time(low)} to {show_time(high)}): plans a few percent "
        "apart are worth a trial on the machine"
    )
    free = memory_limit_bytes - best.answer.largest.total
    if free > CLOSE * memory_limit_bytes:
        return (sure,)
    return sure, f"the best plan leaves {show(free, 'B')} of the memory free; a lower --memory-limit keeps a reserve"


def _listed(degrees: list[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, degrees)
    return f"{', '.join(most)} or {last}" if most else last
