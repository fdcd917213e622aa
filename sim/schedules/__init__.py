"""Floor 3, order: what each pipeline rank does, in which order; no seconds. Importing registers what is shipped."""

from sim.schedules import (  # noqa: F401  (they register themselves)
    many_chunks,
    one_chunk,
    v_shape,
    waves,
)
from sim.schedules.actions import Action, Kind, Row, as_actions, format_grid, in_turns
from sim.schedules.build import build_order
from sim.schedules.order import Order, make_order
from sim.schedules.registry import Schedule, get_schedule, schedule, schedule_names

__all__ = [
    "Action",
    "Kind",
    "Order",
    "Row",
    "Schedule",
    "as_actions",
    "build_order",
    "format_grid",
    "get_schedule",
    "in_turns",
    "make_order",
    "schedule",
    "schedule_names",
]
