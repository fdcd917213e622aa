"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`plans`), prices them (`prices`), keeps the table (`table`) and runs the best on the exact
engine; `schedules` finds the best plan of schedules that have no formula, `answers` what is asked of a result.
"""

from sim.search.answers.axes import Axis, parse_axis
from sim.search.answers.rules import Rules, megatron_rules
from sim.search.answers.sensitivity import ValueCost, sensitivity
from sim.search.answers.standing import Standing, standing_of
from sim.search.answers.steps import Step, steps_between
from sim.search.answers.sweep import sweep
from sim.search.answers.sweep_result import Sweep
from sim.search.answers.why import Why, why_not
from sim.search.candidate import OBJECTIVES, Candidate, ScheduleBest
from sim.search.plans.columns import Category
from sim.search.plans.space import Space, build_space
from sim.search.prices.units import price_all
from sim.search.result import SearchResult
from sim.search.schedules.by_schedule import schedules_named, search_schedules
from sim.search.search import search

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
