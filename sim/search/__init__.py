"""Floor 5, answer: which plan to run, out of every plan there is."""

from sim.search.axes import Axis, parse_axis
from sim.search.rules import Rules, megatron_rules
from sim.search.search import OBJECTIVES, Candidate, SearchResult, price_all, search
from sim.search.sensitivity import ValueCost, sensitivity
from sim.search.space import Category, Space, build_space
from sim.search.standing import Standing, standing_of
from sim.search.steps import Step, steps_between
from sim.search.sweep import sweep
from sim.search.sweep_result import Sweep
from sim.search.why import Why, other_schedules, why_not

__all__ = [
    "OBJECTIVES",
    "Axis",
    "Candidate",
    "Category",
    "Rules",
    "SearchResult",
    "Space",
    "Standing",
    "Step",
    "Sweep",
    "ValueCost",
    "Why",
    "build_space",
    "megatron_rules",
    "other_schedules",
    "parse_axis",
    "price_all",
    "search",
    "sensitivity",
    "standing_of",
    "steps_between",
    "sweep",
    "why_not",
]
