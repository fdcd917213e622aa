"""Floor 5, answer: which plan to run, out of every plan there is.

`search` lists the plans (`fields`, `layouts`, `space`), prices them into a table (`formula`, `result`) and runs the
best on the exact engine (`confirm`), with room for those that do not fit otherwise (`room`) and other layouts
(`stages`). `by_schedule` finds the best plan of schedules that have no formula, by `bounds`. All of them are
one loop over bounds (`best_first`). The rest is what is asked of the table: `explain` (why not another plan),
`risk`, and what the values of an axis cost (`sweep`). Each family of plans that are not alike has a bound of its
own, since a proof is as good as its bound; that makes the room large.
"""

from sim.search.result import SearchResult
from sim.search.search import search

__all__ = ["SearchResult", "search"]
