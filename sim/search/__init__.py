"""Floor 5, answer: which plan to run, out of every plan there is."""

from sim.search.search import OBJECTIVES, Candidate, SearchResult, price_all, search
from sim.search.space import Category, Space, build_space

__all__ = ["OBJECTIVES", "Candidate", "Category", "SearchResult", "Space", "build_space", "price_all", "search"]
