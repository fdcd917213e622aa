"""Which context-parallel degrees are searched unasked, and that the answer says so."""

import pytest
from asked import asked
from open_space import search

from sim.errors import InfeasiblePlan


def small(length=32768, **plan):
    return asked("llama3-8b", "superpod-h100", {"dp": 8, **plan}, batch=32, sequence=length)


def searched(result):
    return sorted(set(result.space.columns.cp.tolist()))


def test_a_search_tries_them_and_says_so():
    result = search(small(), top=1, confirm=2)
    assert searched(result) == [1, 2, 4]
    words = "tried with cp 1, 2 or 4, which leaves pieces of 8,192 tokens or more; -s plan.cp=[…] names others"
    assert any(words in each for each in result.assumptions)
    own = search(small(dp=1, cp=8), top=1, confirm=2)
    assert searched(own) == [1, 2, 4, 8]
    assert searched(search(small(), fixed={"cp": 1}, top=1, confirm=2)) == [1]
    assert searched(search(small(length=30720), top=1, confirm=1)) == [1, 2]  # 32,768 tokens would be cut in 4
    with pytest.raises(InfeasiblePlan, match=r"plan\.cp = 7: it must divide the sequence"):
        search(small(), fixed={"cp": 7})
