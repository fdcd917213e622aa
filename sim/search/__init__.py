"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`plans`), prices them into a table (`prices`, `queries`) and runs the best on the exact engine
(`confirm`); `schedules` finds the best plan of schedules that have no formula. The rest is what is asked
of a result: `queries` of its table, `explain` and `comparison` (why not another plan), `sensitivity`, `rules`, `sweep`;
`grid` changes the scenario's own plan without looking for a better one. They load when they are asked.
"""

from sim.search.result import SearchResult
from sim.search.search import search

__all__ = ["SearchResult", "search"]
