"""Floor 5, answer: which plan to run, out of every plan there is."""

from sim.search.axes import Axis, parse_axis
from sim.search.by_schedule import WithFields, schedules_named, search_schedules
from sim.search.candidate import ScheduleBest
from sim.search.rules import Rules, megatron_rules
from sim.search.search import OBJECTIVES, Candidate, SearchResult, price_all, search
from sim.search.sensitivity import ValueCost, sensitivity
from sim.search.space import Category, Space, build_space
from sim.search.standing import Standing, standing_of
from sim.search.steps import Step, steps_between
from sim.search.sweep import sweep
from sim.search.sweep_result import Sweep
from sim.search.why import Why, why_not

__all__ = [
    "OBJECTIVES",
    "Axis",
    "Candidate",
    "Category",
    "Rules",
    "ScheduleBest",
    "SearchResult",
    "Space",
    "Standing",
    "Step",
    "Sweep",
    "ValueCost",
    "Why",
    "WithFields",
    "build_space",
    "megatron_rules",
    "parse_axis",
    "price_all",
    "schedules_named",
    "search",
    "search_schedules",
    "sensitivity",
    "standing_of",
    "steps_between",
    "sweep",
    "why_not",
]
