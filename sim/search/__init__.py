"""Floor 5, answer: which plan to run, out of every plan there is."""

from sim.search.search import OBJECTIVES, Candidate, SearchResult, price_all, search
from sim.search.space import Category, Space, build_space
from sim.search.why import Why, other_schedules, why_not

__all__ = [
    "OBJECTIVES",
    "Candidate",
    "Category",
    "SearchResult",
    "Space",
    "Why",
    "build_space",
    "other_schedules",
    "price_all",
    "search",
    "why_not",
]
