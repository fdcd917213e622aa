"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`plans`), prices them into a table (`prices`, `queries`) and runs the best on the exact engine
(`confirm`); `schedules` finds the best plan of schedules that have no formula. The rest is what is asked
of a result: `queries` of its table, `explain` and `comparison` (why not another plan), `sensitivity`, `rules`, `sweep`;
`grid` changes the scenario's own plan without looking for a better one.
"""

from sim.search.axes import Axis, parse_axis
from sim.search.candidate import OBJECTIVES, Candidate, ScheduleBest
from sim.search.comparison import Step, steps_between
from sim.search.explain import PlanRank, Why, rank_plan, why_not
from sim.search.plans.columns import Category
from sim.search.plans.space import Space, build_space
from sim.search.prices.formula import price_all
from sim.search.result import SearchResult
from sim.search.risk import Risk, at_risk
from sim.search.rules import Rules, megatron_rules
from sim.search.schedules.by_schedule import schedules_named, search_schedules
from sim.search.search import search
from sim.search.sensitivity import ValueCost, sensitivity
from sim.search.sweep import Sweep, sweep

__all__ = [
    "OBJECTIVES",
    "Axis",
    "Candidate",
    "Category",
    "PlanRank",
    "Risk",
    "Rules",
    "ScheduleBest",
    "SearchResult",
    "Space",
    "Step",
    "Sweep",
    "ValueCost",
    "Why",
    "at_risk",
    "build_space",
    "megatron_rules",
    "parse_axis",
    "price_all",
    "rank_plan",
    "schedules_named",
    "search",
    "search_schedules",
    "sensitivity",
    "steps_between",
    "sweep",
    "why_not",
]
