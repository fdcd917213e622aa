"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`plans`), prices them into a table (`prices`, `result`) and runs the best on the exact engine
(`confirm`); `schedules` finds the best plan of schedules that have no formula. The rest is what is asked of a result:
`result` of its table, `explain` and `comparison` (why not another plan), `sensitivity`, `sweep`. They load when they
are asked. Each family of plans that are not alike (layered orders, uneven layouts, modules that are computed again,
offload) has a bound of its own, since a proof is as good as its bound; that makes the room large.
"""

from sim.search.result import SearchResult
from sim.search.search import search

__all__ = ["SearchResult", "search"]
