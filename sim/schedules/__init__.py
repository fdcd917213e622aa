"""Floor 3, order: what each pipeline rank does, in which order; no seconds. Importing registers what is shipped."""

from sim.schedules import (  # noqa: F401  (they register themselves)
    breadth_first,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from sim.schedules.actions import Action, Kind
from sim.schedules.grid import format_grid
from sim.schedules.order import Order, make_order
from sim.schedules.registry import Schedule, build_order, get_schedule, schedule, schedule_names

__all__ = [
    "Action",
    "Kind",
    "Order",
    "Schedule",
    "build_order",
    "format_grid",
    "get_schedule",
    "make_order",
    "schedule",
    "schedule_names",
]
