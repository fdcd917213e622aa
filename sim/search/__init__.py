"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`plans`), prices them into a table (`prices`, `result`) and runs the best on the exact engine
(`confirm`), with room for those that do not fit else (`room`) and other layouts (`stages`); `schedules` finds the best
plan of schedules that have no formula. All of them are one loop over bounds (`best_first`). The rest is what is asked
of the table: `explain` (why not another plan), `sensitivity`, `risk`, and searches along `axes` (`sweep`). They load
when they are asked. Each family of plans that are not alike (layered orders, uneven layouts, modules that are computed
again, offload) has a bound of its own, since a proof is as good as its bound; that makes the room large.
"""

from sim.search.result import SearchResult
from sim.search.search import search

__all__ = ["SearchResult", "search"]
