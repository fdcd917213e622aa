"""What a search did not look at, in words that stand beside its answer."""

from __future__ import annotations

from sim.search.layouts import LAYOUT
from sim.search.space import SCHEDULES, Space


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


def _listed(degrees: list[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, degrees)
    return f"{', '.join(most)} or {last}" if most else last
